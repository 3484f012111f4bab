"""Compare linearized classifiers: softmax on Fashion-MNIST, with other attentions in its place.

For each attention and seed it gives the accuracy after the swap, after a distillation, and of a
training from scratch that takes as long. A finished run is not repeated. The softmax classifiers
are those of compare_attentions.py, in its work directory.

Examples:
  python tools/dataset_converters/make_mini_datasets.py --tasks fashion
  python tools/analysis_tools/compare_attentions.py --study fashion --no-cost \\
      --hosts laplacianformer --epochs 9 --attentions SoftmaxAttention
  python tools/analysis_tools/compare_linearized.py                # ten attentions, seeds 0 1 2
  python tools/analysis_tools/compare_linearized.py --attentions PolaAttention --minutes 60
  # the table and the plot, of the runs of docs/linearize.md
  python tools/analysis_tools/compare_linearized.py --report docs/logs/linearized.json
"""

import sys
import time
from argparse import Namespace
from itertools import takewhile
from pathlib import Path
from typing import List

import torch

from mmlaplace.analysis.measuring import describe_machine
from mmlaplace.commands.command_line import ToolParser, read_json, write_json
from mmlaplace.lab.runner import Outcome
from mmlaplace.lab.runner import run_all as run_jobs
from mmlaplace.lab.side_by_side import linearizing_study as study
from mmlaplace.lab.side_by_side.attention_jobs import read_result
from mmlaplace.lab.side_by_side.attention_study import candidates
from mmlaplace.lab.side_by_side.linearizing_report import write_report


def teacher_of(seed: int, folder: Path) -> Path:
    """The softmax classifier of a seed in the work directory of compare_attentions.py."""
    run = folder / study.HOST / study.STUDY / f'SoftmaxAttention_{seed}'
    return run / study.STUDY / f'epoch_{study.PHASE.epochs}.pth'


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--attentions', nargs='+', metavar='NAME', default=study.ATTENTIONS,
                        choices=[name for name in candidates() if name != 'SoftmaxAttention'],
                        help='default: %(default)s')  # fmt: skip
    parser.add_argument('--seeds', nargs='+', type=int, default=[0, 1, 2])
    parser.add_argument('--epochs', type=float, default=2.0,
                        help='of the training from scratch; default: %(default)s')  # fmt: skip
    parser.add_argument('--minutes', type=float, default=float('inf'),
                        help='start no run after so many minutes')  # fmt: skip
    parser.add_argument('--data-root', type=Path, default=Path('data/mini'))
    parser.add_argument('--classifiers', type=Path, default=Path('work_dirs/compare_attentions'))
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/compare_linearized'))
    parser.add_argument('--report', type=Path, metavar='JSON',
                        help='write the table and the plot of a log, and run nothing')  # fmt: skip
    args = parser.parse_args()
    if not 0 < args.epochs < float('inf'):
        parser.error(f'--epochs must be more than 0, got {args.epochs:g}')
    failures = []
    if not args.report:
        failures = run_all(parser, args)
        args.report = args.work_dir / 'results.json'
    results = read_json(args.report, 'results')['results'] if args.report.exists() else []
    if not results:
        failed = f'{len(failures)} runs failed, see above, and ' if failures else ''
        parser.error(f'{failed}{args.report} has no results; leave --report out to make them')
    for path in write_report(results, args.work_dir):
        print(f'wrote {path}')
    if failures:
        sys.exit(f'{parser.prog}: error: {len(failures)} runs failed, see above')


def run_all(parser: ToolParser, args: Namespace) -> List[str]:
    """Run what is not done, and write all results into one file; the failures."""
    until = time.monotonic() + 60 * args.minutes
    missing = [path for seed in args.seeds
               if not (path := teacher_of(seed, args.classifiers)).is_file()]  # fmt: skip
    if missing:
        parser.error(
            f'there is no {missing[0]}; train it with python tools/analysis_tools/'
            f'compare_attentions.py --study {study.STUDY} --hosts {study.HOST} '
            f'--epochs {study.PHASE.epochs} --attentions SoftmaxAttention --no-cost'
        )
    torch.set_num_threads(1)
    failures = []

    def ended(job: study.Linearizing, outcome: Outcome) -> None:
        text = outcome if isinstance(outcome, str) else outcome['top1']
        print(f'{job.label}: {text}', flush=True)
        if isinstance(outcome, str):
            failures.append(f'{job.label}: {outcome}')

    jobs = (
        study.Linearizing(attention, seed, args.epochs, teacher_of(seed, args.classifiers),
                          args.data_root, args.work_dir)
        for seed in args.seeds
        for attention in args.attentions
    )  # fmt: skip
    run_jobs(takewhile(lambda job: time.monotonic() <= until, jobs), ended=ended)
    found = filter(None, map(read_result, sorted(args.work_dir.glob('*/result.json'))))
    machine = describe_machine(torch.device('cpu'))
    write_json(args.work_dir / 'results.json', dict(machine=machine, results=list(found)))
    return failures


if __name__ == '__main__':
    main()
