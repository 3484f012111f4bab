"""The tables of docs/which_attention.md, probes.md and attention_comparison.md from the logs.

The logs are those of the probes and of the comparison of attentions. A table names the cheapest of
the attentions that solve some tasks.
"""

from typing import Dict, List, NamedTuple, Optional, Tuple

from mmengine.registry import MODELS

from mmlaplace.lab.probes.prediction import (
    Correlation,
    TrainedHere,
    correlate,
    published,
    trained_here,
)
from mmlaplace.lab.probes.report import (
    MISSING,
    Table,
    behind_the_best,
    read_costs,
    tables,
)
from mmlaplace.lab.probes.results import read_results
from mmlaplace.lab.probes.study import read_studies
from mmlaplace.writing import markdown_table

from .fashion_options import fashion_tables
from .files import ROOT, Files
from .probe_tables import probe_tables

DOCS = ROOT / 'docs'
PAGES = [DOCS / name for name in ('which_attention.md', 'probes.md', 'attention_comparison.md')]
LOG, COMPARED = DOCS / 'logs/probes.jsonl', DOCS / 'logs/compare_attentions.json'
NEWEST = DOCS / 'logs/attention_costs_newest.json'  # of another time, so only ratios compare
BESIDE = 'Linear'  # measured in both
SOLVED = 0.9  # of the way from a guess to a perfect answer
NAMED = 4  # attentions for the same tasks that solve them with each seed
IMAGES = {'textures': 'textures', 'fashion': 'Fashion-MNIST'}  # names of studies on the page
UNSURE = '†'  # not with each seed
WINDOWS = ('Neighborhood', 'Reformer')  # their windows and buckets are fixed at export


AT_224, AT_1024 = ('ms 224²',), ('ms 1024²', 'MB 1024²')


class Asked(NamedTuple):
    """Tasks that an attention must solve.

    Attributes:
        columns: Titles of their columns.
        costs: The costs that are compared, beside Linear's. The first decides.
        images: Whether top-1 on small images counts too.
        export: Whether it must export to ONNX with windows of any size.
    """

    columns: Tuple[str, ...] = ()
    costs: Tuple[str, ...] = AT_1024
    images: bool = False
    export: bool = False


ASKED = (
    Asked(('recall', 'noise')),
    Asked(('recall', 'one of many')),
    Asked(('recall', 'count, 4x map')),
    Asked(('one of many', 'count, 4x map')),
    Asked(costs=AT_224, images=True),
    Asked(costs=AT_224, images=True, export=True),
)


def facts_of(attn_cfg: dict, name: str) -> Dict[str, float]:
    """The degree from 0 to 1 to which an attention has each ability."""
    small, large = (
        MODELS.build(dict(attn_cfg, embed_dims=32, num_heads=2, input_resolution=(side, side)))
        for side in (8, 16)
    )
    shapes = [{key: x.shape for key, x in m.state_dict().items()} for m in (small, large)]
    return {
        'export': 0.5 if name in WINDOWS else 1.0,
        'any size': 1.0 if shapes[0] == shapes[1] else 0.5,
        'mask': float(small.accepts_mask),
    }


def spelled(name: str, table: Table) -> str:
    """The name of an attention with its options as a config has them."""
    options = {k: v for k, v in table.study.attentions[name].items() if k != 'type'}
    return ' with '.join(
        [name.partition(',')[0], *(f'`{option}={value!r}`' for option, value in options.items())]
    )


