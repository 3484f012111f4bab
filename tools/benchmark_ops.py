"""Time the ops side by side in one process: compiled, reference, and what other libraries offer.

All contenders of a case take turns: a round runs each once, in shuffled order, so that the noise of a
shared machine hits all alike. Two warm-up runs come first; a slow contender sits out of rounds so as
to need about 3 s, with three runs at least. Results are freed after the clock has stopped. On CUDA,
events count the time, launches included. Inputs are contiguous.

  forward      under no_grad
  + backward   forward and the gradients of q and k (or of the matrices) for a fixed random gradient
  x native     median over the median of our compiled op: 2.00 takes twice as long
  G diff/s     B * heads * N * M * d of one forward pass, over the median time, for every contender
               and pass, also for those that multiply rather than subtract
  residual     the largest |I - P X|, in the dtype's own arithmetic

Memory is the peak beyond the inputs and what is returned (the result and the gradients), in percent
of the kernel matrix or the inverse. It is measured in the end, when nothing is timed any more:

  tensors      what torch allocates, exact: by its profiler on a CPU, by its allocator's peak on CUDA.
               It misses the scratch of C++ code and of other libraries; '-' if the result is not
               torch's
  process      CPU under Linux with glibc: growth of the resident memory's peak, the median of three.
               It counts everything, scratch included, but only to some 64 pages per core (0.5 MB on
               two cores), as the Linux kernel counts pages in batches, and not what a library keeps
               from one call to the next

The peak of differences is measured among the contenders by a loop that subtracts, takes the absolute
value and adds, in registers and on all threads; its best rate of all cases counts, against the
native op's median. The op also computes its exponentials in that time. The Gaussian, whose square
and sum are one instruction, has one operation fewer on a CPU and may exceed it.

scikit-learn computes the Laplacian in fp64 and on one thread, and has its own BLAS threads for the
Gaussian. KeOps never forms the matrix, so its time is that of the product with the keys as values,
and so is that of scaled_dot_product_attention.

Examples:
  python tools/benchmark_ops.py                                    # a few minutes on a CPU
  python tools/benchmark_ops.py --device cuda --train-step --plot work_dirs/benchmark_ops.png
  python tools/benchmark_ops.py --ops kernels --shapes 8x1024x49x32 --dtype bfloat16 --force
"""

import argparse
import ctypes
import importlib.util
import json
import os
import platform
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple
from unittest import mock

os.environ.setdefault('KINETO_LOG_LEVEL', '5')  # a profiler without a GPU is no error

import torch
from mmengine.registry import MODELS
from rich.console import Console
from rich.table import Table
from torch import Tensor

import mmlaplace.models  # noqa: F401  registers the backbone
from mmlaplace.ops import (
    _native,
    cholesky_inverse,
    gaussian_kernel,
    inverse_residual,
    laplacian_kernel,
    newton_schulz_inverse,
)

Shape = Tuple[int, ...]
KERNELS = {'laplacian_kernel': laplacian_kernel, 'gaussian_kernel': gaussian_kernel}
KERNEL_SHAPES = ((16, 3136, 49, 32), (2, 16384, 256, 32), (16, 3136, 49, 64))
INVERSE_SHAPES = ((64, 49), (64, 100), (16, 196))
SWEEP = ((16, 49, 32), (49, 196, 784, 3136, 12544))  # B * heads, M, d and the N of the plot
STEPS, RIDGE = 20, 1e-2
BUDGET = 3.0  # seconds per contender and pass
PEAK = 'peak of differences'


@dataclass
class Contender:
    """One way to compute a case."""

    name: str
    forward: Callable[..., Tensor]  # of the case's inputs
    why_not: Optional[str] = None  # why it cannot run here
    differentiable: bool = True


@dataclass
class Case:
    """What is computed, on which inputs, and by whom."""

    op: str
    shape: Shape
    inputs: Tuple[Tensor, ...]
    contenders: List[Contender]
    result_bytes: int
    note: str = ''

    @property
    def title(self) -> str:
        axes = 'B*heads, N, M, d' if self.op in KERNELS else 'batch, m'
        dtype = str(self.inputs[0].dtype).replace('torch.', '')
        return f'{self.op}: ({axes}) = {self.shape}, {dtype}{self.note}'


def scale_of(op: str, dims: int) -> float:
    """The scales of the attentions."""
    return 4.0 if op == 'laplacian_kernel' else dims**0.25


