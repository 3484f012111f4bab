"""The points of the contract. Each is a function that raises :class:`Broken` where it finds one.

All points draw from the same list of settings, with a seed: images, heads, channels of a head and
maps. The point 'any size' tries each of them. Later points take those that it found to work, so
that one fault does not hide another.
"""

import copy
import io
import math
import pickle
import random
import re
import time
from functools import cached_property
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from ...analysis.complexity import FLOP_FORMULAS
from ...analysis.measuring import tensor_memory
from ...models import BaseAttention
from ...ops.precision import HALVES
from .watching import Casts, NoDropout, Watch, Work, line_of_error, not_finite

C, HEADS = 32, 2
SMALL_MAPS = ((3, 4), (5, 9), (1, 1), (1, 6), (13, 4), (6, 5), (24, 17))
LARGE_MAPS = ((48, 52), (67, 61))
# A norm gives 1 at the start. Trained weights and outlying channels raise that about tenfold.
LARGE = 10.0
SIDES = (24, 34, 48)  # of the maps on which growth is measured: each has twice the tokens
LINEAR = 1.2  # the largest exponent of a linear attention; N log N has 1.15 here
STEADY = 1.15  # the smallest exponent of the others between two of the maps


class Broken(Exception):
    """A point of the contract does not hold."""


class NotHere(Exception):
    """A point cannot be checked on this machine."""


class Setting(NamedTuple):
    """What an attention is tried on.

    Attributes:
        images: Images in the batch.
        heads: Heads.
        head_dims: Channels of each head.
        hw_shape: Height and width of the map.
    """

    images: int
    heads: int
    head_dims: int
    hw_shape: Tuple[int, int]

    @property
    def dims(self) -> int:
        """The channels."""
        return self.heads * self.head_dims

    @property
    def is_small(self) -> bool:
        """Whether the map is small enough for several calls in fp64."""
        return self.hw_shape not in LARGE_MAPS

    def tokens(self, **options: Any) -> Tensor:
        """Normal tokens ``(images, H * W, C)``."""
        height, width = self.hw_shape
        return torch.randn(self.images, height * width, self.dims, **options)

    def turned(self) -> 'Setting':
        """The same on a map of W x H."""
        return self._replace(hw_shape=self.hw_shape[::-1])

    def __str__(self) -> str:
        images = '1 image' if self.images == 1 else f'{self.images} images'
        heads = '1 head' if self.heads == 1 else f'{self.heads} heads'
        height, width = self.hw_shape
        return f'{images} of {height} x {width} tokens, {heads} of {self.head_dims} channels'


