"""Compare attentions: the same host, data and schedule for each, several seeds, and their costs.

Every registered attention is trained on mini data and tested on held-out images. The test images
have the size of training, or are wider views of the same places with 1.5 and 2 times the side. Then
time and memory of each attention are measured, one after the other. Finished runs are kept in the
work directory and not repeated, but costs of other --sizes are measured again. An interrupted
training continues from its last epoch.

  textures   patches of fifteen photographs; the class is the photograph (the default)
  digits     digits on photographs, then crowds of digits of one class
  fashion    Fashion-MNIST, whose seeds differ least

It writes results.json, tables.md and plots into the work directory. All attentions take hours on
two cores.

Examples:
  python tools/dataset_converters/make_mini_datasets.py --tasks textures
  python tools/analysis_tools/compare_attentions.py                  # all attentions, seeds 0 1 2
  python tools/analysis_tools/compare_attentions.py --attentions LaplacianAttention XCAttention
  python tools/analysis_tools/compare_attentions.py --hosts vit swin --seeds 0 --no-cost
  # without the convolution of V
  python tools/analysis_tools/compare_attentions.py --attentions "PolaAttention, lepe_kernel=0"
  python tools/analysis_tools/compare_attentions.py --study fashion --no-cost --jobs 1
  python tools/analysis_tools/compare_attentions.py --study fashion --no-cost --ablations \\
      --seeds 0 1 2 3 4
  # the tables and plots of a log
  python tools/analysis_tools/compare_attentions.py --report docs/logs/compare_attentions.json
  # continue from the runs of docs/attention_comparison.md
  python tools/analysis_tools/compare_attentions.py --known docs/logs/compare_attentions.json
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import List

import torch
from rich.progress import Progress

from mmlaplace.analysis.measuring import describe_machine
from mmlaplace.commands.command_line import ToolParser, at_least, positive, read_json, write_json
from mmlaplace.commands.script_runs import import_first
from mmlaplace.lab.runner import Outcome, run_all
from mmlaplace.lab.side_by_side.attention_jobs import (
    Script,
    cost_job,
    read_result,
    training_job,
)
from mmlaplace.lab.side_by_side.attention_report import write_report
from mmlaplace.lab.side_by_side.attention_study import (
    ABLATIONS,
    HOSTS,
    SIZES,
    STUDIES,
    candidates,
    config_of,
    missing_data,
)


def run_and_show(jobs: List[Script], at_once: int) -> List[str]:
    """Run what is not done, so many at once; the failures, which do not stop the others."""
    failures: List[str] = []
    with Progress() as progress:
        finished = sum(job.result() is not None for job in jobs)
        task = progress.add_task('runs', total=len(jobs), completed=finished)

        def ended(job: Script, outcome: Outcome) -> None:
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


def main() -> None:
    parser = ToolParser(__doc__)
    names = list(candidates())
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
        '--sizes',
        nargs='+',
        type=positive,
        default=list(SIZES),
        help='of images for time and memory; %(default)s',
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
    parser.add_argument('--jobs', type=positive, default=2, help='trainings at once; default: 2')
    parser.add_argument('--data-root', type=Path, default=Path('data/mini'))
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/compare_attentions'))
    args = parser.parse_args()
    if args.report:
        content = read_json(args.report, 'results', 'costs')
        print('wrote', *write_report(content, args.work_dir), sep='\n')
        return
    args.hosts = list(dict.fromkeys(args.hosts or [STUDIES[args.study].host]))
    args.seeds = list(dict.fromkeys(args.seeds))
    if args.ablations is not None:
        asked = [name for key in args.ablations or ABLATIONS for name in ABLATIONS[key]]
        args.attentions = [*(args.attentions or []), *asked]
    args.attentions = list(dict.fromkeys(args.attentions or names))
    with parser.refusing(ValueError):
        list(map(config_of, args.attentions))
    if missing := missing_data(args.study, args.data_root):
        parser.error(missing)
    known = dict(results=[], costs=[])
    if args.known:
        known = read_json(args.known, *known)
    done = [made['settings'] for made in (*known['results'], *known['costs'])]
    import_first('mmpretrain.models', 'mmlaplace.models')
    folders = {name: name.replace(', ', '-') for name in args.attentions}
    trainings = [
        training_job(
            name,
            host,
            seed,
            args.study,
            args.epochs,
            args.work_dir / host / args.study / f'{folders[name]}_{seed}',
            args.data_root,
        )
        for host in args.hosts
        for seed in args.seeds
        for name in args.attentions
    ]
    failures = run_and_show([job for job in trainings if job.settings not in done], args.jobs)
    if not args.no_cost:
        host = args.hosts[0]
        costs = [
            cost_job(name, host, args.sizes, args.work_dir / host / f'cost/{folder}.json')
            for name, folder in folders.items()
        ]
        failures += run_and_show([job for job in costs if job.settings not in done], 1)
    content = collect(args.work_dir, known)
    write_json(args.work_dir / 'results.json', content)
    print(f'wrote {args.work_dir / "results.json"}')
    if content['results']:
        print('wrote', *write_report(content, args.work_dir), sep='\n')
    if failures:
        sys.exit(f'{parser.prog}: error: {len(failures)} runs failed, see above')


if __name__ == '__main__':
    main()
