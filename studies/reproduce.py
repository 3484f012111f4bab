"""Reproduce the tables of the papers: train, test and measure their rows, and compare.

The tables are in studies/tables, each row with its config and its published values. At full scale
a row is trained as its config says, on ImageNet, COCO, ADE20K or Cityscapes in data/. At mini scale
a small copy is trained on data/mini, in minutes on a CPU. Training and testing are the toolboxes'
own. If a detector or segmentor starts from a classifier, the classifier is trained first. Rows with
the same config share a run. --resume continues the runs of a killed call, and does not repeat
finished runs. The result is WORK_DIR/TABLE-SCALE.json, and beside it Markdown and a plot.

Examples:
  python studies/reproduce.py --list
  python studies/reproduce.py --list softpp_table_2
  python tools/dataset_converters/make_mini_datasets.py
  python studies/reproduce.py laplacianformer_bandwidth --scale mini --seeds 0 1 2 --resume
  python studies/reproduce.py laplacianformer_bandwidth --scale mini --report
  python studies/reproduce.py softpp_table_4 softpp-tiny --launcher pytorch --gpus 8 --dry-run
  python studies/reproduce.py softpp_table_4 softpp-tiny --launcher slurm --gpus 8 \\
      --partition gpu --weights softpp_table_3/softpp-tiny=work_dirs/softpp-tiny/epoch_300.pth
"""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Dict, Iterator, List, Tuple

import torch
from mmengine.config import DictAction
from reproduction import gpu_hours
from reproduction.jobs import Training, plan_measurements, plan_run
from reproduction.kept import keep_job, keep_report
from reproduction.launching import LAUNCHERS, Job, Settings, this_machine, versions
from reproduction.paper_tables import (
    KINDS,
    SCALES,
    Row,
    Run,
    Spec,
    Table,
    TableError,
    find_row,
    read_table,
    read_tables,
)
from reproduction.report import (
    markdown,
    new_report,
    plot,
    row_report,
    run_report,
)
from reproduction.running import run_all
from rich import box
from rich import table as rich_table
from rich.console import Console

from mmlaplace.commands.command_line import ToolParser, positive
from mmlaplace.lab.runner import Outcome
from mmlaplace.writing import markdown_table, write_whole


class Plan:
    """All jobs of a call, each once, after those that it needs.

    Attributes:
        jobs: By their keys.
        rows: For each row, its runs with the keys of their jobs by seed, and of measurements.
    """

    def __init__(self, rows: List[Tuple[Table, Row]], seeds: List[int], settings: Settings) -> None:
        self.jobs: Dict[str, Job] = {}
        self.rows: List[Tuple[Row, List[Tuple[Run, Dict[int, str], List[str]]]]] = []
        for table, row in rows:
            runs = []
            for run in row.runs if row.covered else ():
                name = f'{table.name}/{row.name}'
                wanted = seeds if run.trained else ()
                jobs = {seed: plan_run(name, run, seed, settings) for seed in wanted}
                keys = {seed: self.add(job) for seed, job in jobs.items() if job is not None}
                measured = [self.add(job) for job in plan_measurements(name, run, settings)]
                runs.append((run, keys, measured))
            self.rows.append((row, runs or [(run, {}, []) for run in row.runs]))

    def add(self, job: Job) -> str:
        """Add a job after those that it needs; its key."""
        for row, needed in job.needs.items():
            job.needs[row] = self.jobs[self.add(needed)]
        key = f'{job.kind}/{job.key}'
        self.jobs.setdefault(key, job)
        return key

    @property
    def trainings(self) -> List[Training]:
        """Those of its jobs that train or test."""
        return [job for job in self.jobs.values() if isinstance(job, Training)]


def finished(plan: Plan) -> Dict[str, dict]:
    """What the jobs found that are finished, by their keys."""
    found = {key: job.result() for key, job in plan.jobs.items()}
    return {key: result for key, result in found.items() if result is not None}


