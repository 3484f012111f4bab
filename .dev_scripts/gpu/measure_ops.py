"""Time every op of mmlaplace/ops/table.py on a GPU: compiled and reference, at real sizes.

    python .dev_scripts/gpu/measure_ops.py                              # 80 seconds
    python .dev_scripts/gpu/measure_ops.py --ops nystrom_attention --seconds 60

It prints and writes for each call: milliseconds and the peak of memory; forward also the
multiply-accumulates, and the bytes of inputs and result, per second. The floor of a forward is
the larger of two times: its MACs at the rate of a product of matrices in fp32, and its bytes at
the rate of a copy, both measured first. In the kernels of differences, a MAC is a difference, which
takes two instructions. A new row of the table is measured without a change here.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Dict, Iterator, Tuple

import torch
from kit import (
    DEVICE,
    DTYPES,
    REHEARSAL,
    Budget,
    Report,
    attempt,
    function_of,
    give_memory_back,
    gradients,
    large_example,
    macs_of,
    times_of,
)
from torch import Tensor

from mmlaplace.analysis.measuring import bytes_of, tensor_memory
from mmlaplace.commands.command_line import ToolParser, positive
from mmlaplace.ops.table import OPS

# Images, heads, side of the map, landmarks and channels of a head: the first stage at 224 x 224
# with one head and with two, the third, and the first at 512, 1024 and, with 256 landmarks, 2048.
SIZES = (
    (128, 1, 56, 49, 64),
    (128, 2, 56, 49, 32),
    (128, 10, 14, 49, 32),
    (16, 2, 128, 49, 32),
    (4, 1, 256, 49, 64),
    (1, 2, 512, 256, 32),
)
if REHEARSAL:
    SIZES = ((1, 2, 7, 9, 16),)


def rates() -> Iterator[Tuple[str, str, float]]:
    """What the machine reaches: bytes per second of a copy, and MACs per second of a product."""
    source = torch.randn(2**10 if REHEARSAL else 2**28, device=DEVICE)
    target = torch.empty_like(source)
    times, _ = times_of({'copy': lambda: (target.copy_(source),)})
    yield 'copy', 'TB/s', 2 * bytes_of((source,)) / times['copy'] / 1e9
    side = 32 if REHEARSAL else 8192
    for name, dtype in DTYPES.items():
        matrix = torch.randn(side, side, device=DEVICE, dtype=dtype)
        times, _ = times_of({'product': lambda matrix=matrix: (matrix @ matrix,)})
        yield f'product, {name}', 'T MAC/s', side**3 / times['product'] / 1e9


def measure(
    name: str, size: tuple, dtype_name: str, reached: Dict[str, float], report: Report
) -> None:
    """A row for each backend, forward and with the backward.

    Args:
        name: Of the op.
        size: One of ``SIZES``.
        dtype_name: One of ``DTYPES``.
        reached: What the machine reaches, see :func:`rates`.
        report: Takes the rows.
    """
    made, failure = attempt(partial(large_example, name, *size, DTYPES[dtype_name]))
    head = dict(op=name, size=size, dtype=dtype_name)
    if failure is not None:
        text = f'{name:30s} {size} {dtype_name} FAILED {failure.text}'
        report.add(text, failure=failure.text, too_large=failure.too_large, **head)
        return
    row, tensors = made
    macs = macs_of(row, tensors)
    function = function_of(name, row)

    def forward(backend: str) -> Tuple[Tensor, ...]:
        with torch.no_grad():
            return (function(**tensors, backend=backend),)

    # Some compiled ops leave large matrices to the reference.
    backends = ('auto' if row.by_reference else 'native', 'reference')
    passes: Dict[str, dict] = {
        'forward': {backend: partial(forward, backend) for backend in backends},
        '+ backward': {
            backend: partial(gradients, partial(function, backend=backend), tensors)
            for backend in backends
        },
    }
    for pass_name, jobs in passes.items():
        times, failures = times_of(jobs)
        for backend, job in jobs.items():
            found = dict(head, candidate=backend)
            found['pass'] = pass_name
            text = f'{name:30s} {size!s:24s} {dtype_name} {pass_name:10s} {backend:9s}'
            if backend in failures:
                reason = failures[backend]
                found.update(failure=reason.text, too_large=reason.too_large)
                report.add(f'{text} FAILED {reason.text}', **found)
                continue
            ms = times[backend]
            memory = tensor_memory(job, DEVICE)
            found.update(ms=ms, mb=None if memory is None else memory / 2**20)
            text += f' {ms:9.4f} ms'
            if pass_name == 'forward':
                moved = bytes_of((*tensors.values(), *job()))
                tmacs, tbytes = macs / ms / 1e9, moved / ms / 1e9
                share = max(tmacs / reached['product, fp32'], tbytes / reached['copy'])
                found.update(tmacs=tmacs, tbytes=tbytes, share_of_floor=share)
                text += f' {tmacs:7.2f} T MAC/s {tbytes:6.2f} TB/s {share:6.1%} of the floor'
            report.add(text, **found)
    give_memory_back()


def main() -> int:
    parser = ToolParser(__doc__)
    parser.add_argument('--ops', nargs='+', choices=OPS, default=list(OPS), metavar='OP')
    parser.add_argument('--seconds', type=positive, default=80, help='default: %(default)s')
    parser.add_output('--out', default=Path('work_dirs/gpu_check/ops.json'))
    args = parser.parse_args()
    budget, report = Budget(args.seconds), Report(args.out)
    torch.manual_seed(0)
    reached = {}
    for name, unit, rate in rates():
        reached[name] = rate
        report.add(f'{name}: {rate:.3f} {unit}', op=name, unit=unit, rate=rate)
    for size in SIZES:
        for name in args.ops:
            for dtype_name in DTYPES:
                if dtype_name != 'fp32' and not OPS[name].reads_halves:
                    continue
                if budget.is_over():
                    report.leave_out(f'{name} {size} {dtype_name}')
                    continue
                measure(name, size, dtype_name, reached, report)
    return report.status()


if __name__ == '__main__':
    sys.exit(main())
