"""Time attentions and backbones of mmlaplace on a GPU beside those of others, into one JSON.

    python .dev_scripts/gpu/measure_peers.py                        # five minutes
    python .dev_scripts/gpu/measure_peers.py --parts attentions --seconds 120
    python .dev_scripts/gpu/measure_peers.py --parts backbones --models mlla-tiny timm:resnet50

attentions  mixing rules on queries, keys and values (B, heads, N, d), with N from 196 to 65,536 and
            d = 32 and 64: ours by the compiled ops (fused) and by PyTorch's operations (plain), and
            F.scaled_dot_product_attention. B * N is the same for all N. Forward and with the
            backward, in fp32 and bf16.
backbones   whole models without a classifier at 224 x 224 with 128 images to 2048 x 2048 with one:
            forward in fp32 and bf16, and training steps in bf16.
compiled    the attentions at N = 3136, d = 32, by torch.compile.
fbi_la      our linear attention beside flash-bidirectional-linear-attention, whose Triton kernels
            take half a minute for each size to be tuned. Without that package, it is left out.

Each part has its share of the seconds. What is not reached is named, and so is what fails.
"""

import functools
import importlib.util
import sys
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from kit import (
    DEVICE,
    DTYPES,
    REHEARSAL,
    Budget,
    Failure,
    Report,
    attempt,
    give_memory_back,
    times_of,
)
from mmengine.registry import MODELS
from torch import Tensor

import mmlaplace  # noqa: F401  (registers the attentions)
from mmlaplace.analysis.measuring import model_job, tensor_memory
from mmlaplace.commands.command_line import ToolParser, positive
from mmlaplace.lab.side_by_side.backbone_candidates import find
from mmlaplace.lab.side_by_side.op_candidates import by_fbi_la
from mmlaplace.ops import use_backend

# Attentions of ours, by what is printed. Positions are no part of the mixing that others have.
OURS: Dict[str, Dict[str, Any]] = {
    'LaplacianAttention': dict(type='LaplacianAttention', rope=False),
    'LaplacianAttention, rows': dict(
        type='LaplacianAttention', rope=False, normalization='rows', landmarks_from='queries'
    ),
    'LinearAttention': dict(type='LinearAttention'),
    'PolaAttention': dict(type='PolaAttention'),
}
FORMS = {'fused': 'native', 'plain': 'reference'}  # and the backend of the ops
SIDES = (14, 28, 56, 128, 256)
HEAD_DIMS = (32, 64)
HEADS, TOKENS = 2, 2**19  # heads x tokens of all images
COMPILED = (56, 32)  # side, and channels of a head
BACKBONES = (
    'laplacianformer-tiny',
    'soft-tiny',
    'polaformer-pvt-tiny',
    'polaformer-swin-tiny',
    'cswin-tiny',
    'mlla-tiny',
    'efficientvit-b1',
    'timm:resnet50',
    'timm:convnext_tiny',
    'timm:swin_tiny_patch4_window7_224',
    'timm:pvt_v2_b1',
    'timm:deit_small_patch16_224',
    'mmdet:PyramidVisionTransformer-tiny',
)
SIZES = ((224, 128), (512, 32), (1024, 8), (2048, 1))  # side of the images, and how many
# What is printed: whether it is a training step, and the dtype of autocast.
MODES: Dict[str, Tuple[bool, Any]] = {
    'fp32': (False, None),
    'bf16': (False, torch.bfloat16),
    'bf16 training': (True, torch.bfloat16),
}
FAST = tuple(f'{name}, {form}' for name in OURS for form in FORMS) + ('softmax, SDPA',)
TRITON = ('LinearAttention, fused', 'fbi_la, Triton')
SHARES = {'attentions': 0.35, 'backbones': 0.4, 'compiled': 0.15, 'fbi_la': 0.1}
if REHEARSAL:
    SIDES, HEAD_DIMS, TOKENS, COMPILED, SIZES = (7, 14), (16,), 2 * 196, (7, 16), ((64, 2),)


