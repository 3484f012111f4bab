"""The runs of a comparison, and what they have found."""

from pathlib import Path
from typing import Dict, List, NamedTuple, Sequence

from ..probes.report import Table, table_of
from ..probes.results import read_results
from ..side_by_side.attention_jobs import Work, cost_job, training_job
from .frames import Candidate
from .plan import Plan

COST_HOST = 'pvt'  # whose attentions see the whole map
TASKS, COSTS, IMAGES = 'tasks.jsonl', 'costs', 'images'


def _file(one: Candidate) -> str:
    return one.label.replace(', ', '-')


def cost_jobs(
    candidates: Sequence[Candidate], plan: Plan, folder: Path, device: str = 'cpu'
) -> List[Work]:
    """Time and memory of each attention."""
    return [
        cost_job(
            one.name,
            COST_HOST,
            plan.sizes,
            folder / COSTS / f'{_file(one)}.json',
            one.label,
            device,
        )
        for one in candidates
    ]


def training_jobs(
    candidates: Sequence[Candidate],
    plan: Plan,
    folder: Path,
    data_root: Path,
    device: str = 'cpu',
) -> List[Work]:
    """The trainings on images. All attentions have a seed before the next one begins."""
    return [
        training_job(
            one.name,
            host,
            seed,
            'textures',
            plan.epochs,
            folder / IMAGES / f'{host}-{plan.epochs}-epochs' / f'{_file(one)}_{seed}',
            data_root,
            one.label,
            device,
        )
        for seed in range(plan.seeds)
        for host in plan.backbones
        for one in candidates
    ]


class Found(NamedTuple):
    """What a comparison has found so far.

    Attributes:
        tasks: The table of small tasks.
        costs: Time and memory by label, as :func:`cost_of` gives them.
        shares: By label, the time of the processor by that of the clock while it was measured.
        images: By backbone, the results of the trainings, whose attentions are labels.
        missing: How many runs of the plan have no result, by part.
    """

    tasks: Table
    costs: Dict[str, dict]
    shares: Dict[str, float]
    images: Dict[str, List[dict]]
    missing: Dict[str, int]


def found(
    candidates: Sequence[Candidate],
    plan: Plan,
    folder: Path,
    data_root: Path,
    device: str = 'cpu',
) -> Found:
    """Read the results of a plan."""
    costs: Dict[str, dict] = {}
    shares: Dict[str, float] = {}
    images: Dict[str, List[dict]] = {}
    missing: Dict[str, int] = {}
    jobs = cost_jobs(candidates, plan, folder, device)
    for one, job in zip(candidates, jobs):
        result = job.result()
        if result is not None:
            costs[one.label], shares[one.label] = result['cost'], result['share']
    missing['time and memory'] = len(jobs) - len(costs)
    labels = {one.name: one.label for one in candidates}
    trainings = training_jobs(candidates, plan, folder, data_root, device)
    for job in trainings:
        result = job.result()
        if result is not None:
            settings = dict(result['settings'], attention=labels[job.settings['attention']])
            host = settings['host']
            images.setdefault(host, []).append(dict(result, settings=settings))
    missing['training on images'] = len(trainings) - sum(map(len, images.values()))
    study = plan.study(candidates, device)
    tasks = table_of(read_results(folder / TASKS), study, ordered=False)
    # Tasks that no attention has learnt yet are no columns.
    run = [n for n in range(len(tasks.columns)) if any(row[n] for row in tasks.rows.values())]
    tasks = tasks._replace(
        columns=[tasks.columns[n] for n in run],
        rows={label: [row[n] for n in run] for label, row in tasks.rows.items()},
    )
    probes = [column.probe['type'] for column in tasks.columns]
    done = {
        (label, probe)
        for label, row in tasks.rows.items()
        for probe, cell in zip(probes, row)
        if cell is not None
    }
    missing['small tasks'] = len(study.attentions) * len(study.probes) - len(done)
    return Found(tasks, costs, shares, images, missing)
