"""The points of the contract. Each is a function that raises :class:`Broken` where it finds one."""

import copy
import io
import math
import pickle
import time
from typing import Any, Callable, Dict, NamedTuple, Tuple

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.utils.flop_counter import FlopCounterMode

from ...analysis.complexity import FLOP_FORMULAS
from ...analysis.measuring import tensor_memory
from ...models import BaseAttention
from .watching import Watch, not_finite

C, HEADS = 32, 2
MAPS = ((7, 7), (5, 9), (1, 1), (1, 6), (13, 4))
# A norm gives 1 at the start. Trained weights and outlying channels raise that about tenfold.
LARGE = 10.0
SIDES = (24, 48)  # of the maps between which growth is measured: four times the tokens
LINEAR = 1.2  # the largest exponent of a linear attention; N log N has 1.15 here


class Broken(Exception):
    """A point of the contract does not hold."""


class NotHere(Exception):
    """A point cannot be checked on this machine."""


class Case:
    """An attention that is checked.

    Args:
        cls: The class.
        options: Its options.
        file: Its file.

    Attributes:
        doing: The present step, for messages.
        line: The line of the file that a step has found wrong, or ``''``.
    """

    def __init__(self, cls: Any, options: dict, file: str) -> None:
        self.cls, self.options, self.file = cls, options, file
        self.doing, self.line = 'build', ''

    def build(self, dims: int = C, resolution: Tuple[int, int] = (7, 7), **options: Any) -> Any:
        """A module in eval mode, of whose parameters none is zero."""
        module = self.cls(
            embed_dims=dims,
            num_heads=HEADS,
            input_resolution=resolution,
            **{**self.options, **options},
        )
        for parameter in module.parameters():
            parameter.data += 0.02 * torch.randn_like(parameter)
        return module.eval()

    def on(self, hw_shape: Tuple[int, int]) -> Tuple[int, int]:
        """The map, which messages then name."""
        self.doing = f'on a map of {hw_shape[0]} x {hw_shape[1]} tokens'
        return hw_shape

    def watched(self, module: nn.Module, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """The output, whose first line with a NaN or infinity is kept."""
        with Watch(self.file, not_finite) as watch:
            out = module(x, hw_shape)
        self.line = watch.line
        return out

    def require(self, holds: Any, text: str) -> None:
        """Raise :class:`Broken` with the present step and a text, unless something holds."""
        if not holds:
            raise Broken(f'{self.doing}: {text}')


def tokens(batch: int, hw_shape: Tuple[int, int], dims: int = C, **options: Any) -> Tensor:
    return torch.randn(batch, hw_shape[0] * hw_shape[1], dims, **options)


def build(case: Case) -> None:
    case.doing = 'with embed_dims, num_heads and input_resolution alone'
    module = case.build()
    case.require(isinstance(module, BaseAttention), 'it does not extend BaseAttention')
    case.require(
        getattr(module, 'embed_dims', None) == C,
        'the constructor did not call super().__init__(embed_dims, num_heads, input_resolution)',
    )


def any_size(case: Case) -> None:
    module = case.build()
    for hw_shape in MAPS:
        x = tokens(2, case.on(hw_shape), requires_grad=True)
        out = module(x, hw_shape)
        case.require(
            isinstance(out, Tensor) and out.shape == x.shape,
            f'the output must be {tuple(x.shape)}, got {tuple(getattr(out, "shape", ()))}',
        )
        out.square().sum().backward()
        case.require(x.grad is not None, 'the input gets no gradient')
        grads = [value.grad for value in (x, *module.parameters()) if value.grad is not None]
        case.require(all(g.isfinite().all() for g in grads), 'gradients are not finite')


def batch(case: Case) -> None:
    x = tokens(3, (5, 7), dtype=torch.float64)
    others = torch.cat([x[:1], 3 * torch.randn_like(x[1:])])
    for mode in ('eval', 'train'):
        module, outs = case.build().double().train(mode == 'train'), []
        case.doing = f'in {mode} mode'
        for images in (x, others, x[:1]):
            torch.manual_seed(1)  # some draw
            outs.append(copy.deepcopy(module)(images, (5, 7))[0])
        for out, text in zip(outs[1:], ('other images in its batch', 'a batch of its own')):
            # Products of a batch may be cut into other blocks.
            alike = torch.allclose(out, outs[0], atol=1e-10, rtol=0)
            case.require(alike, f'an image has another output with {text}')


def positions(case: Case) -> str:
    module, case.doing = case.build(), 'with tokens in another order'
    x, order = tokens(1, (3, 4)), torch.randperm(12)
    if torch.allclose(module(x, (3, 4))[:, order], module(x[:, order], (3, 4)), atol=1e-5):
        return 'it knows no positions'
    apart = not torch.allclose(module(x, (3, 4)), module(x, (4, 3)), atol=1e-5)
    case.require(
        apart, 'it knows positions, but 3 x 4 and 4 x 3 tokens are one to it: use hw_shape'
    )
    return 'it knows positions'


def finite(case: Case) -> None:
    module = case.build()
    zeros, same = torch.zeros(1, 20, C), torch.ones(1, 20, C)
    for name, x in (('zeros', zeros), ('equal tokens', same), ('values of 1e4', 1e4 * same)):
        case.doing = f'with {name}'
        x = x.clone().requires_grad_()
        out = case.watched(module, x, (4, 5))
        case.require(out.isfinite().all(), 'the output is not finite')
        (out * torch.randn_like(out)).mean().backward()
        case.require(x.grad is not None and x.grad.isfinite().all(), 'gradients are not finite')


def half(case: Case, dtype: torch.dtype, name: str) -> None:
    if dtype == torch.float16 and not hasattr(torch.amp, 'is_autocast_available'):
        raise NotHere('before torch 2.4, CPUs have no autocast of float16')
    module = case.build()
    x = tokens(2, (7, 7))
    case.doing = f'under {name} autocast'
    exact = module(x, (7, 7)).detach()
    with torch.autocast('cpu', dtype):
        out = module(x, (7, 7)).detach()
    # Linears round inputs and outputs to the half: a few roundings of the largest value.
    off = (out.float() - exact).abs().max() / (torch.finfo(dtype).eps * exact.abs().max())
    case.require(off <= 8, f'the output is {off:.0f} roundings from that of fp32, must be <= 8')
    case.doing = f'under {name} autocast, with 1,024 tokens of standard deviation {LARGE:g}'
    large = (LARGE * tokens(1, (32, 32))).requires_grad_()
    exact = module(large, (32, 32)).detach()
    with torch.autocast('cpu', dtype):
        out = case.watched(module, large, (32, 32))
    case.require(out.isfinite().all(), 'the output is not finite')
    # An infinite normaliser gives finite zeros. Attentions of this library are off by 0.04 at most.
    off = (out.detach().float() - exact).norm() / exact.norm()
    case.require(off <= 0.1, f'the output is off by {off:.2f} of its norm in fp32, must be <= 0.1')
    out.float().mean().backward()
    case.require(large.grad is not None and large.grad.isfinite().all(), 'gradients are not finite')


def gradients(case: Case) -> None:
    """In fp64, along random directions of the input and of all parameters."""
    module = case.build(dims=8, resolution=(2, 3)).double()
    case.doing = 'against finite differences in fp64'
    names = [name for name, weight in module.named_parameters() if weight.requires_grad]
    values = [module.get_parameter(name).detach().requires_grad_() for name in names]
    x = tokens(2, (2, 3), 8, dtype=torch.float64, requires_grad=True)

    def forward(x: Tensor, *weights: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, weights)), (x, (2, 3)))

    try:
        gradcheck(forward, (x, *values), fast_mode=True, atol=1e-5, rtol=1e-3)
    except GradcheckError as error:
        number = [w for w in str(error).split() if w.rstrip(',').isdigit()]
        which = int(number[-1].rstrip(',')) if number else 0
        name = ['the input', *names][which] if which <= len(names) else 'the input'
        raise Broken(f'{case.doing}: the gradient of {name} is wrong') from error


