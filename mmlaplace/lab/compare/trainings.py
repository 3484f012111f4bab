"""Train attentions on the same host, data and schedule, with several seeds, and compare them.

Every registered attention is trained on mini data and tested on held-out images. The test images
have the size of training, or are wider views of the same places with 1.5 and 2 times the side. Then
time and memory of each attention are measured, one after the other. Finished runs are kept in the
work directory and not repeated, but costs of another --image-size are measured again. An
interrupted training continues from its last epoch.

  textures   patches of fifteen photographs; the class is the photograph (the default)
  digits     digits on photographs, then crowds of digits of one class
  fashion    Fashion-MNIST, whose seeds differ least

It writes results.json, tables.md and plots into the work directory. All attentions take hours on
two cores.

Examples:
  python tools/dataset_converters/make_mini_datasets.py --tasks textures
  python -m mmlaplace compare trainings                              # all attentions, seeds 0 1 2
  python -m mmlaplace compare trainings --attentions LaplacianAttention XCAttention
  # one training
  python -m mmlaplace compare trainings --attentions LaplacianAttention --seeds 0 --no-cost
  python -m mmlaplace compare trainings --hosts vit swin --seeds 0 --no-cost
  # without the convolution of V
  python -m mmlaplace compare trainings --attentions "PolaAttention, lepe_kernel=0"
  python -m mmlaplace compare trainings --study fashion --no-cost --jobs 1
  python -m mmlaplace compare trainings --study fashion --no-cost --ablations --seeds 0 1 2 3 4
  # the tables and plots of a log
  python -m mmlaplace compare trainings --report docs/logs/compare_attentions.json
  # continue from the runs of docs/attention_comparison.md
  python -m mmlaplace compare trainings --known docs/logs/compare_attentions.json
"""

import json
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Dict, List, Optional, Sequence

import torch
from rich.progress import Progress

from ...analysis.measuring import describe_machine
from ...commands.command_line import ToolParser, at_least, positive, read_json, write_json
from ...commands.script_runs import import_first
from ..runner import Outcome, run_all
from ..side_by_side.attention_jobs import Work, cost_job, modules_of_trainings, training_job
from ..side_by_side.attention_report import write_report
from ..side_by_side.attention_results import read_result
from ..side_by_side.attention_study import (
    ABLATIONS,
    HOSTS,
    SIZES,
    STUDIES,
    candidates,
    missing_data,
)
from ..side_by_side.attention_training import check_options

PROG = 'python -m mmlaplace compare trainings'


def run_and_show(jobs: List[Work], at_once: int) -> List[str]:
    """Run what is not done, so many at once; the failures, which do not stop the others."""
    failures: List[str] = []
    with Progress() as progress:
        finished = sum(job.result() is not None for job in jobs)
        task = progress.add_task('runs', total=len(jobs), completed=finished)

        def ended(job: Work, outcome: Outcome) -> None:
            progress.advance(task)
            if isinstance(outcome, str):
                failures.append(outcome)
                progress.console.print(outcome, markup=False, soft_wrap=True)

        run_all(jobs, at_once, ended=ended)
    return failures


def collect(work_dir: Path, known: dict) -> dict:
    """All results in a work directory, also those of other hosts and studies, and the known."""
    found, costs = (
        list(filter(None, map(read_result, sorted(paths))))
        for paths in (work_dir.rglob('result.json'), work_dir.glob('*/cost/*.json'))
    )
    for kind, made in (('results', found), ('costs', costs)):
        here = [but_sizes(one['settings']) for one in made]
        made += [old for old in known[kind] if but_sizes(old['settings']) not in here]
        made.sort(key=lambda one: json.dumps(one['settings'], sort_keys=True))
    return dict(machine=describe_machine(torch.device('cpu')), results=found, costs=costs)


def but_sizes(settings: dict) -> dict:
    """Settings without the sizes of images, of which a table has the last that were measured."""
    return {name: value for name, value in settings.items() if name != 'sizes'}