class Mixing(NamedTuple):
    """A function of queries, keys and values, and the backend of the ops that it calls."""

    function: Callable[..., Tensor]
    backend: str


def mixing_rule(cfg: dict, side: int, dims: int) -> Callable[..., Tensor]:
    """The mixing rule of an attention of ours for a map of this side."""
    sizes = dict(embed_dims=HEADS * dims, num_heads=HEADS, input_resolution=(side, side))
    attention = MODELS.build({**sizes, **cfg}).to(DEVICE)
    return lambda q, k, v: attention.mix(q, k, v, (side, side))


def attentions(side: int, dims: int) -> Dict[str, Mixing]:
    """What is compared, by name."""
    found = {
        f'{name}, {form}': Mixing(mixing_rule(cfg, side, dims), backend)
        for name, cfg in OURS.items()
        for form, backend in FORMS.items()
    }
    found['softmax, SDPA'] = Mixing(F.scaled_dot_product_attention, 'auto')
    found['fbi_la, Triton'] = Mixing(by_fbi_la, 'auto')
    return found


def attention_job(
    mixing: Mixing, tensors: Tuple[Tensor, ...], dtype: torch.dtype, train: bool
) -> Callable[[], Tuple[Tensor, ...]]:
    """What is timed. It returns all that the caller gets."""
    upstream = torch.randn_like(tensors[0])
    leaves = [tensor.detach().requires_grad_() for tensor in tensors]

    def mix(*inputs: Tensor) -> Tensor:
        autocast = torch.autocast(DEVICE.type, torch.bfloat16, enabled=dtype == torch.bfloat16)
        with use_backend(mixing.backend), autocast:
            return mixing.function(*inputs)

    def forward() -> Tuple[Tensor, ...]:
        with torch.no_grad():
            return (mix(*tensors),)

    def forward_backward() -> Tuple[Tensor, ...]:
        out = mix(*leaves)
        return (out.detach(), *torch.autograd.grad(out, leaves, upstream.to(out.dtype)))

    return forward_backward if train else forward


def in_graph(mixing: Mixing) -> Mixing:
    """The same by torch.compile, whose slow part a rehearsal leaves out."""
    backend = 'aot_eager' if REHEARSAL else 'inductor'
    return mixing._replace(function=torch.compile(mixing.function, dynamic=False, backend=backend))