def kernel_case(op: str, shape: Shape, device: torch.device, dtype: torch.dtype) -> Case:
    """A kernel of random queries and keys."""
    batch_heads, queries, keys, dims = shape
    q = torch.randn(1, batch_heads, queries, dims).to(device, dtype)
    k = torch.randn(1, batch_heads, keys, dims).to(device, dtype)
    scale, kernel = scale_of(op, dims), KERNELS[op]
    halves = None if dtype in (torch.float32, torch.float64) else f'takes no {dtype}'
    not_cpu = None if device.type == 'cpu' else 'CPU only'
    contenders = [
        Contender(
            'native',
            lambda q, k: kernel(q, k, scale, backend='native'),
            _native.why_not(op, device.type),
        ),
        Contender('reference', lambda q, k: kernel(q, k, scale, backend='reference')),
        Contender(
            'scikit-learn',
            lambda q, k: by_sklearn(op, q, k),
            not_cpu or halves or missing('sklearn'),
            differentiable=False,
        ),
        Contender(
            'KeOps, times values', lambda q, k: by_keops(op, q, k), halves or missing('pykeops')
        ),
        Contender('q @ k.T, a lower bound', lambda q, k: q @ k.transpose(-2, -1)),
    ]
    if op == 'laplacian_kernel':
        cdist = Contender(
            'exp(-cdist / scale)', lambda q, k: torch.exp(-torch.cdist(q, k, p=1) / scale), halves
        )
        contenders.insert(2, cdist)
    if device.type == 'cuda':
        attention = torch.nn.functional.scaled_dot_product_attention
        contenders.append(Contender('softmax attention (sdpa)', lambda q, k: attention(q, k, k)))
    return Case(op, shape, (q, k), contenders, batch_heads * queries * keys * q.element_size())


def missing(module: str) -> Optional[str]:
    """Why an optional library cannot be used."""
    return None if importlib.util.find_spec(module) else f'{module} is not installed'


def by_sklearn(op: str, q: Tensor, k: Tensor) -> Tensor:
    """scikit-learn's kernel, head by head."""
    import numpy as np
    from sklearn.metrics import pairwise

    scale = scale_of(op, q.shape[-1])
    function, gamma = {
        'laplacian_kernel': (pairwise.laplacian_kernel, 1 / scale),
        'gaussian_kernel': (pairwise.rbf_kernel, 1 / (2 * scale**2)),
    }[op]
    query, key = q.numpy(), k.numpy()
    out = np.empty((*query.shape[:3], key.shape[2]), query.dtype)
    for head in range(query.shape[1]):
        out[0, head] = function(query[0, head], key[0, head], gamma=gamma)
    return torch.from_numpy(out)


def by_keops(op: str, q: Tensor, k: Tensor) -> Tensor:
    """The kernel times k, without the matrix."""
    from pykeops.torch import LazyTensor

    scale = scale_of(op, q.shape[-1])
    difference = LazyTensor(q.unsqueeze(3)) - LazyTensor(k.unsqueeze(2))
    if op == 'laplacian_kernel':
        exponent = difference.abs().sum(-1) / -scale
    else:
        exponent = (difference**2).sum(-1) / (-2 * scale**2)
    return exponent.exp() @ k