PLAIN = Setting(2, HEADS, C // HEADS, (7, 7))


def settings(seed: int) -> List[Setting]:
    """The plain setting, then a drawn one for each map.

    On small maps, each number of images from 1 to 5 and of heads out of 1, 2, 3 and 5 occurs. Large
    maps have few of both, as attentions over all pairs of tokens need much memory there.
    """
    draw = random.Random(seed)
    images, heads = [1, 2, 3, 4, 5, 3, 2], [1, 2, 3, 5, 1, 3, 5]
    head_dims = [8, 16, 24, 32, 8, 16, 24]
    for values in (images, heads, head_dims):
        draw.shuffle(values)
    drawn = [PLAIN, *map(Setting, images, heads, head_dims, SMALL_MAPS)]
    return [*drawn, Setting(2, 1, 8, LARGE_MAPS[0]), Setting(1, 1, 8, LARGE_MAPS[1])]


class Case:
    """An attention that is checked.

    Args:
        cls: The class.
        options: Its options.
        file: Its file.
        seed: Seed of the settings. Default: 0.

    Attributes:
        settings: The settings that are not known to fail.
        doing: The present step, for messages.
        line: The line of the file that a step has found wrong, or ``''``.
        causes: Errors that were told, and the point that did.
    """

    def __init__(self, cls: Any, options: dict, file: str, seed: int = 0) -> None:
        self.cls, self.options, self.file = cls, options, file
        self.settings = settings(seed)
        self.doing, self.line = '', ''
        self.causes: Dict[Tuple[str, str], str] = {}

    def build(
        self,
        setting: Setting = PLAIN,
        resolution: Tuple[int, int] = PLAIN.hw_shape,
        **options: Any,
    ) -> Any:
        """A module in eval mode, of whose floating-point parameters none is all zero."""
        module = self.cls(
            embed_dims=setting.dims,
            num_heads=setting.heads,
            input_resolution=resolution,
            **{**self.options, **options},
        )
        for parameter in module.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                self.move(parameter.data)
        return module.eval()

    @staticmethod
    def move(value: Tensor) -> None:
        """Move a parameter, but not past a limit: nearer to zero, or a little above it."""
        drawn = torch.rand_like(value)
        if value.any():
            value *= 1 - drawn / 10
        else:
            value += drawn / 50

    def on(self, setting: Setting, step: str = 'on') -> Setting:
        """The setting, which messages then name."""
        self.doing = f'{step} {setting}'
        return setting

    def small(self, most: Optional[int] = None) -> List[Setting]:
        """The first settings that work on small maps."""
        return [setting for setting in self.settings if setting.is_small][:most]

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

    def told(self, error: BaseException) -> Tuple[str, str]:
        """The text of an error, and its line of the file, or ``''``."""
        if isinstance(error, Broken):
            return str(error), self.line
        first = (str(error).strip().splitlines() or [''])[0]
        return f'{self.doing}: {type(error).__name__}: {first}', line_of_error(error, self.file)

    @cached_property
    def precision(self) -> 'Precision':
        """fp64, or what an attention without fp64 computes in."""
        setting = self.small(1)[0]
        module, x = self.build(setting).double(), setting.tokens(dtype=torch.float64)
        try:
            with torch.no_grad(), Casts(self.file) as casts:
                module(x, setting.hw_shape)
        except RuntimeError as error:  # of operations that got fp64 and fp32
            line = line_of_error(error, self.file) or casts.line
            return Precision(torch.float32, 1e-4, 'checked in fp32, as it takes no fp64', line)
        if casts.dtype is None:
            return Precision(torch.float64, 1e-9)
        text = f'checked to the precision of {str(casts.dtype)[6:]}, to which it casts fp64'
        rounding = 5e-2 if casts.dtype in HALVES else 1e-4
        return Precision(torch.float64, rounding, text, casts.line, casts.dtype)

    def exact(self, setting: Setting, **options: Any) -> Any:
        """A module in fp64, or in fp32 if it takes no fp64."""
        return self.build(setting, **options).to(self.precision.dtype)

    def tokens(self, setting: Setting, **options: Any) -> Tensor:
        """Tokens for a module of :meth:`exact`."""
        return setting.tokens(dtype=self.precision.dtype, **options)

    def alike(self, value: Tensor, expected: Tensor) -> bool:
        """Whether outputs of a module of :meth:`exact` differ by the order of sums alone."""
        return alike(value, expected, self.precision.rounding)


class Precision(NamedTuple):
    """In what an attention is checked where values must be exact.

    Attributes:
        dtype: The dtype.
        rounding: Relative error of an output whose sums have another order.
        text: Why that is not fp64, or ``''``.
        line: The line of the file that is the reason, or ``''``.
        casts_to: The dtype with the fewest bits that it casts to, or None.
    """

    dtype: torch.dtype
    rounding: float
    text: str = ''
    line: str = ''
    casts_to: Optional[torch.dtype] = None


def alike(value: Tensor, expected: Tensor, relative: float) -> bool:
    """Whether a tensor is near another one, relative to the largest value of that."""
    most = expected.abs().max().item() if expected.numel() else 0.0
    return torch.allclose(value, expected, atol=relative * most, rtol=0)


def build(case: Case) -> None:
    case.doing = 'with embed_dims, num_heads and input_resolution alone'
    module = case.build()
    case.require(isinstance(module, BaseAttention), 'it does not extend BaseAttention')
    case.require(
        getattr(module, 'embed_dims', None) == C,
        'the constructor did not call super().__init__(embed_dims, num_heads, input_resolution)',
    )

    def check(setting: Setting) -> None:
        case.doing = f'with embed_dims {setting.dims} and num_heads {setting.heads}'
        case.build(setting)

    keep_what_works(case, 'build', check)


def keep_what_works(case: Case, point: str, check: Callable[[Setting], None]) -> None:
    """Keep the settings whose check raises nothing. Of several errors, each cause is told once.

    Raises:
        Broken: If a check raises.
    """
    works, lines, texts = [], [], []
    for setting in case.settings:
        case.line = ''
        try:
            check(setting)
        except (Exception, SystemExit) as error:  # of the attention, which is what is looked for
            text, line = case.told(error)
            kind = type(error).__name__
            if isinstance(error, Broken):
                kind = re.sub(r'\d+', '', text.rpartition(': ')[2])  # sizes differ, not the cause
            if (kind, line) not in case.causes:
                case.causes[kind, line] = point
                texts.append(text)
                lines.append(line)
        else:
            works.append(setting)
    few = f' ({len(case.settings) - len(works)} of {len(case.settings)} settings fail)'
    case.settings = works
    if texts:
        case.line = lines[0]
        others = [f'{text} [{line}]' if line else text for text, line in zip(texts, lines)][1:]
        raise Broken('; '.join([texts[0] + few, *others]))


def any_size(case: Case) -> None:
    def check(setting: Setting) -> None:
        module, x = case.build(case.on(setting)), setting.tokens(requires_grad=True)
        out = module(x, setting.hw_shape)
        case.require(
            isinstance(out, Tensor) and out.shape == x.shape,
            f'the output must be {tuple(x.shape)}, got {tuple(getattr(out, "shape", ()))}',
        )
        case.require(out.isfinite().all(), 'the output is not finite')
        out.square().sum().backward()
        case.require(x.grad is not None, 'the input gets no gradient')
        grads = [value.grad for value in (x, *module.parameters()) if value.grad is not None]
        case.require(all(g.isfinite().all() for g in grads), 'gradients are not finite')
        with torch.no_grad():
            # As backbones have them, from a map (B, C, H, W).
            strided, outs = x.detach().transpose(1, 2).contiguous().transpose(1, 2), []
            for given in (x.detach(), strided):
                seed_numbers(1)  # some draw
                outs.append(module(given, setting.hw_shape))
            case.require(
                alike(outs[1], outs[0], 1e-4),
                'tokens that lie otherwise in memory, as those of a map (B, C, H, W), have another '
                'output',
            )
            case.require(torch.equal(strided, x), 'it changes its input in place')

    keep_what_works(case, 'any size', check)


def batch(case: Case) -> None:
    for number, setting in enumerate(case.settings):
        if setting.hw_shape == LARGE_MAPS[1]:
            continue
        # Batches of one are the other side of the comparison.
        setting = setting._replace(images=max(setting.images, 2))
        modes = ('eval', 'train') if setting.is_small else ('eval',)
        for mode in modes if number < 5 else modes[:1]:
            module = case.exact(setting).train(mode == 'train')
            case.on(setting, f'in {mode} mode, on')
            with NoDropout(), torch.no_grad():
                same_in_each_batch(case, module, setting)


def same_in_each_batch(case: Case, module: nn.Module, setting: Setting) -> None:
    """Require that an image has one output alone, among others, and at another place."""
    x = case.tokens(setting)
    image = int(torch.randint(setting.images, ()))
    others = 3 * torch.randn_like(x)
    others[image] = x[image]

    def out_of(images: Tensor, seed: int = 1) -> Tensor:
        seed_numbers(seed)  # some draw
        return copy.deepcopy(module)(images, setting.hw_shape)

    out = out_of(x)[image]
    case.require(
        case.alike(out_of(others)[image], out),
        'an image has another output with other images in its batch',
    )
    if not case.alike(out_of(x, seed=2)[image], out):
        return  # what is drawn has the shape of the batch
    case.require(
        case.alike(out_of(x[image : image + 1])[0], out),
        'an image has another output with a batch of its own',
    )
    case.require(
        case.alike(out_of(x.flip(0)).flip(0)[image], out),
        'an image has another output at another place in its batch',
    )


def seed_numbers(seed: int) -> None:
    """Begin the random numbers of a CPU, on which all points are checked, anew.

    ``torch.manual_seed`` also writes down where it was called, for GPUs that have not started. That
    takes longer than a small attention.
    """
    torch.default_generator.manual_seed(seed)


@torch.no_grad()
def draws(module: nn.Module, x: Tensor, hw_shape: Tuple[int, int]) -> bool:
    """Whether the output depends on random numbers."""
    outs = []
    for seed in (1, 2):
        seed_numbers(seed)
        outs.append(copy.deepcopy(module)(x, hw_shape))
    return not alike(outs[0], outs[1], 1e-6)


@torch.no_grad()
def positions(case: Case) -> str:
    seen = 'it knows no positions'
    for setting in case.settings:
        height, width = setting.hw_shape
        if height == width or min(height, width) == 1 or setting.hw_shape == LARGE_MAPS[0]:
            continue
        setting = case.on(setting._replace(images=1), 'with tokens in another order, on')
        module, x = case.exact(setting), case.tokens(setting)
        out, order = module(x, (height, width)), torch.randperm(height * width)
        if case.alike(module(x[:, order], (height, width)), out[:, order]):
            continue
        seen = 'it knows positions'
        case.require(
            not case.alike(module(x, (width, height)), out),
            f'it knows positions, but {height} x {width} and {width} x {height} tokens are one to '
            'it: use hw_shape',
        )
    near = [rows_and_columns(case, hw_shape) for hw_shape in ((9, 5), (10, 7))]
    case.doing = 'on maps of 9 x 5 and 10 x 7 tokens'
    case.require(
        not all(3 * below < wrong for below, wrong in near),
        'a token changes those H places before and after it, and not those W places away, which '
        'are above and below: it takes height for width',
    )
    return seen


def rows_and_columns(case: Case, hw_shape: Tuple[int, int]) -> Tuple[float, float]:
    """How much a token changes others at W places from it, at most, and at H places, at least.

    At W places is the same column. At H places, on a map that is higher than wide, is neither the
    same row nor, unless W divides H, the same column.
    """
    height, width = hw_shape
    setting = case.small(1)[0]._replace(images=1, hw_shape=hw_shape)
    module, x = case.exact(setting), case.tokens(setting)
    out, below, wrong = module(x, hw_shape), [], []
    for token in torch.arange(height, height * (width - 1))[:: height + 1].tolist():
        moved = x.clone()
        moved[:, token] += torch.randn_like(moved[:, token])
        change = (module(moved, hw_shape) - out).norm(dim=-1)[0]
        below += [change[token - width].item(), change[token + width].item()]
        wrong += [change[token - height].item(), change[token + height].item()]
    return max(below), min(wrong)


def finite(case: Case) -> None:
    for setting in case.small(4):
        module, shape = case.build(setting), setting.tokens().shape
        zeros, same = torch.zeros(shape), torch.ones(shape)
        for name, x in (('zeros', zeros), ('equal tokens', same), ('values of 1e4', 1e4 * same)):
            case.on(setting, f'with {name}, on')
            given = x.clone().requires_grad_()
            out = case.watched(module, given, setting.hw_shape)
            case.require(out.isfinite().all(), 'the output is not finite')
            (out * torch.randn_like(out)).mean().backward()
            case.require(
                given.grad is not None and given.grad.isfinite().all(), 'gradients are not finite'
            )
            case.require(torch.equal(given, x), 'it changes its input in place')


def half(case: Case, dtype: torch.dtype, name: str) -> None:
    if dtype == torch.float16 and not hasattr(torch.amp, 'is_autocast_available'):
        raise NotHere('before torch 2.4, CPUs have no autocast of float16')
    for setting in case.small(3):
        module, x = case.build(setting), setting.tokens()
        case.on(setting, f'under {name} autocast, on')
        exact = module(x, setting.hw_shape).detach()
        with torch.autocast('cpu', dtype):
            out = module(x, setting.hw_shape).detach()
        # Linears round inputs and outputs to the half: a few roundings of the largest value.
        off = (out.float() - exact).abs().max() / (torch.finfo(dtype).eps * exact.abs().max())
        case.require(off <= 8, f'the output is {off:.0f} roundings from that of fp32, must be <= 8')
    setting = case.small(1)[0]._replace(images=1, hw_shape=(32, 32))
    case.on(setting, f'under {name} autocast, with tokens of standard deviation {LARGE:g}, on')
    module, large = case.build(setting), (LARGE * setting.tokens()).requires_grad_()
    exact = module(large, setting.hw_shape).detach()
    with torch.autocast('cpu', dtype):
        out = case.watched(module, large, setting.hw_shape)
    case.require(out.isfinite().all(), 'the output is not finite')
    # An infinite normaliser gives finite zeros. Attentions of this library are off by 0.04 at most.
    off = (out.detach().float() - exact).norm() / exact.norm()
    case.require(off <= 0.1, f'the output is off by {off:.2f} of its norm in fp32, must be <= 0.1')
    out.float().mean().backward()
    case.require(large.grad is not None and large.grad.isfinite().all(), 'gradients are not finite')


def gradients(case: Case) -> str:
    """In fp64, along random directions of the input and of all parameters."""
    narrow, case.line = case.precision.casts_to, case.precision.line
    case.doing = 'in fp64'
    case.require(narrow not in HALVES, f'it casts to {str(narrow)[6:]}, whatever it is given')
    case.line = ''
    for number, setting in enumerate(case.settings):
        if setting.hw_shape == LARGE_MAPS[1]:
            continue
        for mode in ('eval', 'train')[: 2 if number < 3 else 1]:
            module = case.exact(setting).train(mode == 'train')
            case.on(setting, f'against finite differences, in {mode} mode, on')
            right_along_directions(case, module, setting)
    case.line = case.precision.line
    helper = '; mmlaplace.ops.precision.upcast casts halves alone'
    return case.precision.text and case.precision.text + helper


def right_along_directions(case: Case, module: nn.Module, setting: Setting) -> None:
    """Require the derivative of a random sum of the outputs, along random directions.

    A step over a kink, as of ReLU, gives another difference than the derivative. Then a smaller
    step is tried, in another direction.
    """
    x = case.tokens(setting, requires_grad=True)
    values = {'the input': x, **dict(module.named_parameters())}
    values = {name: value for name, value in values.items() if value.requires_grad}
    weights = torch.randn_like(x)

    def total() -> Tensor:
        seed_numbers(1)  # some draw
        return (module(x, setting.hw_shape).double() * weights).sum()

    found = torch.autograd.grad(total(), list(values.values()), allow_unused=True)
    # Each value moves by a part of its own size.
    sizes = {name: value.detach().square().mean().sqrt() for name, value in values.items()}
    grads = {
        name: torch.zeros_like(values[name]) if grad is None else grad * sizes[name]
        for name, grad in zip(values, found)
    }
    norm = math.sqrt(sum(grad.square().sum().item() for grad in grads.values()))
    draw = torch.Generator().manual_seed(setting.images)

    def is_right(step: float, *names: str) -> bool:
        ways = {name: torch.empty_like(values[name]).normal_(generator=draw) for name in names}
        totals = []
        with torch.no_grad():
            for sign in (1, -2, 1):  # forth, back, and to where it was
                for name, way in ways.items():
                    values[name].data += sign * step * sizes[name] * way
                totals.append(total().item())
        difference = (totals[0] - totals[1]) / (2 * step)
        expected = sum((grads[name] * way).sum().item() for name, way in ways.items())
        return abs(difference - expected) <= relative * max(norm, abs(difference))

    # Differences of fp32 need larger steps, in which the function bends.
    steps, relative = (1e-6, 1e-7, 1e-8), 1e-3  # one of 400 tokens is 0.05
    if case.precision.text:
        steps, relative = (1e-2, 5e-3, 2e-3), 5e-2
    if not any(is_right(step, *values) for step in steps):
        wrong = next((name for name in values if not is_right(steps[-1], name)), 'the input')
        raise Broken(f'{case.doing}: the gradient of {wrong} is wrong')


def parameters(case: Case) -> None:
    setting = case.small(1)[0]
    module = case.build(setting).train()
    for images in (2, 0):
        case.doing = f'in a batch of {images} images'
        module.zero_grad(set_to_none=True)
        out = module(setting._replace(images=images).tokens(), setting.hw_shape)
        out.square().sum().backward()
        for name, weight in module.named_parameters():
            case.require(
                weight.grad is not None or not weight.requires_grad,
                f'the parameter {name} gets no gradient, for which DistributedDataParallel waits',
            )


@torch.no_grad()
def mask(case: Case) -> str:
    # A convolution of the values sees hidden tokens too.
    lepe: Any = {} if 'lepe_kernel' not in case.cls.known_options() else dict(lepe_kernel=0)
    if not case.build(**lepe).accepts_mask:
        setting = case.small(1)[0]
        tokens = setting.hw_shape[0] * setting.hw_shape[1]
        case.doing = 'with a mask, as accepts_mask is false'
        try:
            seen = torch.ones(1, 1, tokens, tokens, dtype=torch.bool)
            case.build(setting, **lepe)(setting.tokens(), setting.hw_shape, mask=seen)
        except (ValueError, TypeError):
            return 'it takes no mask, and says so'
        raise Broken(f'{case.doing}: it ignores the mask; raise a ValueError, as check_mask does')
    for setting in case.small():
        case.on(setting, 'with a mask, on')
        keeps_to_masks(case, case.exact(setting, **lepe), setting)
    return 'it keeps to masks of each image, head and query'


def keeps_to_masks(case: Case, module: Any, setting: Setting) -> None:
    """Require that hidden tokens change nothing, for another mask in each image, head and query."""
    x, hw_shape = case.tokens(setting), setting.hw_shape
    images, tokens, _ = x.shape
    shape = images, setting.heads, tokens, tokens
    whole, sees_all = module(x, hw_shape), torch.ones(1, 1, 1, 1, dtype=torch.bool)
    for size in (shape, (1, 1, tokens, tokens), (1, 1, 1, tokens)):
        case.require(
            case.alike(module(x, hw_shape, mask=sees_all.expand(size)), whole),
            'a mask that hides nothing changes the output',
        )
    if tokens < 3:
        return
    # Tokens that some head of a query sees, and for each head half of these. A query sees itself.
    itself = torch.eye(tokens, dtype=torch.bool)
    by_query = (torch.rand(images, 1, tokens, tokens) < 0.5) | itself
    seen = (by_query & (torch.rand(shape) < 0.5)) | itself
    out = module(x, hw_shape, mask=seen)
    for query in torch.randperm(tokens)[:4].tolist():
        hidden = ~by_query[:, 0, query, :, None]  # (images, tokens, 1)
        changed = module(x + 3 * torch.randn_like(x) * hidden, hw_shape, mask=seen)
        case.require(
            case.alike(changed[:, query], out[:, query]),
            'tokens that the mask of an image and a query hides change the output there',
        )
    first = seen[:, :1].expand(shape)
    case.require(
        setting.heads == 1 or not case.alike(module(x, hw_shape, mask=first), out),
        'the masks of other heads than the first change nothing',
    )


@torch.no_grad()
def prefix(case: Case) -> str:
    reason = getattr(case.cls, 'no_prefix_tokens', BaseAttention.no_prefix_tokens)
    if reason:
        return f'it takes no class token: {reason}'
    count = 3
    order = torch.tensor([1, 2, 0])
    for setting in case.small():
        module = case.exact(setting, num_prefix_tokens=count)
        case.on(setting, f'with {count} tokens before the map, on')
        before = setting._replace(hw_shape=(count, 1))
        x = torch.cat([case.tokens(before), case.tokens(setting)], 1)
        out = module(x, setting.hw_shape)
        case.require(
            isinstance(out, Tensor) and out.shape == x.shape,
            f'the output must be {tuple(x.shape)}, got {tuple(getattr(out, "shape", ()))}',
        )
        case.require(out.isfinite().all(), 'the output is not finite')
        for moved, seen in ((x.shape[1] - 1, slice(count)), (0, slice(count, None))):
            other = x.clone()
            other[:, moved] += 3 * torch.randn_like(other[:, moved])
            change = module(other, setting.hw_shape)[:, seen] - out[:, seen]
            case.require(change.any(), 'tokens of the map and those before it do not mix')
        turned = torch.cat([x[:, order], x[:, count:]], 1)
        expected = torch.cat([out[:, order], out[:, count:]], 1)
        case.require(
            tells_apart(case, setting, count)
            or case.alike(module(turned, setting.hw_shape), expected),
            'tokens before the map have places, though no parameter is of one of them: leave out '
            'the first num_prefix_tokens where the rule needs the map',
        )
    return 'tokens before the map are mixed with those of the map'


def tells_apart(case: Case, setting: Setting, count: int) -> bool:
    """Whether parameters have a size that depends on the number of tokens before the map."""
    weights = (case.exact(setting, num_prefix_tokens=n).state_dict() for n in (1, count))
    first, second = ({name: value.shape for name, value in state.items()} for state in weights)
    return first != second


@torch.no_grad()
def repeat(case: Case) -> None:
    setting = case.small(1)[0]
    module = case.build(setting)
    before, fresh = copy.deepcopy(module.state_dict()), copy.deepcopy(module)
    calls = []
    for other in case.settings:
        for turned in (other, other.turned()) if other.is_small else (other,):
            tried = turned._replace(heads=setting.heads, head_dims=setting.head_dims)
            x = tried._replace(images=min(tried.images, 2)).tokens()
            calls.append((tried, x, copy.deepcopy(fresh)(x, tried.hw_shape)))
    for tried, x, expected in (*calls, *calls[::-1]):
        case.on(tried, 'in eval mode, on')
        case.require(
            alike(module(x, tried.hw_shape), expected, 1e-6),
            'after other calls, the output is not that of a new module with the same weights: it '
            'draws at random, or keeps what belongs to a call',
        )
    case.doing = 'in eval mode'
    same = all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    case.require(same, 'a call changes the state dict')


@torch.no_grad()
def save(case: Case) -> None:
    setting = case.small(1)[0]
    module, x = case.build(setting), setting.tokens()
    expected = module(x, setting.hw_shape)
    weights = module.state_dict()

    def loaded(called: bool) -> nn.Module:
        fresh = case.build(setting)
        if called:
            fresh(x, setting.hw_shape)
        fresh.load_state_dict(weights)
        return fresh

    ways: Dict[str, Callable[[], Any]] = {
        'its state dict, in a new module,': lambda: loaded(called=False),
        'its state dict, in a module that has been called,': lambda: loaded(called=True),
        'copy.deepcopy': lambda: copy.deepcopy(module),
        'pickle': lambda: pickle.loads(pickle.dumps(module)),
    }
    for way, copied in ways.items():
        case.doing = f'after {way}'
        case.require(
            torch.equal(copied()(x, setting.hw_shape), expected),
            'the output differs; register what it depends on as a parameter or buffer, and compute '
            'nothing from weights that outlives a call',
        )


@torch.no_grad()
def device(case: Case) -> str:
    for setting in case.small(3):
        case.on(setting, 'on tensors of a GPU without values, with')
        module = case.build(setting)
        weights = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                on_gpu = {name: torch.empty_like(w, device='cuda') for name, w in weights.items()}
                x = setting.tokens(device='cuda')
                torch.func.functional_call(module, on_gpu, (x, setting.hw_shape))
        except DataDependentOutputException as error:
            raise NotHere('it reads values, which tensors without values have not') from error
    return 'right on tensors of a GPU that have no values; no GPU was used'


def compiled(case: Case) -> str:
    if not hasattr(torch.amp, 'is_autocast_available'):
        raise NotHere('before torch 2.4, torch.compile traces no context managers of libraries')
    setting = case.small(2)[-1]
    module, x = case.build(setting).train(), setting.tokens()
    mode = 'eval' if draws(module, x, setting.hw_shape) else 'train'
    module.train(mode == 'train')  # compiled code draws other numbers
    case.on(setting, f'by torch.compile in one graph, in {mode} mode, on')
    torch._dynamo.reset()
    # Inductor would compile for most of a minute. This is all before its code.
    graph: Any = torch.compile(module, backend='aot_eager_decomp_partition', fullgraph=True)
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    outs, grads = [], []
    for function in (module, graph):
        seed_numbers(1)
        outs.append(function(x, setting.hw_shape))
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
            out, expected = (
                torch.from_numpy(session.run(None, {'x': x.numpy()})[0]),
                module(x).detach(),
            )
            off.append(((out - expected).abs().max() / expected.abs().max()).item())
        if max(off) <= 1e-4:
            return f'right in ONNX Runtime at two sizes, in {str(dtype)[6:]}'
        file = io.BytesIO()
    raise Broken(f'in ONNX Runtime: the output is off by {max(off):.1e} of the largest value')


def linear(case: Case) -> str:
    measured: Dict[str, List[float]] = {}
    narrow = min(case.small(), key=lambda setting: setting.dims * (setting.heads > 1))
    for side in SIDES:
        setting = narrow._replace(images=1, hw_shape=(side, side))
        module = case.build(case.on(setting), (side, side)).train()
        x = setting.tokens(requires_grad=True)

        def job(module: Any = module, x: Tensor = x, side: int = side) -> tuple:
            module(x, (side, side)).sum().backward()
            return ()

        flops = FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS)
        with flops, Work(case.file) as work:
            job()
        memory = tensor_memory(job, x.device) or 0
        start = time.perf_counter()
        job()
        seconds = time.perf_counter() - start
        values = dict(memory=memory, FLOPs=flops.get_total_flops(), elements=work.elements)
        for name, value in dict(values, seconds=seconds).items():
            measured.setdefault(name, []).append(max(value, 1e-9))
    grown = {name: exponent(values, SIDES) for name, values in measured.items()}
    text = (
        f'from {SIDES[0]}² to {SIDES[-1]}² tokens, memory grows as N^{grown["memory"]:.2f}, FLOPs '
        f'as N^{grown["FLOPs"]:.2f}, and elements read and written as N^{grown["elements"]:.2f} '
        f'(time here: N^{grown["seconds"]:.2f})'
    )
    too_much = [name for name in ('memory', 'FLOPs', 'elements') if grows(measured[name])]
    if too_much:
        case.line = work.line if too_much == ['elements'] else work.largest_line
        raise Broken(f"{text}; if that is meant, set not_promised = dict(linear='why')")
    return text