def cheapest(
    table: Table,
    costs: Dict[str, Dict[str, float]],
    images: Dict[str, TrainedHere],
    facts: Dict[str, Dict[str, float]],
) -> str:
    """The cheapest attentions that solve some tasks, by their cost beside Linear's.

    All are named up to the fourth that solves them with each seed, so nothing cheaper is missing.
    """
    titles, rows = titles_of(table), []
    seen = {  # the attentions that are as good as the best, but for what seeds do
        name
        for name in table.rows
        if all(name in made.top1 and behind_the_best(made, name) <= 1 for made in images.values())
    }
    for asked in ASKED:
        numbers = [titles.index(title) for title in asked.columns]
        able = {
            name: [costs[name][cost] for cost in asked.costs]
            for name in table.rows
            if all((table.level(name, n) or 0) >= SOLVED for n in numbers)
            and (not asked.images or name in seen)
            and (not asked.export or facts[name]['export'] == 1)
            and set(asked.costs) <= set(costs.get(name, {}))
        }
        unsure = {
            name for name in able if not all(table.solved_by_all(name, n, SOLVED) for n in numbers)
        }
        first: List[str] = []
        for name in sorted(able, key=lambda name: able[name]):
            if sum(each not in unsure for each in first) < NAMED:
                first.append(name)
        named = [
            f'{spelled(name, table)}{UNSURE * (name in unsure)} '
            f'({", ".join(map(times, able[name]))})'
            for name in first
        ]
        tasks = [*asked.columns, *(images if asked.images else ()), *['export'] * asked.export]
        rows.append(['; '.join(tasks), ', '.join(named) or 'none', ', '.join(asked.costs)])
    return markdown_table(['tasks', 'the cheapest that solve them', 'costs'], rows)


def times(ratio: float) -> str:
    """A ratio of costs with two digits."""
    return f'{ratio:.1f}' if ratio < 10 else f'{ratio:.0f}'


def beside_linear(*logs: Dict[str, Dict[str, float]]) -> Dict[str, Dict[str, float]]:
    """Costs over those of linear attention in the same log. The first log that has one counts."""
    found: Dict[str, Dict[str, float]] = {}
    for log in logs:
        for name, costs in log.items():
            found.setdefault(name, {key: cost / log[BESIDE][key] for key, cost in costs.items()})
    return found


def newest(costs: Dict[str, Dict[str, float]]) -> str:
    """Costs beside linear attention's of those that were timed at another time."""
    titles = list(costs[BESIDE])
    rows = [
        [name, *(times(found[title]) if title in found else MISSING for title in titles)]
        for name, found in beside_linear(costs).items()
        if name != BESIDE
    ]
    return markdown_table(['beside Linear', *titles], rows)


def correlations(table: Table, images: Dict[str, Dict[str, float]]) -> str:
    """Rank correlations of the probes with accuracies on images."""
    rows = []
    for number, title in enumerate(titles_of(table)):
        levels = {name: table.level(name, number) for name in table.rows}
        probe = {name: level for name, level in levels.items() if level is not None}
        found = [correlate(probe, scores) for scores in images.values()]
        rows.append([title, *map(shown, found)])
    return markdown_table(['probe', *images], rows)


def shown(found: Optional[Correlation]) -> str:
    """A correlation with its interval and the number of attentions."""
    if found is None:
        return MISSING
    text = f'{found.rho:.2f} ({found.low:.2f} to {found.high:.2f}), {found.attentions}'
    return text.replace('-', '−')


def titles_of(table: Table) -> List[str]:
    return [column.title for column in table.columns]


def on_images() -> Dict[str, TrainedHere]:
    """Accuracies of models that were trained here, by data set."""
    here = trained_here(COMPARED)
    return {title: here[study] for study, title in IMAGES.items()}


def read() -> Tuple[Dict[str, Table], Dict[str, Dict[str, float]], Dict[str, Dict[str, float]]]:
    """The tables of the studies; the costs of the attentions, and what they can do."""
    found = tables(read_results(LOG), read_studies())
    attentions = found['attentions'].study.attentions
    return (
        found,
        read_costs(COMPARED),
        {name: facts_of(cfg, name) for name, cfg in attentions.items()},
    )


def update(files: Files) -> None:
    found, costs, facts = read()
    here = on_images()
    main_table = found['attentions']
    top1 = {title: made.top1 for title, made in here.items()}
    made = {
        'cheapest': cheapest(main_table, beside_linear(costs, read_costs(NEWEST)), here, facts),
        'newest': newest(read_costs(NEWEST)),
        'images': correlations(main_table, {**top1, **published()}),
        **probe_tables(found),
        **fashion_tables(COMPARED),
    }
    for page in PAGES:
        files.tables(page, 'table', made.__getitem__)