def make_report(table: Table, plan: Plan, found: Dict[str, Outcome], about: dict) -> dict:
    """Published beside reproduced, of what the jobs found by their keys; others were not run."""
    report = new_report(table, **about)
    for row, runs in plan.rows:
        entries = []
        for run, keys, measured in runs:
            trained = {seed: found[key] for seed, key in keys.items() if key in found}
            figures = [found[key] for key in measured if key in found]
            entries.append(run_report(run, about['scale'], trained, figures))
        report['rows'].append(row_report(row, entries))
    return report


def list_tables(console: Console) -> None:
    """Print all tables with the number of their rows."""
    shown = rich_table.Table('table', 'own rows', 'baselines', 'options', 'what', box=box.SIMPLE)
    shown.columns[0].no_wrap = True
    for table in read_tables():
        counts = [coverage(table, kind) for kind in KINDS]
        cells = [f'{covered} of {rows}' if rows else '' for covered, rows in counts]
        shown.add_row(table.name, *cells, f'{table.title} ({table.place})')
    console.print(shown)
    console.print('--list TABLE tells why no command produces a row', markup=False)


def coverage(table: Table, kind: str) -> Tuple[int, int]:
    """How many rows of a kind one command produces, and how many there are."""
    rows = [row for row in table.rows if row.kind == kind]
    return sum(row.covered for row in rows), len(rows)


def coverage_page() -> str:
    """The papers' tables as Markdown, which docs/reproduce.md has: counts, and what they lack."""
    lines, sums = [], [0] * 4
    for table in read_tables():
        counts = [number for kind in ('own', 'baseline') for number in coverage(table, kind)]
        if not any(counts):
            continue
        sums = [total + number for total, number in zip(sums, counts)]
        link = f'[{table.name}](../studies/tables/{table.name}.yml)'
        lines.append([link, f'{table.title} ({table.place})', *_count_cells(counts)])
    lines.append(['**all**', '', *_count_cells(sums)])
    # Rows that no command produces, those of a table with the same reason together.
    rows: Dict[Tuple[str, str], List[str]] = {}
    for table in read_tables():
        for row in table.rows:
            if not row.covered:
                rows.setdefault((table.name, row.reason), []).append(row.label)
    lacking = [[name, ', '.join(labels), reason] for (name, reason), labels in rows.items()]
    header = ['table', 'what', 'own rows', 'baselines', 'without a command']
    return '\n\n'.join(
        [
            markdown_table(header, lines),
            markdown_table(['table', 'rows without a command', 'why'], lacking),
        ]
    )


def _count_cells(counts: List[int]) -> List[str]:
    own, own_rows, others, rows = counts
    return [f'{own} of {own_rows}', f'{others} of {rows}', str(own_rows - own + rows - others)]


def list_rows(table: Table, console: Console) -> None:
    """Print the rows of a table, with their configs."""
    shown = rich_table.Table(
        'row', 'kind', 'published', 'GPU hours', 'config', 'mini', box=box.SIMPLE
    )
    for column in shown.columns:
        column.overflow = 'fold'  # a name cut short is of no use
    for row in table.rows:
        for run in row.runs:
            values = {name: value for name, value in run.published.items() if value is not None}
            published = ', '.join(f'{name} {value}' for name, value in values.items())
            config = row.reason or (described(run.full) if run.full else run.tool[0])
            name = f'{row.name}, {run.name}' if run.name else row.name
            mini = 'yes' if run.mini or run.tool else ''
            shown.add_row(name, row.kind, published, hours(row, run), config, mini)
    console.print(table.title, f'({table.paper}, {table.place})', table.note, markup=False)
    console.print(shown)
    console.print(gpu_hours.NOTE, markup=False)
    for row in table.rows:
        if row.note:
            console.print(f'{row.name}: {row.note}', markup=False)


def hours(row: Row, run: Run) -> str:
    """Estimated GPU hours of a run, as text."""
    try:
        found = gpu_hours.gpu_hours(run) if row.covered else None
    except ImportError:  # a baseline of a toolbox that is not installed
        found = None
    return '–' if found is None else f'≈ {found:.2g}' if found < 10 else f'≈ {found:.0f}'


def described(spec: Spec) -> str:
    """A config with the options in which it differs, by which rows of one config are told apart."""
    changed = (f'{key.removeprefix("model.")}={value}' for key, value in spec.options.items())
    return ' '.join([spec.config, *changed])


