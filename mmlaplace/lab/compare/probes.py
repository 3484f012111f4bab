"""Train attentions on small tasks that ask one thing of an attention.

A run takes seconds on one thread, and needs no data. Each attention has the best of four learning
rates. A run that is finished is not repeated. If the command is stopped, the next call goes on.

Examples:
  python -m mmlaplace compare probes --list
  python -m mmlaplace compare probes --tasks recall --attentions Softmax 'Pola*'
  python -m mmlaplace compare probes --tasks recall --options pairs=32  # harder
  python -m mmlaplace compare probes --study recall
  python -m mmlaplace compare probes --quick --attentions Softmax Hydra  # to try it
  python -m mmlaplace compare probes --seeds 0 1 2          # all, which takes hours
  # the table and the heat map, of the runs of docs/probes.md
  python -m mmlaplace compare probes --out docs/logs/probes.jsonl --report work_dirs
"""

from argparse import Namespace
from pathlib import Path
from typing import Dict, Optional, Sequence

import torch
from mmengine.config import DictAction

from ...commands.command_line import ToolParser
from ..probes.report import tables, write_report
from ..probes.results import read_results
from ..probes.study import QUICK, Runner, Study, chosen, label, read_studies
from ..probes.tasks import PROBES, build_probe

PROG = 'python -m mmlaplace compare probes'


def show_list(studies: Dict[str, Study]) -> None:
    """Print the probes and the studies."""
    print('probes:')
    for name, kind in PROBES.module_dict.items():
        probe = build_probe(dict(type=name))
        task = ' '.join((kind.__doc__ or '').split('\n\n')[0].split())
        print(f'  {name}: {task}')
        print(
            f'    chance {probe.chance:.3f}, perfect {probe.perfect:g}, harder with '
            f'{probe.knob!r}; {probe.paper}'
        )
    print('studies:')
    for name, study in studies.items():
        probes = ', '.join(map(label, study.probes))
        print(f'  {name}: {study.title}; {len(study.attentions)} attentions; {probes}')


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command. The exit status is 1 if a run fails."""
    parser = ToolParser(__doc__, prog=PROG)
    studies = read_studies()
    parser.add_argument('--list', action='store_true', help='print the probes and the studies')
    parser.add_argument('--study', choices=list(studies), default='attentions')
    parser.add_argument(
        '--tasks', nargs='+', default=[], metavar='PROBE', help='default: all of the study'
    )
    parser.add_argument(
        '--options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='options of the probes, such as pairs=32 for a harder one',
    )
    parser.add_argument(
        '--attentions',
        nargs='+',
        default=[],
        metavar='NAME',
        help="names or patterns, such as 'Pola*'; default: all",
    )
    parser.add_argument('--seeds', nargs='+', type=int, default=[0])
    parser.add_argument(
        '--rates',
        nargs='+',
        type=float,
        metavar='RATE',
        help="learning rates; default: the study's",
    )
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--quick', action='store_true', help='20 steps, which teach nothing')
    parser.add_argument(
        '--out',
        type=Path,
        default=Path('work_dirs/probes.jsonl'),
        metavar='FILE',
        help='results, one a line; default: %(default)s',
    )
    parser.add_argument(
        '--report',
        type=Path,
        metavar='FOLDER',
        help='write tables and pictures of FILE, and run nothing',
    )
    args = parser.parse_args(arguments)
    if args.out.is_dir():
        parser.error(f'{args.out} is a folder; name a file in it')
    parser.check_place(args.out)
    if min(args.rates or [1]) <= 0:
        parser.error(f'--rates must be positive, got {args.rates}')
    if args.list:
        show_list(studies)
        return 0
    studies = {name: asked(study, args) for name, study in studies.items()}
    with parser.refusing(ValueError):
        study = chosen(studies[args.study], args.tasks, args.attentions)
    if args.options:
        study = study._replace(probes=[{**probe, **args.options} for probe in study.probes])
    if args.report:
        report(parser, args, {args.study: study} if args.options else studies)
        return 0
    torch.set_num_threads(1)
    runner = Runner(study, args.out, lambda line: print(line, flush=True))
    runner.run(args.seeds)
    if args.out.exists():
        print(f'results are in {args.out}')
    if runner.failures:
        parser.exit(1, f'{PROG}: error: {len(runner.failures)} runs failed, see above\n')
    return 0


def asked(study: Study, args: Namespace) -> Study:
    """A study with the rates and the schedule that the user asks for."""
    study = study._replace(rates=args.rates or study.rates, device=args.device)
    if args.quick:
        rates = args.rates or study.rates[:1]
        return study._replace(schedule={**study.schedule, **QUICK}, rates=rates)
    return study


def report(parser: ToolParser, args: Namespace, studies: Dict[str, Study]) -> None:
    """Write the tables and the heat maps of a file of results."""
    if args.report.exists() and not args.report.is_dir():
        parser.error(f'{args.report} is a file; name a folder')
    parser.check_place(args.report)
    results = read_results(args.out)
    if not results:
        parser.error(f'{args.out} has no results; run the command without --report first')
    if not tables(results, studies):
        parser.error(
            f'{args.out} has {len(results)} results, none of the rates and schedule of a study; '
            'give --rates and --quick as in its runs'
        )
    for path in write_report(results, studies, args.report):
        print(f'wrote {path}')
