"""Measure time and memory of the ops: compiled, reference, and of other libraries.

Examples:
  python tools/benchmarks/benchmark_ops.py                       # some minutes on a CPU
  python tools/benchmarks/benchmark_ops.py --ops kernels --dtype float64 --threads 1
  python tools/benchmarks/benchmark_ops.py --device cuda --train-step \\
      --plot work_dirs/benchmark_ops.png

Sample of the output, on two cores:
  laplacian_kernel, (B*heads, N, M, d) = (16, 3136, 49, 32), torch.float32
   pass        candidate           median ms  min ms  runs  x native  G diff/s  tensors %  process %
   forward     native                  4.335   3.303    30      1.00     18.15        0.0        0.2
   forward     exp(-cdist / scale)    30.549  22.854    30      7.05      2.57      100.0      100.0
   + backward  native                 10.616   9.180    30      1.00      7.41        4.1        4.4
   + backward  exp(-cdist / scale)    99.985  77.962    30      9.42      0.79      400.0      599.9

x native is the ratio of medians to the compiled op of mmlaplace. Memory is in percent of the
result. docs/benchmarks.md describes how each column is measured. The candidates are listed in
mmlaplace/lab/side_by_side/op_candidates.py.
"""

import argparse
import functools
import math
import os
import runpy
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple
from unittest import mock

os.environ.setdefault('KINETO_LOG_LEVEL', '5')  # to the profiler it is an error to have no GPU

import torch
from mmengine.registry import MODELS
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mmlaplace
from mmlaplace.analysis.measuring import (
    BUDGET,
    bytes_of,
    describe_machine,
    interleave,
    model_job,
    process_memory,
    seconds_of,
    tensor_memory,
)
from mmlaplace.commands.command_line import PICTURES, ToolParser, positive, write_json
from mmlaplace.lab.figures import new_figure, save, where
from mmlaplace.lab.side_by_side.op_candidates import (
    INVERSE_SHAPES,
    KERNEL_SHAPES,
    KERNELS,
    LINEAR_SHAPES,
    QUICK_INVERSE_SHAPES,
    QUICK_KERNEL_SHAPES,
    QUICK_LINEAR_SHAPES,
    RIDGE,
    SWEEP_SHAPES,
    Candidate,
    Case,
    inverse_case,
    kernel_case,
    linear_case,
    missing,
)
from mmlaplace.ops import _native, inverse_residual

REPEATED_BYTES = 2**22  # of results that stay in a cache
PEAK_RUN = {'cpu': 2**30, 'cuda': 2**35}  # differences that take some milliseconds
COLUMNS = (
    ('pass', ''),
    ('candidate', ''),
    ('median ms', '.3f'),
    ('min ms', '.3f'),
    ('runs', 'd'),
    ('x native', '.2f'),
    ('G diff/s', '.2f'),
    ('residual', '.1e'),
    ('tensors %', '.1f'),
    ('process %', '.1f'),
)


# A table's row under the names of COLUMNS, and what it was measured of.
Row = Tuple[Case, Candidate, Dict[str, object]]


def make_job(candidate: Candidate, inputs: Tuple[Tensor, ...], backward: bool) -> Callable:
    """What is timed; it returns a tuple of all that the caller gets."""

    def forward() -> tuple:
        with torch.no_grad():
            return (candidate.forward(*inputs),)

    if not backward:
        return forward
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    torch.manual_seed(1)
    grad = torch.randn_like(forward()[0])

    def forward_backward() -> tuple:
        out = candidate.forward(*leaves)
        return (out.detach(), *torch.autograd.grad(out, leaves, grad))

    return forward_backward


@functools.cache
def load_peak(device_type: str) -> Optional[Callable]:
    """The loop that reaches the peak of differences; None, and the reason printed, without it."""
    script = Path(mmlaplace.__file__).parent.parent / 'ops/benchmarks/difference_peak.py'
    try:
        if not script.is_file():
            raise OSError(f'there is no {script}, run the benchmark in a clone of the repository')
        return runpy.run_path(str(script))['load'](with_cuda=device_type == 'cuda')
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f'the peak of differences is not measured: {error}')
        return None


