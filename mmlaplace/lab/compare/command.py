"""``python -m mmlaplace compare``: a user's attention beside others, and its two sub-commands."""

import argparse
import hashlib
import inspect
import json
import shlex
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence, Tuple

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch.cuda import is_available as finds_a_gpu

from ...analysis.measuring import describe_machine
from ...commands.command_line import positive, write_json
from ...commands.script_runs import import_first
from ...toolboxes import require_toolbox
from ..lra.storage import make_folder
from ..mini_datasets import pictures as data
from ..probes.study import Runner
from ..runner import Job, Outcome, run_all
from ..side_by_side.attention_file import find_attention, name_and_options
from ..side_by_side.attention_jobs import modules_of_trainings
from ..side_by_side.attention_study import config_of, device_setting
from . import probes, trainings
from .configs import BETWEEN, write_configs
from .contract import (
    FAILED,
    NOT_CHECKED,
    NOT_PROMISED,
    Finding,
    check_contract,
    points_not_promised,
)
from .frames import Candidate, candidate
from .page import Page, write_page
from .plan import Estimate, Plan, at_once, fitting, minutes
from .points import POINTS
from .runs import TASKS, cost_jobs, found, training_jobs

OTHERS = ('Softmax', 'Linear', 'Pola', 'Laplacian')
COMMANDS: Dict[str, Callable[[Sequence[str]], int]] = {
    'trainings': trainings.main,
    'probes': probes.main,
}
PROG = 'python -m mmlaplace compare'
DESCRIPTION = """
Compare an attention of yours with others: first its contract (sizes, batches, half precision,
gradients, export, growth), then small tasks, time and memory, and trainings on small images in
Swin, DeiT and PVT. It ends in one page, and configs for ImageNet and COCO. A second call continues
the first.

Two further commands compare the attentions of this project, or some of them:
  trainings   the same host, data and schedule for each, several seeds, and their costs
  probes      small tasks that ask one thing of an attention

Examples:
  python -m mmlaplace compare my_attention.py:MyAttention --with SOFT Pola Softmax
  python -m mmlaplace compare my_attention.py:MyAttention --contract
  python -m mmlaplace compare my_attention.py:MyAttention --budget 60 --plan
  python -m mmlaplace compare trainings --help
"""
MARKS = {FAILED: 'FAILED', NOT_CHECKED: '  ?', NOT_PROMISED: '  –'}


def main(arguments: Sequence[str]) -> int:
    """Run ``compare`` with the words after it, and return its exit status."""
    if arguments and arguments[0] in COMMANDS:
        return COMMANDS[arguments[0]](arguments[1:])
    args = parser_of_one().parse_args(arguments)
    return run(args)


