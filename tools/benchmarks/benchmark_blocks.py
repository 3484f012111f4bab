"""Measure time and memory of an attention and of a block: mmlaplace's, softmax, PVT's and Swin's.

All take tokens (B, N, C) of a map and return such tokens, with heads of 32 channels. An attention
has no norms and no FFN; a block has both, with four times the channels inside the FFN. A training
step is a forward and a backward with the gradients of the tokens and of all weights.

  softmax           SoftmaxAttention: torch's fused kernel, whichever torch chooses
  softmax, flash    the same, with flash attention demanded: CUDA and half precision alone
  PVT block         mmdetection's, with the reduction of keys of its first stage (8)
  Swin block        mmdetection's, windows of 7, not shifted

Examples:
  python tools/benchmarks/benchmark_blocks.py --device cuda --dtype bfloat16
  python tools/benchmarks/benchmark_blocks.py --shapes 8,56,64 1,128,64

--dtype is that of autocast; float32 is without. Ratios are of medians, to LaplacianAttention and
its block. Memory is the peak of torch's tensors in one run, without what is returned.
"""

import argparse
import os
import statistics
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Callable, ContextManager, Dict, List, Optional, Tuple

os.environ.setdefault('KINETO_LOG_LEVEL', '5')  # to the profiler it is an error to have no GPU

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from rich.console import Console
from rich.table import Table
from torch import Tensor

from mmlaplace.analysis.measuring import describe_machine, interleave, tensor_memory
from mmlaplace.commands.command_line import ToolParser, positive, write_json
from mmlaplace.models.layers import TransformerBlock

SHAPES = ((128, 56, 64), (8, 56, 64), (128, 28, 128), (1, 128, 64), (1, 256, 64))
HEAD_DIMS = 32
PASSES = ('forward', 'training step')
Shape = Tuple[int, int, int]  # images, side of the map, channels


def config_of(name: str, shape: Shape) -> dict:
    _, side, dims = shape
    heads = dims // HEAD_DIMS
    return dict(type=name, embed_dims=dims, num_heads=heads, input_resolution=(side, side))


def our_attention(name: str, shape: Shape) -> nn.Module:
    return MODELS.build(config_of(name, shape))


def our_block(name: str, shape: Shape) -> nn.Module:
    return TransformerBlock(shape[2], config_of(name, shape))