def time_case(case: Case, backward: bool, rounds: int) -> Tuple[List[Row], float]:
    """A row per candidate that can run, and the peak of differences per second (0 if unknown)."""
    device, is_kernel = case.inputs[0].device, case.op in KERNELS
    candidates = [
        candidate
        for candidate in case.candidates
        if candidate.why_not is None and (candidate.differentiable or not backward)
    ]
    jobs = {candidate.name: make_job(candidate, case.inputs, backward) for candidate in candidates}
    per_step, loop = 0, load_peak(device.type) if is_kernel and not backward else None
    if loop is not None:
        like = torch.zeros(1, device=device)
        per_step = loop(like, 1)
        steps = math.ceil(PEAK_RUN[device.type] / per_step)
        jobs['peak'] = lambda: loop(like, steps)
    seconds = interleave(jobs, rounds, device)
    rows = []
    for candidate in candidates:
        times = seconds[candidate.name]
        median = statistics.median(times)
        row = {'pass': '+ backward' if backward else 'forward', 'candidate': candidate.name}
        row.update({'median ms': 1e3 * median, 'min ms': 1e3 * min(times), 'runs': len(times)})
        if 'native' in seconds:
            row['x native'] = median / statistics.median(seconds['native'])
        if is_kernel:
            row['G diff/s'] = math.prod(case.shape) / median / 1e9
            if candidate.name == 'native' and not backward:
                row['repeated G diff/s'] = repeated_rate(case, candidate, 10 * rounds) / 1e9
        elif case.op == 'newton_schulz_inverse':
            with torch.no_grad():
                inverse = candidate.forward(*case.inputs)
            row['residual'] = inverse_residual(*case.inputs, inverse, RIDGE).max().item()
        rows.append((case, candidate, row))
    return rows, per_step * steps / min(seconds['peak']) if per_step else 0.0


