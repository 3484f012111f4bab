"""Time the ops side by side in one process: compiled, reference, and what other libraries offer.

The contenders of a case take turns in rounds, each once and in shuffled order, so that the noise of
a shared machine hits all alike. Two warm-ups come first; a slow contender sits out of some rounds,
so as to need about 3 s, but runs three times at least. Results are freed after the clock has
stopped. On CUDA, events count the time, launches included. Inputs are contiguous; our ops are the
public functions, with their checks.

  forward      without gradients
  + backward   forward, and the gradients of all inputs for a fixed random gradient
  x native     median over the median of our compiled op: 2.00 takes twice as long
  G diff/s     B * heads * N * M * d over the median time, for every contender and pass alike, also
               for those that multiply rather than subtract
  residual     the largest |I - P X|

Memory is the peak beyond the inputs and what is returned (the result, and the gradients), in
percent of the kernel matrix or the inverse. It is measured after all timing:

  tensors %    what torch allocates, exact: by its profiler on a CPU, as its allocator's peak on
               CUDA. Scratch of C++ code and other libraries is not in it; '-' if even the result is
               not torch's
  process %    by how much the peak of the resident memory grew, the median of three; on a CPU
               under Linux with glibc. All scratch is in it, and also what glibc has been given back
               but keeps; not what a library keeps from call to call. Linux counts only to some 64
               pages a core (0.5 MB on two), which for small results is more than they are

The peak of differences is what a loop reaches that subtracts, takes the absolute value and adds, in
fp32 registers and on all threads. It takes turns with the contenders; its best rate of all cases
stands against the median of the native op, which also computes exponentials: in the rounds, where
the others have emptied the caches and memory is new, and in repeated calls, one right after the
other, on so many of the queries that the result has 4 MB. A Gaussian needs one operation less on a
CPU, and may exceed the peak. The roofline on CUDA is the larger of two times: for the
differences at that peak, and for inputs and output at the bandwidth of a copy.

scikit-learn runs head by head, the Laplacian in fp64 and on one thread. KeOps never forms the
matrix: like softmax attention, it is timed with the product with values, for which the keys stand.

Examples:
  python tools/benchmarks/benchmark_ops.py                                    # some minutes on a CPU
  python tools/benchmarks/benchmark_ops.py --device cuda --train-step --plot work_dirs/benchmark_ops.png
"""

import ctypes
import importlib.util
import math
import os
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple
from unittest import mock

os.environ.setdefault('KINETO_LOG_LEVEL', '5')  # to the profiler it is an error to have no GPU

import torch
from mmengine.registry import MODELS
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mmlaplace.models.attentions.laplacian import KERNELS as ATTENTION_KERNELS
from mmlaplace.ops import _native, cholesky_inverse, inverse_residual, newton_schulz_inverse
from mmlaplace.utils.command_line import ToolParser, write_json
from mmlaplace.utils.measuring import (
    BUDGET,
    bytes_of,
    describe_machine,
    interleave,
    model_job,
    process_memory,
    seconds_of,
    tensor_memory,
)

# Each op with its scale for head dims d, as the attention has it.
KERNELS = {op.__name__: (op, scale_of) for op, scale_of in ATTENTION_KERNELS.values()}
KERNEL_SHAPES = ((16, 3136, 49, 32), (2, 16384, 256, 32), (16, 3136, 49, 64))
SWEEP_SHAPES = tuple((16, queries, 49, 32) for queries in (49, 196, 784, 3136, 12544))
INVERSE_SHAPES = ((64, 49), (64, 100), (16, 196))
QUICK_KERNEL_SHAPES, QUICK_INVERSE_SHAPES = ((2, 40, 9, 8), (2, 80, 9, 8)), ((3, 9),)
RIDGE = 1e-2
REPEATED_BYTES = 2**22  # of results that stay in a cache
PEAK_RUN = {'cpu': 2**30, 'cuda': 2**35}  # differences that take some milliseconds
COLUMNS = (
    ('pass', ''), ('contender', ''), ('median ms', '.3f'), ('min ms', '.3f'), ('runs', 'd'),
    ('x native', '.2f'), ('G diff/s', '.2f'), ('residual', '.1e'), ('tensors %', '.1f'),
    ('process %', '.1f'),
)  # fmt: skip