def parser_of_one() -> argparse.ArgumentParser:
    """The parser of the comparison of one attention with others."""
    parser = argparse.ArgumentParser(
        prog=PROG,
        usage='%(prog)s FILE.py:CLASS [options]\n       %(prog)s trainings [options]\n'
        '       %(prog)s probes [options]',
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        'attention',
        metavar='FILE.py:CLASS',
        help='or package.module:CLASS, or the name of a registered attention',
    )
    parser.add_argument(
        '--with',
        nargs='+',
        dest='others',
        default=list(OTHERS),
        metavar='NAME',
        help='attentions beside it, such as SOFT or "Pola, gate=true"; default: '
        f'{" ".join(OTHERS)}',
    )
    parser.add_argument(
        '--contract',
        action='store_true',
        help='check the contract alone, which takes seconds; the exit status is 1 if a point fails',
    )
    parser.add_argument(
        '--seed',
        type=int,
        default=0,
        help='of the sizes and values that the contract draws; default: %(default)s',
    )
    parser.add_argument(
        '--own-frames',
        action='store_true',
        help='each attention with the layers of its paper around it, instead of the same layers '
        'for all',
    )
    parser.add_argument(
        '--budget',
        type=positive,
        metavar='MINUTES',
        help='fewer seeds, sizes and steps, as fit into so many minutes',
    )
    parser.add_argument(
        '--plan',
        action='store_true',
        help='print what would run and how long it takes, and run nothing; a minute',
    )
    parser.add_argument(
        '--device',
        choices=('cpu', 'cuda'),
        default='cpu',
        help='of small tasks, time, memory and trainings; the contract is checked on the CPU; '
        'default: %(default)s',
    )
    parser.add_argument(
        '--jobs',
        type=positive,
        help='trainings at once, of a thread each; default: the cores, at most 4; 1 with cuda',
    )
    parser.add_argument('--out', type=Path, help='default: work_dirs/compare/CLASS')
    parser.add_argument(
        '--force',
        action='store_true',
        help='start again where there are results of another attention',
    )
    parser.add_argument(
        '--data-root',
        type=Path,
        default=Path('data/mini'),
        help='of the small images, which are made if missing; %(default)s',
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Run the command. The exit status is 1 if a point or a run fails, and 2 for bad input."""
    start, console = time.monotonic(), Console(highlight=False, soft_wrap=True)
    torch.set_num_threads(1)
    args.jobs = args.jobs or at_once(args.device)
    if args.device == 'cuda' and not finds_a_gpu():
        return bad_input('--device cuda: torch finds no GPU; take --device cpu')
    if args.contract and args.plan:
        return bad_input(
            '--plan is of the comparison, which --contract leaves out; give one of them'
        )
    try:
        candidates = chosen([args.attention, *args.others], args.own_frames)
        args.out = args.out or Path('work_dirs/compare') / candidates[0].cfg['type']
        settings = settings_of(candidates[0], args)
        points_not_promised(find_attention(candidates[0].cfg['type']))
        if not args.contract:
            require_toolbox('mmpretrain')
        if not args.contract and not args.plan:
            check_place(args.out, settings, args.force)
    except (ValueError, ImportError) as error:
        return bad_input(str(error))
    if args.plan:
        try:
            make_plan(candidates, args, start, console)
        except ValueError as error:
            return bad_input(str(error))
        return 0
    findings = show_contract(args.attention, console, args.seed)
    failed = [finding.point for finding in findings if finding.state == FAILED]
    if args.contract:
        return 1 if failed else 0
    if {'build', 'any size'} & set(failed):
        return bad_input('it does not run in every backbone; mend the points above', status=1)
    try:
        plan, left_out, seconds = make_plan(candidates, args, start, console)
        textures, make = args.data_root / 'textures', partial(data.fill, task='textures', seed=0)
        if plan.backbones and make_folder(textures, data.settings(0), False, make):
            console.print(f'wrote {textures}')
    except (ValueError, ImportError, FileExistsError) as error:
        return bad_input(str(error))
    if args.force:
        shutil.rmtree(args.out / 'runs', ignore_errors=True)
    write_json(args.out / 'settings.json', settings)
    failures = run_plan(candidates, plan, seconds, args, start, console)
    configs, *_ = [
        write_configs(
            find_attention(one.cfg['type']),
            one.cfg,
            name_and_options(one.name)[0].rpartition(':')[0],
            args.out / 'configs',
            # The others are trained beside it, but not at full size.
            None if one is candidates[0] else BETWEEN,
            one.label,
        )
        for one in candidates
    ]
    machine = describe_machine(torch.device(args.device))
    processor = machine['CPU' if args.device == 'cpu' else 'GPU']
    page = Page(
        candidates,
        findings,
        plan,
        left_out,
        found(candidates, plan, args.out / 'runs', args.data_root, args.device),
        args.own_frames,
        f'{processor}, torch {machine["torch"]}',
        command_line(args),
        configs,
        args.device,
    )
    for path in write_page(page, args.out):
        console.print(f'wrote {path}')
    console.print(
        f'wrote {len(configs)} configs for ImageNet, COCO and between into {configs[0].parent}'
    )
    console.print(f'open {args.out / "page.html"}; it took {minutes(time.monotonic() - start)}')
    for text in failures:
        sys.stderr.write(f'{text}\n')
    return 1 if failed or failures else 0


def bad_input(text: str, status: int = 2) -> int:
    sys.stderr.write(f'{PROG}: error: {text}\n')
    return status


def command_line(args: argparse.Namespace) -> str:
    """The command with what decides its results."""
    words = ['python', '-m', 'mmlaplace', 'compare', args.attention, '--with', *args.others]
    if args.own_frames:
        words.append('--own-frames')
    if args.budget:
        words += ['--budget', str(args.budget)]
    if args.device != 'cpu':
        words += ['--device', args.device]
    return shlex.join(words)


def chosen(names: Sequence[str], own_frames: bool) -> List[Candidate]:
    """The attentions, each once.

    Raises:
        ValueError: For an unknown name, or where no other attention is left.
    """
    candidates: Dict[str, Candidate] = {}
    for name in names:
        one = candidate(name, own_frames)
        candidates.setdefault(one.label, one)
    if len(candidates) < 2:
        raise ValueError('--with names no attention but yours; name another, such as Softmax')
    return list(candidates.values())


def settings_of(one: Candidate, args: argparse.Namespace) -> dict:
    """On which attention the results depend. A changed file makes another one."""
    file = inspect.getsourcefile(find_attention(name_and_options(args.attention)[0]))
    digest = hashlib.sha256(Path(str(file)).read_bytes()).hexdigest()
    return dict(
        attention=one.label,
        own_frames=args.own_frames,
        source=digest,
        **device_setting(args.device),
    )


def check_place(out: Path, settings: dict, force: bool) -> None:
    """Refuse a folder with other results.

    Raises:
        ValueError: If there are other files, or results of another attention without ``--force``.
    """
    written = out / 'settings.json'
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f'{out} is a file; name another place by --out')
    if not written.is_file():
        if any(out.iterdir()):
            raise ValueError(f'{out} has files of something else; name another place by --out')
        return
    if json.loads(written.read_bytes()) != settings and not force:
        raise ValueError(
            f'{out} has results of another attention, of this one before its file changed, or of '
            'another device; --force starts again there, and --out names another place'
        )


def show_contract(name: str, console: Console, seed: int) -> List[Finding]:
    """Check the contract of an attention with its own frame, and print a line for each point."""
    options = config_of(name, landmarks=None)
    cls = find_attention(options.pop('type'))
    console.print(f'contract of {cls.__name__}')
    findings: List[Finding] = []
    for finding in check_contract(cls, options, seed):
        again = bool(findings) and finding[1:3] == (NOT_CHECKED, findings[-1].text)
        findings.append(finding)
        if again:  # the reason is told once
            console.print(f'{"":9}{finding.point}', markup=False)
            continue
        mark = MARKS.get(finding.state, '  ✓')
        text = finding.text or POINTS[finding.point].asks
        console.print(f'{mark:>7}  {finding.point:<11} {text}', markup=False)
        if finding.line:
            console.print(f'{"":21}{finding.line}', markup=False)
    failed = sum(finding.state == FAILED for finding in findings)
    seconds = sum(finding.seconds for finding in findings)
    console.print(f'{failed} of {len(POINTS)} points failed, after {minutes(seconds)}')
    return findings


def make_plan(
    candidates: List[Candidate], args: argparse.Namespace, start: float, console: Console
) -> Tuple[Plan, List[str], Dict[str, float]]:
    """The plan, what it leaves out, and its seconds by part, which are printed."""
    with console.status('measuring one step of each attention') as status:
        estimate = Estimate(
            candidates,
            lambda label: status.update(f'measuring one step of {label}'),
            args.jobs,
            args.device,
        )
    limit = float('inf')
    if args.budget:
        limit = 60 * args.budget - (time.monotonic() - start)
    plan, left_out = fitting(limit, estimate)
    seconds = estimate(plan)
    parts = ', '.join(f'{part} {minutes(of)}' for part, of in seconds.items() if of)
    console.print(f'it takes about {minutes(sum(seconds.values()))}: {parts}')
    for text in plan.contents():
        console.print(f'  {text}')
    for text in left_out:
        console.print(f'  left out: {text}')
    return plan, left_out, seconds


def run_plan(
    candidates: List[Candidate],
    plan: Plan,
    seconds: Dict[str, float],
    args: argparse.Namespace,
    start: float,
    console: Console,
) -> List[str]:
    """Run what is not finished, within the budget; the failures, which do not stop others."""
    failures: List[str] = []
    until = start + 60 * args.budget if args.budget else float('inf')
    columns = TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn()
    folder = args.out / 'runs'
    import_first(*modules_of_trainings(args.device))
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:

        def run_part(part: str, jobs: Sequence[Job], at_once: int) -> None:
            task = progress.add_task(part, total=len(jobs))

            def in_time() -> Iterator[Any]:
                for job in jobs:
                    if job.result() is not None:
                        progress.advance(task)
                    elif time.monotonic() > until:
                        return
                    yield job

            def ended(job: Job, outcome: Outcome) -> None:
                progress.advance(task)
                if isinstance(outcome, str):
                    failures.append(f'{job.label}: {outcome}')

            run_all(in_time(), at_once, ended=ended)

        run_part('time and memory', cost_jobs(candidates, plan, folder, args.device), 1)
        study = plan.study(candidates, args.device)
        runs = len(study.attentions) * len(study.probes) * (len(plan.rates) + plan.seeds - 1)
        task = progress.add_task('small tasks', total=runs)
        tasks = Runner(study, folder / TASKS, lambda line: progress.advance(task))
        # Where a busy machine takes longer than estimated, the trainings keep their share of time.
        both = [seconds[part] for part in ('small tasks', 'training on images')]
        now = time.monotonic()
        tasks.run(range(plan.seeds), now + (until - now) * both[0] / sum(both))
        progress.update(task, completed=runs)
        failures.extend(tasks.failures)
        jobs = training_jobs(candidates, plan, folder, args.data_root, args.device)
        run_part('training on images', jobs, args.jobs)
    return failures