def parameters(case: Case) -> None:
    module = case.build().train()
    for images in (2, 0):
        case.doing = f'in a batch of {images} images'
        module.zero_grad(set_to_none=True)
        out = module(tokens(images, (4, 5)), (4, 5))
        out.square().sum().backward()
        for name, weight in module.named_parameters():
            case.require(
                weight.grad is not None or not weight.requires_grad,
                f'the parameter {name} gets no gradient, for which DistributedDataParallel waits',
            )


def mask(case: Case) -> str:
    # A convolution of the values sees hidden tokens too.
    lepe: Any = {} if 'lepe_kernel' not in case.cls.known_options() else dict(lepe_kernel=0)
    module = case.build(**lepe)
    x, seen = tokens(2, (3, 4)), torch.ones(1, 1, 12, 12, dtype=torch.bool)
    if not module.accepts_mask:
        case.doing = 'with a mask, as accepts_mask is false'
        try:
            module(x, (3, 4), mask=seen)
        except (ValueError, TypeError):
            return 'it takes no mask, and says so'
        raise Broken(f'{case.doing}: it ignores the mask; raise a ValueError, as check_mask does')
    case.doing = 'with a mask'
    whole = module(x, (3, 4))
    alike = torch.allclose(module(x, (3, 4), mask=seen), whole, atol=1e-5)
    case.require(alike, 'a mask that hides nothing changes the output')
    seen[..., 8:] = False
    changed = torch.cat([x[:, :8], 3 * torch.randn(2, 4, C)], 1)
    outs = [module(images, (3, 4), mask=seen)[:, :8] for images in (x, changed)]
    case.require(
        torch.allclose(outs[0], outs[1], atol=1e-5), 'hidden tokens change the output of others'
    )
    return 'it keeps to its mask'