def parser_of(names: Sequence[str]) -> ToolParser:
    """The parser of the command, for attentions of these names."""
    parser = ToolParser(__doc__, prog=PROG)
    parser.add_argument(
        '--attentions',
        nargs='+',
        metavar='NAME',
        help='with options after a comma, such as "PolaAttention, power=3"; '
        f'default: all, which are {", ".join(names)}',
    )
    parser.add_argument(
        '--ablations',
        nargs='*',
        choices=list(ABLATIONS),
        metavar='QUESTION',
        help='compare options of one attention instead of all attentions; default: '
        f'all, which are {", ".join(ABLATIONS)}',
    )
    parser.add_argument('--hosts', nargs='+', choices=list(HOSTS), help="default: the study's")
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--study', choices=list(STUDIES), default='textures')
    parser.add_argument(
        '--epochs',
        type=partial(at_least, 2),  # the first warms the rate up
        help="2 or more; default: the study's",
    )
    parser.add_argument('--no-cost', action='store_true', help='leave time and memory out')
    parser.add_argument(
        '--image-size',
        nargs='+',
        type=positive,
        default=list(SIZES),
        metavar='SIDE',
        help='of square images for time and memory; %(default)s',
    )
    parser.add_argument(
        '--known',
        type=Path,
        metavar='JSON',
        help='results.json of a comparison, which is not repeated',
    )
    parser.add_argument(
        '--report',
        type=Path,
        metavar='JSON',
        help='write tables and plots of a log, and run nothing',
    )
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--jobs', type=positive, default=2, help='trainings at once; default: 2')
    parser.add_argument('--data-root', type=Path, default=Path('data/mini'))
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/compare_attentions'))
    return parser


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command. The exit status is 1 if a run fails."""
    names = list(candidates())
    parser = parser_of(names)
    args = parser.parse_args(arguments)
    if args.report:
        show_report(read_json(args.report, 'results', 'costs'), args.work_dir)
        return 0
    args.hosts = list(dict.fromkeys(args.hosts or [STUDIES[args.study].host]))
    args.seeds = list(dict.fromkeys(args.seeds))
    if args.ablations is not None:
        asked = [name for key in args.ablations or ABLATIONS for name in ABLATIONS[key]]
        args.attentions = [*(args.attentions or []), *asked]
    args.attentions = list(dict.fromkeys(args.attentions or names))
    with parser.refusing(ValueError):
        for name in args.attentions:
            check_options(name, args.hosts[0], args.study)
    if missing := missing_data(args.study, args.data_root):
        parser.error(missing)
    known: Dict[str, list] = dict(results=[], costs=[])
    if args.known:
        known = read_json(args.known, *known)
    done = [made['settings'] for made in (*known['results'], *known['costs'])]
    import_first(*modules_of_trainings(args.device))
    trainings = [job for job in training_jobs(args) if job.settings not in done]
    failures = run_and_show(trainings, args.jobs)
    if not args.no_cost:
        costs = [job for job in cost_jobs(args) if job.settings not in done]
        failures += run_and_show(costs, 1)
    content = collect(args.work_dir, known)
    write_json(args.work_dir / 'results.json', content)
    print(f'wrote {args.work_dir / "results.json"}')
    if content['results']:
        show_report(content, args.work_dir)
    if failures:
        parser.exit(1, f'{PROG}: error: {len(failures)} runs failed, see above\n')
    return 0


def training_jobs(args: Namespace) -> List[Work]:
    """The trainings. All attentions have a seed before the next one begins."""
    return [
        training_job(
            name,
            host,
            seed,
            args.study,
            args.epochs,
            args.work_dir / host / args.study / f'{folder_of(name)}_{seed}',
            args.data_root,
            device=args.device,
        )
        for host in args.hosts
        for seed in args.seeds
        for name in args.attentions
    ]


def cost_jobs(args: Namespace) -> List[Work]:
    """Time and memory of each attention in the first host."""
    host = args.hosts[0]
    folder = args.work_dir / host / 'cost'
    return [
        cost_job(
            name,
            host,
            args.image_size,
            folder / f'{folder_of(name)}.json',
            device=args.device,
        )
        for name in args.attentions
    ]


def folder_of(name: str) -> str:
    """The name of a folder for an attention with options."""
    return name.replace(', ', '-')


def show_report(content: dict, work_dir: Path) -> None:
    """Write the tables and plots of results, and print their paths."""
    print('wrote', *write_report(content, work_dir), sep='\n')