def exponent(values: Sequence[float], sides: Sequence[int]) -> float:
    """The power of the number of tokens by which values grow from the first side to the last."""
    return math.log(values[-1] / values[0]) / math.log((sides[-1] / sides[0]) ** 2)


def grows(values: Sequence[float]) -> bool:
    """Whether values of the three sides grow by more than a linear attention.

    Between two of them, one may jump, such as where an attention cuts large maps into parts.
    """
    steps = exponent(values[:2], SIDES[:2]), exponent(values[1:], SIDES[1:])
    return exponent(values, SIDES) > LINEAR and min(steps) > STEADY


class Point(NamedTuple):
    """A point of the contract.

    Attributes:
        asks: What it asks of an attention.
        check: The function that raises where it does not hold. It may return what was seen.
    """

    asks: str
    check: Callable[[Case], Any]


POINTS: Dict[str, Point] = {
    'build': Point(
        'it is built from embed_dims, num_heads and input_resolution, for any heads', build
    ),
    'any size': Point(
        'maps of any height and width, one token and thousands too, however they lie in memory',
        any_size,
    ),
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
    'prefix': Point('a class token and registers are mixed, or are refused with a reason', prefix),
    'repeat': Point('in eval mode, calls give the same in any order and change nothing', repeat),
    'save': Point('state dict, deepcopy and pickle keep the output', save),
    'device': Point('new tensors are on the device of the input', device),
    'compile': Point('torch.compile, in one graph', compiled),
    'onnx': Point('ONNX, for any batch and size', onnx),
    'linear': Point('memory, FLOPs and elements read and written are linear in the tokens', linear),
}