@dataclass
class Contender:
    """One way to compute a case."""

    name: str
    forward: Callable[..., Tensor]  # of the case's inputs
    why_not: Optional[str] = None  # why it cannot run here
    differentiable: bool = True


@dataclass
class Case:
    """What is computed, of which inputs, and by whom."""

    op: str
    shape: Tuple[int, ...]
    inputs: Tuple[Tensor, ...]
    result_bytes: int
    contenders: List[Contender]
    note: str = ''

    @property
    def title(self) -> str:
        axes = 'B*heads, N, M, d' if self.op in KERNELS else 'batch, m'
        return f'{self.op}, ({axes}) = {self.shape}, {self.inputs[0].dtype}{self.note}'


# A table's row under the names of COLUMNS, and what it was measured of.
Row = Tuple[Case, Contender, Dict[str, object]]


def kernel_case(op: str, shape: tuple, device: torch.device, dtype: torch.dtype) -> Case:
    """A kernel of random queries and keys."""
    batch_heads, queries, keys, dims = shape
    q = torch.randn(1, batch_heads, queries, dims).to(device, dtype)
    k = torch.randn(1, batch_heads, keys, dims).to(device, dtype)
    kernel, scale_of = KERNELS[op]
    scale, on_cpu = scale_of(dims), device.type == 'cpu'
    halves = f'takes no {dtype}' if dtype in (torch.float16, torch.bfloat16) else None
    sklearn = halves or (missing('sklearn') if on_cpu else 'runs on CPUs only')
    native = _native.why_not(op, device.type)
    contenders = [
        Contender('native', partial(kernel, scale=scale, backend='native'), native),
        Contender('reference', partial(kernel, scale=scale, backend='reference')),
        Contender('scikit-learn', partial(by_sklearn, op, scale), sklearn, differentiable=False),
        Contender('KeOps, with values', partial(by_keops, op, scale), halves or missing('pykeops')),
        Contender('q @ k.T, a lower bound', lambda q, k: q @ k.transpose(-2, -1)),
    ]
    if op == 'laplacian_kernel':
        by_cdist = lambda q, k: torch.exp(-torch.cdist(q, k, p=1) / scale)  # noqa: E731
        contenders.insert(2, Contender('exp(-cdist / scale)', by_cdist, halves))
    if not on_cpu:
        attention = torch.nn.functional.scaled_dot_product_attention
        contenders.append(Contender('softmax attention', lambda q, k: attention(q, k, k)))
    return Case(op, shape, (q, k), batch_heads * queries * keys * q.element_size(), contenders)


def missing(module: str) -> Optional[str]:
    """Why a library cannot be used."""
    return None if importlib.util.find_spec(module) else f'{module} is not installed'


def by_sklearn(op: str, scale: float, q: Tensor, k: Tensor) -> Tensor:
    """The kernel by scikit-learn."""
    import numpy as np
    from sklearn.metrics import pairwise

    if op == 'laplacian_kernel':
        kernel = partial(pairwise.laplacian_kernel, gamma=1 / scale)
    else:
        kernel = partial(pairwise.rbf_kernel, gamma=1 / (2 * scale**2))
    query, key = q[0].numpy(), k[0].numpy()
    out = np.empty((*query.shape[:2], key.shape[1]), query.dtype)
    for head in range(len(query)):
        out[head] = kernel(query[head], key[head])
    return torch.from_numpy(out)


def by_keops(op: str, scale: float, q: Tensor, k: Tensor) -> Tensor:
    """The kernel times k by KeOps."""
    from pykeops.torch import LazyTensor

    difference = LazyTensor(q.unsqueeze(3)) - LazyTensor(k.unsqueeze(2))
    if op == 'laplacian_kernel':
        return (difference.abs().sum(-1) / -scale).exp() @ k
    return ((difference**2).sum(-1) / (-2 * scale**2)).exp() @ k