def dry_run(plan: Plan) -> Iterator[str]:
    """What would be done, in this order."""
    for job in plan.jobs.values():
        state = 'finished' if job.result() else 'started' if job.folder.exists() else 'to do'
        yield f'{job.label} ({state}, {job.folder})'
        for command in job.commands():
            yield f'  {shlex.join(command)}'
        if isinstance(job, Training) and job.wrong_batch():
            yield f'  refused: {job.wrong_batch()}'
    for row, _ in plan.rows:
        if not row.covered:
            yield f'{row.name}: {row.reason}'


def parse_weights(given: List[str]) -> Dict[str, Path]:
    """``TABLE/ROW=FILE`` by row."""
    found = {}
    for text in given:
        row, equals, file = text.partition('=')
        if not equals or not Path(file).is_file():
            raise TableError(f'--weights takes TABLE/ROW=FILE with an existing file, got {text!r}')
        find_row(row)
        found[row] = Path(file).resolve()
    return found


def parse_args(parser: ToolParser):
    parser.add_argument('table', nargs='?', help='see --list')
    parser.add_argument('rows', nargs='*', help='of the table; default: all')
    parser.add_argument('--list', action='store_true', help='print tables, or the rows of one')
    parser.add_argument('--markdown', action='store_true', help='print the list as Markdown')
    parser.add_argument('--kind', choices=KINDS, help='only rows of this kind')
    parser.add_argument('--scale', choices=SCALES, default='full', help='default: %(default)s')
    parser.add_argument('--seeds', nargs='+', type=int, default=[0], help='default: 0')
    parser.add_argument('--launcher', choices=LAUNCHERS, default='none', help='of one run')
    parser.add_argument('--gpus', type=positive, default=1, help='of one run at most; default: 1')
    parser.add_argument('--partition', default='', help='of Slurm')
    parser.add_argument('--jobs', type=positive, help='at once; default: as GPUs allow, on a CPU 1')
    parser.add_argument('--resume', action='store_true', help='go on with runs that are there')
    parser.add_argument('--dry-run', action='store_true', help='print what would be done')
    parser.add_argument(
        '--report', action='store_true', help='of what such a call has finished; run nothing'
    )
    parser.add_argument(
        '--keep',
        type=Path,
        metavar='FOLDER',
        help='also add what is finished, and the report, to the .jsonl files of a folder',
    )
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/reproduce'))
    parser.add_argument('--out', type=Path, help='default: WORK_DIR/TABLE-SCALE.json')
    parser.add_argument(
        '--weights',
        nargs='+',
        default=[],
        metavar='TABLE/ROW=FILE',
        help='of rows that are not to be trained',
    )
    parser.add_argument(
        '--cfg-options', nargs='+', action=DictAction, default={}, help='change all configs'
    )
    return parser.parse_args()


def groups_of_gpus(size: int) -> List[str]:
    """GPUs that this process may use, so many in a group, as CUDA_VISIBLE_DEVICES names them."""
    count, visible = torch.cuda.device_count(), os.environ.get('CUDA_VISIBLE_DEVICES')
    names = visible.split(',')[:count] if visible else [str(index) for index in range(count)]
    return [','.join(names[first : first + size]) for first in range(0, count - size + 1, size)]


def why_not_now(plan: Plan) -> str:
    """What stands against running a plan, or ``''``."""
    wrong = list(dict.fromkeys(filter(None, (job.wrong_batch() for job in plan.trainings))))
    if wrong:
        return '\n  '.join(
            [
                'batches do not fit; give more GPUs by --launcher and --gpus, or --cfg-options '
                'optim_wrapper.accumulative_counts, or scale the rates by '
                'auto_scale_lr.enable=True:',
                *wrong,
            ]
        )
    # Where some have their data, they run, and the report has what the others lack.
    missing = [job.missing_data() for job in plan.trainings if job.result() is None]
    return '\n  '.join(sorted(set(missing))) if missing and all(missing) else ''