def measure_attentions(
    part: str,
    names: Sequence[str],
    side: int,
    dims: int,
    dtype_name: str,
    train: bool,
    report: Report,
) -> None:
    """A row for each of some attentions, which take turns, at one size."""
    images = max(1, TOKENS // HEADS // side**2)
    tensors = tuple(
        torch.randn(images, HEADS, side * side, dims, device=DEVICE, dtype=DTYPES[dtype_name])
        for _ in range(3)
    )
    known = attentions(side, dims)
    mixings = {name: known[name] for name in names}
    if part == 'compiled':
        torch.compiler.reset()  # the code of other sizes would count for the limit
        mixings = {name: in_graph(mixing) for name, mixing in mixings.items()}
    jobs = {
        name: attention_job(mixing, tensors, DTYPES[dtype_name], train)
        for name, mixing in mixings.items()
    }
    times, failures = times_of(jobs)
    for name, job in jobs.items():
        row = dict(
            part=part,
            attention=name,
            tokens=side * side,
            head_dims=dims,
            heads=HEADS,
            images=images,
            dtype=dtype_name,
            training=train,
        )
        what = f'{dtype_name} {"training" if train else "forward":8s}'
        text = f'N {side * side:6d} d {dims:3d} {what} {name:32s}'
        add_row(
            report, f'{text}{" compiled" * (part == "compiled")}', row, name, job, times, failures
        )
    give_memory_back()


def add_row(
    report: Report,
    text: str,
    row: dict,
    name: str,
    job: Callable,
    times: Dict[str, float],
    failures: Dict[str, Failure],
) -> None:
    """Print and write the time and the memory of a job, or why there are none."""
    if name in failures:
        failure = failures[name]
        row.update(failure=failure.text, too_large=failure.too_large)
        report.add(f'{text} FAILED {failure.text}', **row)
        return
    memory = tensor_memory(job, DEVICE)
    row.update(ms=times[name], mb=None if memory is None else memory / 2**20)
    shown = '' if memory is None else f' {memory / 2**20:8.0f} MB'
    report.add(f'{text} {times[name]:9.3f} ms{shown}', **row)


@functools.cache
def backbone(name: str, train: bool, side: Optional[int]) -> torch.nn.Module:
    """A model, which stays on the GPU for the next size."""
    model = find(name)(train, **({} if side is None else dict(img_size=side))).to(DEVICE)
    model.train(train)  # mmpretrain's return None
    return model


def measure_backbone(name: str, side: int, images: int, report: Report) -> None:
    """A row for each mode. A model that fails costs no other its figures."""
    # Two of timm must know the side when they are built.
    built_for = side if name.startswith(('timm:swin', 'timm:deit')) else None
    for mode, (train, dtype) in MODES.items():
        row = dict(part='backbones', model=name, side=side, images=images, mode=mode)
        text = f'{side:4d} x {images:3d} {mode:13s} {name:36s}'
        model, failure = attempt(partial(backbone, name, train, built_for))
        if failure is not None:
            row.update(failure=failure.text, too_large=failure.too_large)
            report.add(f'{text} FAILED {failure.text}', **row)
            continue
        batch = torch.randn(images, 3, side, side, device=DEVICE)
        job = model_job(model, batch, train, dtype)
        times, failures = times_of({name: job})
        add_row(report, text, row, name, job, times, failures)
        del batch, job
        give_memory_back()


def cases(part: str, models: Sequence[str]) -> Iterator[Tuple[str, Callable]]:
    """What a part measures: a name, and a function of the report."""
    if part == 'backbones':
        for side, images in SIZES:
            for name in models:
                case = partial(measure_backbone, name, side, images)
                yield f'{name} at {side} x {images}', case
        return
    places = [(side, dims) for dims in HEAD_DIMS for side in SIDES]
    groups: Sequence[Sequence[str]] = [FAST]
    if part == 'compiled':
        places, groups = [COMPILED], [[name] for name in FAST]  # each takes seconds to compile
    elif part == 'fbi_la':
        places, groups = places[::-1], [TRITON]
        if DEVICE.type != 'cuda' or importlib.util.find_spec('fbi_la') is None:
            print('fbi_la is not measured: it needs a GPU, and the package fbi_la', flush=True)
            return
    for side, dims in places:
        for dtype in reversed(DTYPES):
            for train in (False, True):
                for names in groups:
                    case = partial(measure_attentions, part, names, side, dims, dtype, train)
                    what = 'training' if train else 'forward'
                    shown = names[0] if part == 'compiled' else 'attentions'
                    yield f'{part}, {shown}, N {side * side}, d {dims}, {dtype} {what}', case


def main() -> int:
    parser = ToolParser(__doc__)
    parser.add_argument('--parts', nargs='+', choices=SHARES, default=list(SHARES))
    parser.add_argument('--models', nargs='+', default=BACKBONES, metavar='MODEL')
    parser.add_argument('--seconds', type=positive, default=300, help='default: %(default)s')
    parser.add_output('--out', default=Path('work_dirs/gpu_check/peers.json'))
    args = parser.parse_args()
    report = Report(args.out)
    torch.manual_seed(0)
    of_parts = sum(SHARES[part] for part in args.parts)
    for part in args.parts:
        budget = Budget(args.seconds * SHARES[part] / of_parts)
        for name, case in cases(part, args.models):
            if budget.is_over():
                report.leave_out(name)
            else:
                case(report=report)
    return report.status()


if __name__ == '__main__':
    sys.exit(main())