def inverse_case(shape: tuple, device: torch.device, dtype: torch.dtype) -> Case:
    """Inverses of Laplacian kernels of landmarks that are near-duplicates, seven by seven."""
    batch, size = shape
    centers = 0.3 * torch.randn(batch, math.ceil(size / 7), 1, 32)
    marks = (centers + 0.01 * torch.randn(*centers.shape[:2], 7, 32)).flatten(1, 2)[:, :size]
    mat = torch.exp(-torch.cdist(marks, marks, p=1) / 4)
    eigenvalues = torch.linalg.eigvalsh(mat.double()) + RIDGE
    note = f', condition {(eigenvalues[:, -1] / eigenvalues[:, 0]).median():.0f}'
    mat = mat.to(device, dtype)
    ridge = RIDGE * torch.eye(size, device=device, dtype=dtype)
    newton_schulz = partial(newton_schulz_inverse, num_iters=20, ridge=RIDGE)
    native = _native.why_not('newton_schulz_inverse', device.type)
    contenders = [
        Contender('native', partial(newton_schulz, backend='native'), native),
        Contender('reference', partial(newton_schulz, backend='reference')),
        Contender('cholesky_inverse', partial(cholesky_inverse, ridge=RIDGE)),
        Contender('linalg.inv', lambda m: torch.linalg.inv(m + ridge), lu_failure(mat + ridge)),
    ]
    return Case('newton_schulz_inverse', shape, (mat,), bytes_of((mat,)), contenders, note)


def lu_failure(mat: Tensor) -> Optional[str]:
    """Why LU fails, as it does in some builds of oneMKL for batches of large matrices."""
    sys.stdout.flush()
    stdout, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # oneMKL prints hundreds of lines, from C
    try:
        torch.linalg.inv(mat)
    except RuntimeError as error:  # torch.linalg.LinAlgError is one
        return str(error).splitlines()[0]
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(nowhere)
    return None


def make_job(contender: Contender, inputs: Tuple[Tensor, ...], backward: bool) -> Callable:
    """What is timed; it returns a tuple of all that the caller gets."""

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


def time_case(case: Case, backward: bool, rounds: int) -> Tuple[List[Row], float]:
    """A row per contender that can run, and the peak of differences per second (0 if unknown)."""
    device, is_kernel = case.inputs[0].device, case.op in KERNELS
    contenders = [
        contender
        for contender in case.contenders
        if contender.why_not is None and (contender.differentiable or not backward)
    ]
    jobs = {contender.name: make_job(contender, case.inputs, backward) for contender in contenders}
    per_step = 0
    if is_kernel and not backward and _native.why_not('_difference_peak', device.type) is None:
        like, loop = torch.zeros(1, device=device), torch.ops.mmlaplace._difference_peak
        per_step = loop(like, 1)
        steps = math.ceil(PEAK_RUN[device.type] / per_step)
        jobs['peak'] = lambda: loop(like, steps)
    seconds = interleave(jobs, rounds, device)
    rows = []
    for contender in contenders:
        times = seconds[contender.name]
        median = statistics.median(times)
        row = {'pass': '+ backward' if backward else 'forward', 'contender': contender.name}
        row.update({'median ms': 1e3 * median, 'min ms': 1e3 * min(times), 'runs': len(times)})
        if 'native' in seconds:
            row['x native'] = median / statistics.median(seconds['native'])
        if is_kernel:
            row['G diff/s'] = math.prod(case.shape) / median / 1e9
            if contender.name == 'native' and not backward:
                row['repeated G diff/s'] = repeated_rate(case, contender, 10 * rounds) / 1e9
        else:
            with torch.no_grad():
                inverse = contender.forward(*case.inputs)
            row['residual'] = inverse_residual(*case.inputs, inverse, RIDGE).max().item()
        rows.append((case, contender, row))
    return rows, per_step * steps / min(seconds['peak']) if per_step else 0.0