def check_args(parser: ToolParser, args: argparse.Namespace) -> List[str]:
    """Refuse arguments that do not fit together or this machine; the groups of GPUs."""
    if args.table is None:
        parser.error('name a table; --list prints all tables')
    if args.launcher == 'slurm' and not args.partition:
        parser.error('--launcher slurm needs --partition')
    if args.out is not None and (args.out.suffix != '.json' or args.out.is_dir()):
        parser.error(
            f'--out {args.out}: name a file that ends with .json; files with .md and .png are '
            'written beside it'
        )
    if args.launcher == 'none' and args.gpus > 1:
        parser.error(
            f'--gpus {args.gpus} needs --launcher pytorch or slurm; without a launcher, one GPU '
            'trains'
        )
    devices = groups_of_gpus(args.gpus)
    args.jobs = args.jobs or max(len(devices), 1)
    if args.launcher != 'slurm' and torch.cuda.device_count() and args.jobs > len(devices):
        parser.error(
            f'--jobs {args.jobs} with --gpus {args.gpus} need more than the '
            f'{torch.cuda.device_count()} GPUs here; decrease one of them'
        )
    return devices


def write_report(report: dict, out: Path) -> None:
    """Print the report, and write it as JSON, as Markdown and, if it has curves, as a picture."""
    write_whole(out, json.dumps(report, indent=2, ensure_ascii=False) + '\n')
    text = markdown(report, out.parent)
    write_whole(out.with_suffix('.md'), text)
    drawn = plot(report, out.with_suffix('.png'))
    print(text)
    print('wrote', out, out.with_suffix('.md'), out.with_suffix('.png') if drawn else '')


def main() -> None:
    parser = ToolParser(__doc__)
    args = parse_args(parser)
    # A file or another program gets each row on one line.
    console = Console(width=None if not args.list or sys.stdout.isatty() else 1000)
    if args.list and args.table is None:
        return print(coverage_page()) if args.markdown else list_tables(console)
    devices = check_args(parser, args)
    with parser.refusing(TableError, ImportError):
        table = read_table(args.table)
        if args.list:
            return list_rows(table, console)
        rows = [table.row(name) for name in args.rows] or list(table.rows)
        settings = Settings(
            args.work_dir,
            args.scale,
            args.launcher,
            args.gpus,
            args.partition,
            args.cfg_options,
            parse_weights(args.weights),
            threads=max((os.cpu_count() or 1) // args.jobs, 1),
        )
        chosen = [(table, row) for row in rows if args.kind in (None, row.kind)]
        if not chosen:
            names = ', '.join(row.name for row in rows)
            raise TableError(f'--kind {args.kind}: none of the rows {names} is of this kind')
        plan = Plan(chosen, args.seeds, settings)
        unused = set(settings.weights) - {job.weights.row for job in plan.trainings if job.weights}
        if unused:
            names = ', '.join(sorted(unused))
            raise TableError(f'--weights: no row takes the weights of {names}; leave them out')
    if args.dry_run:
        return print('\n'.join(dry_run(plan)))
    there = [str(job.folder) for job in plan.jobs.values() if job.folder.exists()]
    if there and not (args.resume or args.report):
        parser.error(
            f'{there[0]} is there already; --resume continues it, and another --work-dir starts '
            'from the beginning'
        )
    refused = '' if args.report else why_not_now(plan)
    if refused:
        parser.error(refused)
    devices = [] if args.launcher == 'slurm' else devices
    found = finished(plan) if args.report else run_all(plan.jobs, args.jobs, devices, console)
    report = make_report(
        table,
        plan,
        found,
        dict(
            scale=args.scale,
            seeds=args.seeds,
            call=shlex.join(['python', *sys.argv]),
            versions=versions(),
            machine=this_machine(),
        ),
    )
    write_report(report, args.out or args.work_dir / f'{table.name}-{args.scale}.json')
    if args.keep:
        for key, result in finished(plan).items():
            job = plan.jobs[key]
            keep_job(args.keep, job.folder, job.kind, result)
        keep_report(args.keep, report)
    failed = sorted({plan.jobs[key].label for key, end in found.items() if isinstance(end, str)})
    if failed:
        sys.exit(f'reproduce: {len(failed)} failed: {", ".join(failed)}; the report has their logs')


if __name__ == '__main__':
    main()