def repeat(case: Case) -> None:
    module, x = case.build(), tokens(2, (5, 7))
    case.doing = 'in eval mode'
    before = copy.deepcopy(module.state_dict())
    outs = [module(x, (5, 7)) for _ in range(2)]
    case.require(torch.equal(*outs), 'two calls give two outputs')
    same = all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    case.require(same, 'a call changes the state dict')


def save(case: Case) -> None:
    module, x = case.build(), tokens(2, (5, 7))
    expected = module(x, (5, 7))
    fresh = case.build()
    fresh.load_state_dict(module.state_dict())
    ways: Dict[str, Callable[[], Any]] = {
        'its state dict, in a new module,': lambda: fresh,
        'copy.deepcopy': lambda: copy.deepcopy(module),
        'pickle': lambda: pickle.loads(pickle.dumps(module)),
    }
    for way, copied in ways.items():
        case.doing = f'after {way}'
        case.require(
            torch.equal(copied()(x, (5, 7)), expected),
            'the output differs; register what it depends on as a parameter or buffer',
        )


def compiled(case: Case) -> str:
    if not hasattr(torch.amp, 'is_autocast_available'):
        raise NotHere('before torch 2.4, torch.compile traces no context managers of libraries')
    module, x = case.build().train(), tokens(2, (5, 7))
    case.doing = 'by torch.compile in one graph'
    torch._dynamo.reset()
    # Inductor would compile for most of a minute. This is all before its code.
    graph: Any = torch.compile(module, backend='aot_eager_decomp_partition', fullgraph=True)
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    outs, grads = [], []
    for function in (module, graph):
        torch.manual_seed(1)
        outs.append(function(x, (5, 7)))
        grads.append(torch.autograd.grad(outs[-1].square().sum(), weights))
    scale = outs[0].abs().max().item()
    case.require(
        torch.allclose(outs[0], outs[1], atol=1e-4 * scale, rtol=1e-3),
        'the output is not that of eager mode',
    )
    most = max((grad.abs().max().item() for grad in grads[0]), default=0.0)
    alike = all(torch.allclose(a, b, atol=2e-3 * most, rtol=1e-3) for a, b in zip(*grads))
    case.require(alike, 'gradients are not those of eager mode')
    return "traced with inductor's decompositions, both passes; no code was generated"