def repeated_rate(case: Case, contender: Contender, calls: int) -> float:
    """Differences per second of forward calls one right after the other, on some of the queries."""
    q, k = case.inputs
    queries = min(q.size(2), max(1, REPEATED_BYTES * q.size(2) // case.result_bytes))
    job = make_job(contender, (q[:, :, :queries].contiguous(), k), backward=False)
    times = [seconds_of(job, q.device) for _ in range(3 + calls)][3:]
    return math.prod(case.shape) * queries / q.size(2) / statistics.median(times)


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a copy."""
    source = torch.zeros(2**29, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2**30 / min(seconds_of(lambda: target.copy_(source), device) for _ in range(20))


def add_bounds(rows: List[Row], peak: float, bandwidth: float) -> None:
    """How near the native forward kernels come to what the machine can do (0 if unknown)."""
    for case, contender, row in rows:
        if case.op not in KERNELS or contender.name != 'native' or row['pass'] != 'forward':
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
    for case, contender, row in rows:
        job = make_job(contender, case.inputs, row['pass'] != 'forward')
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
        'images': list(images.shape), 'native ms': 1e3 * native, 'reference ms': 1e3 * reference,
        'runs': runs, 'reference / native': reference / native,
    }  # fmt: skip


def plot(rows: List[Row], title: str, path: Path) -> None:
    """Draw the median time over N."""
    import matplotlib

    matplotlib.use('Agg')
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 5), layout='constrained')
    for name, marker in zip(dict.fromkeys(row['contender'] for _, _, row in rows), 'os^Dvx*'):
        line = [(case.shape[1], row['median ms']) for case, c, row in rows if c.name == name]
        style = dict(lw=3, color='black', zorder=3) if name == 'native' else dict(ls='--')
        axis.loglog(*zip(*line), marker=marker, label=name, **style)
    queries = sorted({case.shape[1] for case, _, _ in rows})
    axis.set_xticks(queries, [str(number) for number in queries])
    axis.xaxis.minorticks_off()
    axis.set(xlabel='number of queries N', ylabel='forward, median time (ms)', title=title)
    axis.grid(alpha=0.3, which='both')
    figure.legend(loc='outside right upper')
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


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
    """Why contenders are missing in the table."""
    return {
        contender.name: contender.why_not or 'has no gradient, forward only'
        for contender in case.contenders
        if contender.why_not or not contender.differentiable
    }


def main() -> None:
    parser = ToolParser(__doc__)
    dtypes = ('float32', 'float64', 'float16', 'bfloat16')
    parser.add_argument('--ops', choices=('kernels', 'inverse', 'all'), default='all')
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--dtype', choices=dtypes, default='float32')
    parser.add_argument('--rounds', type=int, default=30, help='default: %(default)s')
    parser.add_argument('--threads', type=int, help='on the CPU; default: as torch chooses')
    parser.add_argument('--train-step', action='store_true', help='time LaplacianFormer-tiny too')
    parser.add_output('--plot', help='draw the Laplacian over N, into this .png')
    parser.add_output('--out', default=Path('work_dirs/benchmark_ops.json'))
    parser.add_argument('--quick', action='store_true', help='tiny shapes, 3 rounds: only a test')
    args = parser.parse_args()
    if args.plot is not None and missing('matplotlib'):
        parser.error(f'--plot: {missing("matplotlib")}')
    if args.device == 'cuda' and not torch.cuda.is_available():
        parser.error('--device cuda: torch finds no GPU')
    if args.rounds < 1 or (args.threads or 1) < 1:
        parser.error('--rounds and --threads must be at least 1')
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
    if args.ops != 'inverse':
        cases += [kernel_case(op, s, device, dtype) for op in KERNELS for s in kernel_shapes]
    if args.ops != 'kernels':
        cases += [inverse_case(shape, device, dtype) for shape in inverse_shapes]
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
        where = machine.get('GPU') or f'{machine["CPU"]}, {machine["threads"]} threads'
        title = f'Laplacian kernel, {heads} heads, N queries x {keys} keys, d = {dims}'
        plot(sweep, f'{title}\n{args.dtype}, {where}', args.plot)
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
    for case in cases:
        print_table(case, [row for owner, _, row in rows if owner is case])
    for key in ('peak G diff/s', 'copy GB/s'):
        if result[key] is not None:
            print(f'{key}: {result[key]:.1f}')
    for key, value in result.get('train step', {}).items():
        print(f'train step, {key}:', f'{value:.2f}' if isinstance(value, float) else value)
    write_json(args.out, result)
    print('wrote', *filter(None, (args.out, args.plot)))


if __name__ == '__main__':
    main()