def repeated_rate(case: Case, candidate: Candidate, calls: int) -> float:
    """Differences per second of forward calls one right after the other, on some of the queries."""
    q, k = case.inputs
    queries = min(q.size(2), max(1, REPEATED_BYTES * q.size(2) // case.result_bytes))
    job = make_job(candidate, (q[:, :, :queries].contiguous(), k), backward=False)
    times = [seconds_of(job, q.device) for _ in range(3 + calls)][3:]
    return math.prod(case.shape) * queries / q.size(2) / statistics.median(times)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a copy."""
    source = torch.zeros(2**29, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2**30 / min(seconds_of(lambda: target.copy_(source), device) for _ in range(20))


def add_bounds(rows: List[Row], peak: float, bandwidth: float) -> None:
    """How near the native forward kernels come to what the machine can do (0 if unknown)."""
    for case, candidate, row in rows:
        if case.op not in KERNELS or candidate.name != 'native' or row['pass'] != 'forward':
            continue
        bounds_ms = {}
        if peak:
            bounds_ms['differences'] = 1e3 * math.prod(case.shape) / peak
            row['share of peak'] = bounds_ms['differences'] / row['median ms']
            row['share of peak, repeated'] = 1e9 * row['repeated G diff/s'] / peak
        if bandwidth:
            bounds_ms['bandwidth'] = 1e3 * (case.result_bytes + bytes_of(case.inputs)) / bandwidth
            row['bounds ms'] = bounds_ms
            row['share of roofline'] = max(bounds_ms.values()) / row['median ms']


def add_memory(rows: List[Row], device: torch.device) -> None:
    """Memory, in percent of the result."""
    for case, candidate, row in rows:
        job = make_job(candidate, case.inputs, row['pass'] != 'forward')
        job()
        memory = {'tensors %': tensor_memory(job, device)}
        if device.type == 'cpu':
            runs = [process_memory(job) for _ in range(3)]
            memory['process %'] = None if None in runs else statistics.median(runs)
        for column, count in memory.items():
            row[column] = None if count is None else 100 * count / case.result_bytes


def time_train_step(device: torch.device, rounds: int, quick: bool) -> dict:
    """A step of LaplacianFormer-tiny by the native ops, and of the same model by the references."""
    why_not = _native.why_not('laplacian_kernel', device.type)
    if why_not is not None:
        return {'why_not': why_not}
    model = MODELS.build(dict(type='LaplacianFormer', arch='tiny', out_indices=(3,))).to(device)
    images = torch.randn((1, 3, 64, 64) if quick else (8, 3, 224, 224), device=device)

    step = model_job(model, images, train=True)

    def step_by_references() -> None:
        with mock.patch.object(_native, 'select', lambda name, reference, *_: reference):
            step()

    jobs = {'native': step, 'reference': step_by_references}
    seconds = interleave(jobs, rounds, device, budget=10 * BUDGET)
    native, reference = (statistics.median(seconds[name]) for name in jobs)
    runs = [len(times) for times in seconds.values()]
    return {
        'images': list(images.shape),
        'native ms': 1e3 * native,
        'reference ms': 1e3 * reference,
        'runs': runs,
        'reference / native': reference / native,
    }


def plot(rows: List[Row], title: str, path: Path) -> None:
    """Draw the median time over N."""
    figure, axis = new_figure(1, 1, (9, 5))
    for name, marker in zip(dict.fromkeys(row['candidate'] for _, _, row in rows), 'os^Dvx*'):
        line = [(case.shape[1], row['median ms']) for case, c, row in rows if c.name == name]
        style = dict(lw=3, color='black', zorder=3) if name == 'native' else dict(ls='--')
        axis.loglog(*zip(*line), marker=marker, label=name, **style)
    queries = sorted({case.shape[1] for case, _, _ in rows})
    axis.set_xticks(queries, [str(number) for number in queries])
    axis.xaxis.minorticks_off()
    axis.set(xlabel='number of queries N', ylabel='forward, median time (ms)', title=title)
    axis.grid(alpha=0.3, which='both')
    figure.legend(loc='outside right upper')
    save(figure, path, dpi=120)


def print_table(case: Case, rows: List[dict]) -> None:
    columns = [column for column in COLUMNS if any(column[0] in row for row in rows)]
    table = Table(title=case.title, title_justify='left')
    for index, (name, _) in enumerate(columns):
        table.add_column(name, justify='left' if index < 2 else 'right', no_wrap=True)
    for row in rows:
        values = [(row.get(name), spec) for name, spec in columns]
        table.add_row(*('-' if value is None else format(value, spec) for value, spec in values))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    for row in rows:
        for key in ('share of peak', 'share of peak, repeated', 'share of roofline'):
            if key in row:
                print(f'  native, forward: {row[key]:.1%}, {key}')
    for name, reason in reasons_of(case).items():
        print(f'  not run: {name}: {reason}')


def reasons_of(case: Case) -> Dict[str, str]:
    """Why candidates are missing in the table."""
    return {
        candidate.name: candidate.why_not or 'has no gradient, forward only'
        for candidate in case.candidates
        if candidate.why_not or not candidate.differentiable
    }


def parse_args(parser: ToolParser) -> argparse.Namespace:
    """The arguments, as far as they can be carried out here."""
    dtypes = ('float32', 'float64', 'float16', 'bfloat16')
    parser.add_argument('--ops', choices=('kernels', 'inverse', 'linear', 'all'), default='all')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--dtype', choices=dtypes, default='float32')
    parser.add_argument('--rounds', type=positive, default=30, help='default: %(default)s')
    parser.add_argument('--threads', type=positive, help='on the CPU; default: as torch chooses')
    parser.add_argument('--train-step', action='store_true', help='time LaplacianFormer-tiny too')
    parser.add_output('--plot', suffixes=PICTURES, help='draw the Laplacian over N')
    parser.add_output('--out', default=Path('work_dirs/benchmark_ops.json'))
    parser.add_argument('--quick', action='store_true', help='tiny shapes, 3 rounds: only a test')
    args = parser.parse_args()
    if args.plot is not None and missing('matplotlib'):
        parser.error(f'--plot: {missing("matplotlib")}')
    return args


def print_result(result: dict, cases: List[Case], rows: list) -> None:
    """The tables of the cases, and the bounds of the machine."""
    for case in cases:
        print_table(case, [row for owner, _, row in rows if owner is case])
    for key in ('peak G diff/s', 'copy GB/s'):
        if result[key] is not None:
            print(f'{key}: {result[key]:.1f}')
    for key, value in result.get('train step', {}).items():
        print(f'train step, {key}:', f'{value:.2f}' if isinstance(value, float) else value)


def main() -> None:
    args = parse_args(ToolParser(__doc__))
    if args.threads:
        torch.set_num_threads(args.threads)
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    rounds = 3 if args.quick else args.rounds
    kernel_shapes = QUICK_KERNEL_SHAPES if args.quick else KERNEL_SHAPES
    sweep_shapes = QUICK_KERNEL_SHAPES if args.quick else SWEEP_SHAPES
    inverse_shapes = QUICK_INVERSE_SHAPES if args.quick else INVERSE_SHAPES

    machine = describe_machine(device)
    print('\n'.join(f'{key}: {value}' for key, value in machine.items()))
    torch.manual_seed(0)
    cases, rows, sweep, peak = [], [], [], 0.0
    if args.ops in ('kernels', 'all'):
        cases += [kernel_case(op, s, device, dtype) for op in KERNELS for s in kernel_shapes]
    if args.ops in ('inverse', 'all'):
        cases += [inverse_case(shape, device, dtype) for shape in inverse_shapes]
    if args.ops in ('linear', 'all'):
        shapes = QUICK_LINEAR_SHAPES if args.quick else LINEAR_SHAPES
        cases += [linear_case(shape, device, dtype) for shape in shapes]
    for index, case in enumerate(cases, 1):
        print(f'timing {index} of {len(cases)}: {case.title}', flush=True)
        for backward in (False, True):
            timed, reached = time_case(case, backward, rounds)
            rows += timed
            peak = max(peak, reached)
    if args.plot is not None:
        for shape in sweep_shapes:
            case = kernel_case('laplacian_kernel', shape, device, dtype)
            print(f'timing for the plot: {case.title}', flush=True)
            sweep += time_case(case, False, rounds)[0]
        heads, _, keys, dims = sweep_shapes[0]
        title = f'Laplacian kernel, {heads} heads, N queries x {keys} keys, d = {dims}'
        plot(sweep, f'{title}\n{args.dtype}, {where(machine)}', args.plot)
    result = {'machine': machine, 'dtype': args.dtype, 'rounds': rounds}
    if args.train_step:
        print('timing training steps', flush=True)
        result['train step'] = time_train_step(device, rounds, args.quick)
    bandwidth = copy_bandwidth(device) if device.type == 'cuda' else 0.0
    if dtype == torch.float64:  # the loop is one of fp32
        peak = 0.0
    add_bounds(rows, peak, bandwidth)
    print('measuring memory', flush=True)
    add_memory(rows, device)

    result.update({'peak G diff/s': peak / 1e9 or None, 'copy GB/s': bandwidth / 1e9 or None})
    for name, measured in (('rows', rows), ('plot', sweep)):
        result[name] = [{'op': c.op, 'shape': c.shape, **row} for c, _, row in measured]
    result['not run'] = [{'op': case.op, 'shape': case.shape, **reasons_of(case)} for case in cases]
    print_result(result, cases, rows)
    write_json(args.out, result)
    print('wrote', *filter(None, (args.out, args.plot)))


if __name__ == '__main__':
    main()