def pvt_block(shape: Shape) -> nn.Module:
    from mmdet.models.backbones.pvt import PVTEncoderLayer

    dims = shape[2]
    return PVTEncoderLayer(dims, dims // HEAD_DIMS, 4 * dims, sr_ratio=8)


def swin_block(shape: Shape) -> nn.Module:
    from mmdet.models.backbones.swin import SwinBlock

    dims = shape[2]
    return SwinBlock(dims, dims // HEAD_DIMS, 4 * dims)


# The first of each kind is what the others are compared with.
CANDIDATES = {
    'attention': {
        'LaplacianAttention': partial(our_attention, 'LaplacianAttention'),
        'SOFTAttention': partial(our_attention, 'SOFTAttention'),
        'PolaAttention': partial(our_attention, 'PolaAttention'),
        'softmax': partial(our_attention, 'SoftmaxAttention'),
        'softmax, flash': partial(our_attention, 'SoftmaxAttention'),
    },
    'block': {
        'LaplacianAttention': partial(our_block, 'LaplacianAttention'),
        'softmax': partial(our_block, 'SoftmaxAttention'),
        'softmax, flash': partial(our_block, 'SoftmaxAttention'),
        'PVT block': pvt_block,
        'Swin block': swin_block,
    },
}


def make_job(
    model: nn.Module, tokens: Tensor, side: int, dtype: torch.dtype, flash: bool, train: bool
) -> Callable[[], Tuple[Tensor, ...]]:
    """What is timed; it returns a tuple of what the caller gets."""
    weights = list(model.parameters())
    leaf = tokens.clone().requires_grad_()

    def forward(x: Tensor) -> Tensor:
        with ExitStack() as stack:
            if dtype != torch.float32:
                stack.enter_context(torch.autocast(tokens.device.type, dtype))
            if flash:
                stack.enter_context(flash_alone())
            return model(x, (side, side))

    def without_gradients() -> Tuple[Tensor, ...]:
        with torch.no_grad():
            return (forward(tokens),)

    def step() -> Tuple[Tensor, ...]:
        return torch.autograd.grad(forward(leaf).float().square().mean(), [leaf, *weights])

    return step if train else without_gradients


def flash_alone() -> ContextManager:
    """The context in which softmax attention is flash attention, or an error."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:  # torch < 2.3
        return torch.backends.cuda.sdp_kernel(enable_math=False, enable_mem_efficient=False)
    return sdpa_kernel(SDPBackend.FLASH_ATTENTION)


def measure(
    kind: str, shape: Shape, device: torch.device, dtype: torch.dtype, rounds: int
) -> Tuple[List[dict], Dict[str, str]]:
    """The rows of one kind at one shape, and why candidates are missing."""
    batch, side, dims = shape
    tokens = torch.randn(batch, side * side, dims, device=device)
    models, why_not = {}, {}
    for name, build in CANDIDATES[kind].items():
        flash = name == 'softmax, flash'
        if flash and (device.type != 'cuda' or dtype == torch.float32):
            why_not[name] = 'runs on CUDA in half precision alone'
            continue
        try:
            models[name] = build(shape).to(device)
            make_job(models[name], tokens, side, dtype, flash, train=True)()
        except (ImportError, RuntimeError) as error:  # the latter: too little memory, no kernel
            models.pop(name, None)
            why_not[name] = str(error).splitlines()[0]
    rows = []
    for train, name_of_pass in enumerate(PASSES):
        jobs = {
            name: make_job(
                model.train(bool(train)), tokens, side, dtype, name == 'softmax, flash', bool(train)
            )
            for name, model in models.items()
        }
        seconds = interleave(jobs, rounds, device)
        base = seconds.get(next(iter(CANDIDATES[kind])))  # None where it did not run
        for name, times in seconds.items():
            rows.append({
                'kind': kind, 'shape': shape, 'pass': name_of_pass, 'candidate': name,
                'median ms': 1e3 * statistics.median(times), 'min ms': 1e3 * min(times),
                'runs': len(times),
                'ratio': statistics.median(times) / statistics.median(base) if base else None,
                'MB': to_megabytes(tensor_memory(jobs[name], device)),
            })  # fmt: skip
    return rows, why_not


def to_megabytes(count: Optional[int]) -> Optional[float]:
    return None if count is None else count / 2**20


def print_table(kind: str, shape: Shape, rows: List[dict], why_not: Dict[str, str]) -> None:
    batch, side, dims = shape
    title = f'{kind}, {batch} x {side} x {side} tokens of {dims} channels'
    table = Table(title=title, title_justify='left')
    for name in ('pass', 'candidate', 'median ms', 'min ms', 'runs', 'ratio', 'MB'):
        table.add_column(name, justify='left' if name in ('pass', 'candidate') else 'right')
    for row in rows:
        memory = '-' if row['MB'] is None else f'{row["MB"]:.1f}'
        ratio = '-' if row['ratio'] is None else f'{row["ratio"]:.2f}'
        table.add_row(
            row['pass'], row['candidate'], f'{row["median ms"]:.3f}', f'{row["min ms"]:.3f}',
            str(row['runs']), ratio, memory,
        )  # fmt: skip
    Console(width=120).print(table)
    for name, reason in why_not.items():
        print(f'  not run: {name}: {reason}')


def read_shape(text: str) -> Shape:
    """``images,side,channels``."""
    try:
        batch, side, dims = map(int, text.split(','))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not three numbers, such as 8,56,64'
        ) from None
    if batch < 1 or side < 8 or dims < 1 or dims % HEAD_DIMS:
        raise argparse.ArgumentTypeError(
            f'{text!r} must have at least one image, a side of 8, and a multiple of {HEAD_DIMS} '
            'channels'
        )
    return batch, side, dims


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--device', choices=('cpu', 'cuda'), default='cpu')
    parser.add_argument('--dtype', choices=('float32', 'float16', 'bfloat16'), default='float32')
    parser.add_argument(
        '--shapes', type=read_shape, nargs='+', default=SHAPES, metavar='IMAGES,SIDE,CHANNELS',
        help='default: ' + ' '.join(','.join(map(str, shape)) for shape in SHAPES),
    )  # fmt: skip
    parser.add_argument('--rounds', type=positive, default=30, help='default: %(default)s')
    parser.add_output('--out', default=Path('work_dirs/benchmark_blocks.json'))
    args = parser.parse_args()
    device, dtype = torch.device(args.device), getattr(torch, args.dtype)
    machine = describe_machine(device)
    print('\n'.join(f'{key}: {value}' for key, value in machine.items()))
    torch.manual_seed(0)
    result = {'machine': machine, 'dtype': args.dtype, 'rows': [], 'not run': []}
    for shape in args.shapes:
        for kind in CANDIDATES:
            rows, why_not = measure(kind, shape, device, dtype, args.rounds)
            print_table(kind, shape, rows, why_not)
            result['rows'] += rows
            result['not run'].append({'kind': kind, 'shape': shape, **why_not})
    write_json(args.out, result)
    print('wrote', args.out)


if __name__ == '__main__':
    main()