def inverse_case(shape: Shape, device: torch.device, dtype: torch.dtype) -> Case:
    """Inverses of Laplacian kernels of landmarks that are near-duplicates in groups of seven."""
    batch, size = shape
    centers = 0.3 * torch.randn(batch, -(-size // 7), 1, 32)
    marks = (centers + 0.01 * torch.randn(*centers.shape[:2], 7, 32)).flatten(1, 2)[:, :size]
    mat = torch.exp(-torch.cdist(marks, marks, p=1) / 4)
    eigenvalues = torch.linalg.eigvalsh(mat.double()) + RIDGE
    condition = (eigenvalues[:, -1] / eigenvalues[:, 0]).median().item()
    mat = mat.to(device, dtype)
    identity = torch.eye(size, device=device, dtype=dtype)
    native = _native.why_not('newton_schulz_inverse', device.type)
    contenders = [
        Contender('native', lambda m: newton_schulz_inverse(m, STEPS, RIDGE, backend='native'), native),
        Contender('reference', lambda m: newton_schulz_inverse(m, STEPS, RIDGE, backend='reference')),
        Contender('cholesky_inverse', lambda m: cholesky_inverse(m, RIDGE)),
        Contender(
            'torch.linalg.inv',
            lambda m: torch.linalg.inv(m + RIDGE * identity),
            lu_failure(mat + RIDGE * identity),
        ),
    ]
    result_bytes = mat.numel() * mat.element_size()
    note = f', condition {condition:.0f}'
    return Case('newton_schulz_inverse', shape, (mat,), contenders, result_bytes, note)


def lu_failure(mat: Tensor) -> Optional[str]:
    """Why LU fails, as it does in some builds of oneMKL for batches of large matrices."""
    try:
        torch.linalg.inv(mat)
    except RuntimeError as error:  # LinAlgError is one
        return str(error).splitlines()[0]
    return None


def make_job(contender: Contender, inputs: Sequence[Tensor], backward: bool) -> Callable[[], tuple]:
    """What is timed; it returns all that it made for the caller."""

    def forward() -> tuple:
        with torch.no_grad():
            return (contender.forward(*inputs),)

    if not backward:
        return forward
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    torch.manual_seed(1)
    grad = torch.randn_like(forward()[0])

    def forward_backward() -> tuple:
        out = contender.forward(*leaves)
        return (out.detach(), *torch.autograd.grad(out, leaves, grad))

    return forward_backward


def seconds_of(job: Callable, device: torch.device) -> float:
    """Time of one run."""
    if device.type == 'cpu':
        start = time.perf_counter()
        _kept = job()  # until the clock has stopped
        return time.perf_counter() - start
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    _kept = job()
    stop.record()
    torch.cuda.synchronize()
    return start.elapsed_time(stop) / 1e3


def interleave(
    jobs: Dict[str, Callable], rounds: int, device: torch.device, budget: float = BUDGET
) -> Dict[str, List[float]]:
    """Seconds of every run of each job; those that ``budget`` does not allow are left out evenly."""
    turns = {}
    for name, job in jobs.items():
        job()
        turns[name] = min(rounds, max(3, int(budget / seconds_of(job, device))))
    seconds = {name: [] for name in jobs}
    order = random.Random(0)
    for index in range(rounds):
        for name in order.sample(list(jobs), len(jobs)):
            if index * turns[name] % rounds < turns[name]:
                seconds[name].append(seconds_of(jobs[name], device))
    return seconds


def peak_job(like: Tensor) -> Optional[Callable[[], int]]:
    """A run of at least 5 ms of differences in registers, which returns how many; None without it."""
    if _native.why_not('_difference_peak', like.device.type) is not None:
        return None
    steps, op = 1024, torch.ops.mmlaplace._difference_peak
    while min(seconds_of(lambda: op(like, steps), like.device) for _ in range(2)) < 5e-3:
        steps *= 2
    return lambda: op(like, steps)


def time_case(case: Case, backward: bool, rounds: int) -> List[dict]:
    """A row per contender, for a pass forward or forward and backward."""
    jobs, rows = {}, []
    differences = torch.Size(case.shape).numel() if case.op in KERNELS else 0
    for contender in case.contenders:
        why_not = contender.why_not
        if backward and not contender.differentiable:
            why_not = why_not or 'has no gradient'
        rows.append(
            dict(op=case.op, shape=case.shape, backward=backward, contender=contender.name)
        )
        if why_not:
            rows[-1]['why_not'] = why_not
        else:
            jobs[contender.name] = make_job(contender, case.inputs, backward)
    peak = peak_job(case.inputs[0]) if differences and not backward else None
    if peak is not None:
        jobs[PEAK] = peak
    seconds = interleave(jobs, rounds, case.inputs[0].device)
    if peak is not None:
        rows[0]['peak_rate'] = peak() / min(seconds[PEAK])
    for row, contender in zip(rows, case.contenders):
        if 'why_not' in row:
            continue
        median = statistics.median(seconds[row['contender']])
        row['median_ms'] = median * 1e3
        row['min_ms'] = min(seconds[row['contender']]) * 1e3
        row['runs'] = len(seconds[row['contender']])
        if 'native' in seconds:
            row['ratio_to_native'] = median / statistics.median(seconds['native'])
        if differences:
            row['differences_per_s'] = differences / median
        else:
            inverse = make_job(contender, case.inputs, False)()[0]
            row['residual'] = inverse_residual(case.inputs[0], inverse, RIDGE).max().item()
    return rows


def copy_bandwidth(device: torch.device, size: int = 1 << 29) -> float:
    """Bytes read and written per second by a copy."""
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / min(seconds_of(lambda: target.copy_(source), device) for _ in range(20))


def add_roofline(cases: List[Case], rows: List[dict], device: torch.device) -> None:
    """To the native forward kernels: the share of the peak of differences, and on CUDA the roofline."""
    peak = max((row['peak_rate'] for row in rows if 'peak_rate' in row), default=None)
    bandwidth = copy_bandwidth(device) if device.type == 'cuda' else None
    by_case = {(case.op, case.shape): case for case in cases}
    for row in rows:
        is_native = row['contender'] == 'native' and 'differences_per_s' in row
        if not is_native or row['backward']:
            continue
        bounds, seconds = {}, row['median_ms'] / 1e3
        if peak is not None:
            row['share_of_peak'] = row['differences_per_s'] / peak
            bounds['differences'] = row['differences_per_s'] * seconds / peak
        if bandwidth is not None:
            case = by_case[row['op'], row['shape']]
            moved = case.result_bytes + sum(t.numel() * t.element_size() for t in case.inputs)
            bounds['bandwidth'] = moved / bandwidth
            bound = max(bounds, key=bounds.get)
            row['roofline'] = dict(
                bound=bound, bound_ms=bounds[bound] * 1e3, share=bounds[bound] / seconds,
                peak=peak, bandwidth=bandwidth,
            )  # fmt: skip


def bytes_of(made: tuple) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in made)


def tensor_memory(job: Callable, device: torch.device) -> Optional[int]:
    """Bytes that torch had allocated at the peak, less those returned."""
    if device.type == 'cuda':
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        made = job()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before - bytes_of(made)
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        made = job()
    live, peak = 0, 0
    for event in profiler.kineto_results.events():
        if event.name() == '[memory]':
            live += event.nbytes()
            peak = max(peak, live)
    return peak - bytes_of(made) if peak >= bytes_of(made) else None


def return_freed_memory() -> Optional[ctypes.CDLL]:
    """Have glibc give freed memory back to the system; None where ``process_memory`` cannot run."""
    try:
        Path('/proc/self/clear_refs').write_text('5')
        libc = ctypes.CDLL('libc.so.6')
        libc.mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: blocks from 64 KiB on are mapped one by one
    except (OSError, AttributeError):
        return None
    return libc


def process_memory(job: Callable, libc: ctypes.CDLL) -> int:
    """Bytes by which the peak of the resident memory grew, less those returned."""
    libc.malloc_trim(0)
    Path('/proc/self/clear_refs').write_text('5')  # the peak is now what is resident
    before = status_bytes('VmRSS')
    made = job()
    return max(0, status_bytes('VmHWM') - before - bytes_of(made))


def status_bytes(key: str) -> int:
    lines = Path('/proc/self/status').read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def add_memory(cases: List[Case], rows: List[dict], device: torch.device) -> None:
    """Add to every row its memory, in percent of the result; spoils later timings."""
    libc = return_freed_memory() if device.type == 'cpu' else None
    contenders = {(case.op, case.shape, c.name): (case, c) for case in cases for c in case.contenders}
    for row in rows:
        if 'why_not' in row:
            continue
        case, contender = contenders[row['op'], row['shape'], row['contender']]
        job = make_job(contender, case.inputs, row['backward'])
        job()
        tensors = tensor_memory(job, device)
        row['tensors_percent'] = None if tensors is None else 100 * tensors / case.result_bytes
        if libc is not None:
            process = statistics.median(process_memory(job, libc) for _ in range(3))
            row['process_percent'] = 100 * process / case.result_bytes


def time_train_step(device: torch.device, rounds: int, quick: bool) -> dict:
    """A step of LaplacianFormer-tiny with the native ops and, the same model, with the references."""
    why_not = _native.why_not('laplacian_kernel', device.type)
    if why_not is not None:
        return dict(why_not=why_not)
    model = MODELS.build(dict(type='LaplacianFormer', arch='tiny', out_indices=(3,))).to(device)
    images = torch.randn(*((1, 3, 64, 64) if quick else (8, 3, 224, 224))).to(device)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(images)[-1].float().mean().backward()

    def step_with_references() -> None:
        with mock.patch.object(_native, 'select', lambda name, reference, *_: reference):
            step()

    jobs = dict(native=step, reference=step_with_references)
    seconds = interleave(jobs, rounds, device, budget=10 * BUDGET)
    median_ms = {name: statistics.median(times) * 1e3 for name, times in seconds.items()}
    return dict(
        images=list(images.shape), runs={name: len(times) for name, times in seconds.items()},
        median_ms=median_ms, ratio=median_ms['reference'] / median_ms['native'],
    )  # fmt: skip


def plot_sweep(
    sweep: Tuple[Shape, Shape], device: torch.device, dtype: torch.dtype, rounds: int, path: Path
) -> List[dict]:
    """Time the Laplacian forward over N and draw it."""
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    (batch_heads, keys, dims), all_queries = sweep
    rows = []
    for queries in all_queries:
        case = kernel_case('laplacian_kernel', (batch_heads, queries, keys, dims), device, dtype)
        print('timing for the plot', case.title, flush=True)
        rows += [row for row in time_case(case, False, rounds) if 'why_not' not in row]
    figure, axis = plt.subplots(figsize=(9, 5), layout='constrained')
    for name, marker in zip(dict.fromkeys(row['contender'] for row in rows), 'os^Dvx*'):
        line = [row for row in rows if row['contender'] == name]
        style = dict(linewidth=3, color='black') if name == 'native' else dict(linestyle='--')
        axis.loglog(
            [row['shape'][1] for row in line], [row['median_ms'] for row in line],
            marker=marker, label=name, **style,
        )  # fmt: skip
    axis.set_xticks(all_queries, [str(queries) for queries in all_queries])
    axis.minorticks_off()
    axis.set_xlabel('number of queries N')
    axis.set_ylabel('median time, forward (ms)')
    axis.set_title(
        f'Laplacian kernel, {batch_heads} heads, N queries x {keys} keys, d = {dims}\n'
        f'{dtype}, {device_name(device)}'
    )
    axis.grid(alpha=0.3)
    figure.legend(loc='outside right upper')
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return rows


def device_name(device: torch.device) -> str:
    """The GPU, or the CPU and the threads in use."""
    if device.type == 'cuda':
        return torch.cuda.get_device_name(device)
    info = Path('/proc/cpuinfo')
    lines = info.read_text().splitlines() if info.is_file() else []
    names = [line.split(':')[1].strip() for line in lines if line.startswith('model name')]
    name = names[0] if names else platform.processor() or platform.machine()
    return f'{name}, {torch.get_num_threads()} threads'


def machine_of(device: torch.device) -> Dict[str, str]:
    return {
        'device': device_name(device),
        'torch': torch.__version__,
        'CPU capability': torch.backends.cpu.get_cpu_capability(),
        'native library': _native.WHY_MISSING or 'loaded',
    }


def print_tables(cases: List[Case], rows: List[dict]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 112)
    for case in cases:
        own = [row for row in rows if (row['op'], row['shape']) == (case.op, case.shape)]
        table = Table(title=case.title, title_justify='left')
        last = 'G diff/s' if case.op in KERNELS else 'residual'
        for column in ('pass', 'contender', 'median ms', 'min ms', 'runs', 'x native', last,
                       'tensors', 'process'):  # fmt: skip
            table.add_column(
                column, justify='left' if column in ('pass', 'contender') else 'right', no_wrap=True
            )
        for row in own:
            if 'why_not' in row:
                continue
            if row['contender'] == case.contenders[0].name and row['backward']:
                table.add_section()
            rate = row.get('differences_per_s')
            table.add_row(
                '+ backward' if row['backward'] else 'forward',
                row['contender'],
                f'{row["median_ms"]:.3f}',
                f'{row["min_ms"]:.3f}',
                str(row['runs']),
                formatted(row.get('ratio_to_native'), '.2f'),
                f'{row["residual"]:.1e}' if rate is None else f'{rate / 1e9:.2f}',
                formatted(row.get('tensors_percent'), '.1f', ' %'),
                formatted(row.get('process_percent'), '.1f', ' %'),
            )
        console.print(table)
        reasons = {row['contender']: row['why_not'] for row in own[::-1] if 'why_not' in row}
        for name, reason in reasons.items():
            print(f'  not run: {name}: {reason}')
        for row in own:
            if 'share_of_peak' in row:
                peak = row['differences_per_s'] / row['share_of_peak'] / 1e9
                print(f'  native: {row["share_of_peak"]:.0%} of the peak, {peak:.2f} G diff/s')
            if 'roofline' in row:
                print(
                    '  native: {share:.0%} of the roofline, {bound_ms:.3f} ms by its '
                    '{bound}'.format(**row['roofline'])
                )
        print()


def formatted(value: Optional[float], spec: str, unit: str = '') -> str:
    return '-' if value is None else format(value, spec) + unit


def kernel_shape(text: str) -> Shape:
    shape = tuple(int(axis) for axis in text.split('x'))
    if len(shape) != 4 or min(shape) < 1:
        raise ValueError
    return shape


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--ops', choices=['kernels', 'inverse', 'all'], default='all')
    parser.add_argument('--device', default='cpu', help='cpu (default) or cuda')
    parser.add_argument(
        '--dtype', choices=['float32', 'float64', 'float16', 'bfloat16'], default='float32'
    )
    parser.add_argument(
        '--shapes', nargs='+', type=kernel_shape, metavar='HxNxMxd', default=KERNEL_SHAPES,
        help='B*heads, N, M and d of the kernels, such as 16x3136x49x32',
    )  # fmt: skip
    parser.add_argument('--rounds', type=int, default=30, help='default: %(default)s')
    parser.add_argument('--threads', type=int, help="of torch; default: torch's choice")
    parser.add_argument('--train-step', action='store_true', help='also time LaplacianFormer-tiny')
    parser.add_argument('--plot', type=Path, help='draw the Laplacian over N, as a .png')
    parser.add_argument('--out', type=Path, default=Path('work_dirs/benchmark_ops.json'))
    parser.add_argument('--force', action='store_true', help='replace --out and --plot')
    parser.add_argument('--quick', action='store_true', help='tiny shapes, three rounds: a test')
    args = parser.parse_args()
    for path in filter(None, (args.out, args.plot)):
        if path.exists() and not args.force:
            parser.error(f'{path} is there already; --force replaces it')
    if args.rounds < 1 or (args.threads is not None and args.threads < 1):
        parser.error('--rounds and --threads must be at least 1')
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    if device.type == 'cuda':
        if not torch.cuda.is_available():
            parser.error('--device cuda: torch finds no GPU')
        torch.cuda.set_device(device)
    elif device.type != 'cpu':
        parser.error(f'--device must be cpu or cuda, got {args.device}')
    if args.threads:
        torch.set_num_threads(args.threads)
    shapes, inverse_shapes, sweep, rounds = args.shapes, INVERSE_SHAPES, SWEEP, args.rounds
    if args.quick:
        shapes, inverse_shapes = [(2, 40, 9, 8)], [(3, 9)]
        sweep, rounds = ((2, 9, 8), (16, 32, 64)), 3

    machine = machine_of(device)
    for key, value in machine.items():
        print(f'{key}: {value}')
    torch.manual_seed(0)
    cases = []
    if args.ops != 'inverse':
        cases += [kernel_case(op, shape, device, dtype) for op in KERNELS for shape in shapes]
    if args.ops != 'kernels':
        cases += [inverse_case(shape, device, dtype) for shape in inverse_shapes]
    rows = []
    for index, case in enumerate(cases, 1):
        print(f'timing {index}/{len(cases)}', case.title, flush=True)
        for backward in (False, True):
            rows += time_case(case, backward, rounds)
    results = dict(machine=machine, dtype=args.dtype, rounds=rounds, rows=rows)
    if args.plot is not None:
        results['sweep'] = plot_sweep(sweep, device, dtype, rounds, args.plot)
    if args.train_step:
        print('timing training steps', flush=True)
        results['train_step'] = time_train_step(device, rounds, args.quick)
    add_roofline(cases, rows, device)
    print('measuring memory', flush=True)
    add_memory(cases, rows, device)

    print_tables(cases, rows)
    if args.train_step:
        step = results['train_step']
        print('training step of LaplacianFormer-tiny:', end=' ')
        if 'why_not' in step:
            print('not run:', step['why_not'])
        else:
            print(
                '{native:.1f} ms native, {reference:.1f} ms with the references'.format(
                    **step['median_ms']
                ),
                f'({step["ratio"]:.2f} x), images {step["images"]}, runs {step["runs"]}',
            )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(results, indent=2) + '\n')
    print('wrote', args.out, args.plot or '')


if __name__ == '__main__':
    main()