class OfMap(nn.Module):
    """An attention of a map ``(B, C, H, W)``, from which a graph takes the sizes."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x.flatten(2).transpose(1, 2), tuple(x.shape[2:]))


@torch.no_grad()
def onnx(case: Case) -> str:
    try:
        import onnxruntime
    except ImportError as error:
        raise NotHere('onnxruntime is missing; pip install onnx onnxruntime') from error
    file: Any
    file, axes = io.BytesIO(), {0: 'batch', 2: 'height', 3: 'width'}
    module = OfMap(case.build()).eval()
    case.doing = 'by torch.onnx.export, for any batch, height and width'
    # Where rounding turns a sign or a bucket, an image may differ as a whole, but not in fp64.
    for dtype in (torch.float32, torch.float64):
        torch.onnx.export(
            module.to(dtype),
            (torch.randn(2, C, 9, 10, dtype=dtype),),
            file,
            dynamo=False,
            opset_version=17,
            input_names=['x'],
            dynamic_axes={'x': axes},
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        session = onnxruntime.InferenceSession(file.getvalue(), options, ['CPUExecutionProvider'])
        off = []
        for size in ((1, C, 9, 10), (3, C, 11, 13)):
            x = torch.randn(size, dtype=dtype)
            case.doing = f'in ONNX Runtime, on {size[0]} maps of {size[2]} x {size[3]} tokens'
            out, expected = torch.from_numpy(session.run(None, {'x': x.numpy()})[0]), module(x)
            off.append(((out - expected).abs().max() / expected.abs().max()).item())
        if max(off) <= 1e-4:
            return f'right in ONNX Runtime at two sizes, in {str(dtype)[6:]}'
        file = io.BytesIO()
    raise Broken(f'in ONNX Runtime: the output is off by {max(off):.1e} of the largest value')


def linear(case: Case) -> str:
    bytes_, flops, seconds = [], [], []
    for side in SIDES:
        module = case.build(dims=16, resolution=(side, side)).train()
        x = tokens(1, (side, side), 16, requires_grad=True)

        def job(module: Any = module, x: Tensor = x, side: int = side) -> tuple:
            module(x, (side, side)).sum().backward()
            return ()

        counter = FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS)
        with counter:
            job()
        with Watch(case.file, Tensor.numel) as largest:
            job()
        start = time.perf_counter()
        job()
        seconds.append(time.perf_counter() - start)
        flops.append(max(counter.get_total_flops(), 1))
        bytes_.append(max(tensor_memory(job, x.device) or 0, 1))
    grown = [
        math.log(b / a) / math.log((SIDES[1] / SIDES[0]) ** 2) for a, b in (bytes_, flops, seconds)
    ]
    text = (
        f'from {SIDES[0]}² to {SIDES[1]}² tokens, memory grows as N^{grown[0]:.2f} and FLOPs as '
        f'N^{grown[1]:.2f} (time here: N^{grown[2]:.2f})'
    )
    if max(grown[:2]) > LINEAR:
        case.line = largest.line
        raise Broken(f"{text}; if that is meant, set not_promised = dict(linear='why')")
    return text


class Point(NamedTuple):
    """A point of the contract.

    Attributes:
        asks: What it asks of an attention.
        check: The function that raises where it does not hold. It may return what was seen.
    """

    asks: str
    check: Callable[[Case], Any]


POINTS: Dict[str, Point] = {
    'build': Point('it is built from embed_dims, num_heads and input_resolution', build),
    'any size': Point('maps of any height and width, one row and one token too', any_size),
    'batch': Point('an image has the same output alone and in any batch', batch),
    'positions': Point('rows and columns are told apart, where it knows positions', positions),
    'finite': Point('zeros, equal tokens and large values give no NaN', finite),
    'fp16': Point(
        'fp16 autocast, also with large activations', lambda case: half(case, torch.float16, 'fp16')
    ),
    'bf16': Point(
        'bf16 autocast, also with large activations',
        lambda case: half(case, torch.bfloat16, 'bf16'),
    ),
    'gradients': Point('gradients are those of finite differences in fp64', gradients),
    'parameters': Point('every parameter gets a gradient, also in an empty batch', parameters),
    'mask': Point('a mask hides tokens, or is refused', mask),
    'repeat': Point('in eval mode, two calls give the same and change nothing', repeat),
    'save': Point('state dict, deepcopy and pickle keep the output', save),
    'compile': Point('torch.compile, in one graph', compiled),
    'onnx': Point('ONNX, for any batch and size', onnx),
    'linear': Point('memory and FLOPs are linear in the tokens', linear),
}
