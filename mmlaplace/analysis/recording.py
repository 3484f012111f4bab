"""Look into attentions: photographs, and the queries, keys and values of each of them."""

from contextlib import contextmanager
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterator,
    List,
    NamedTuple,
    Sequence,
    Tuple,
    Type,
)  # fmt: skip

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

PHOTOS = ('astronaut', 'cat', 'coffee')
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class Mixed(NamedTuple):
    """What one attention mixed for a batch of images.

    Attributes:
        stage, block: Where it is in the backbone.
        attention: The module.
        q, k, v: ``(B, heads, N, head_dims)``. In :class:`WindowAttention`, B counts windows.
        hw_shape: Height and width of the map, or of a window.
        options: Further arguments of the mixing, such as a mask.
        map_shape: Height and width of the block's map.
        outer: The block's attention: this one, or :class:`WindowAttention` around it.
    """

    stage: int
    block: int
    attention: Any  # a QKVAttention with the members of its class
    q: Tensor
    k: Tensor
    v: Tensor
    hw_shape: Tuple[int, int]
    options: dict
    map_shape: Tuple[int, int]
    outer: nn.Module


def rgb(photo: 'Image.Image') -> 'Image.Image':
    """A photograph as the toolboxes load it: upright, as RGB of 8 bits."""
    from PIL import Image, ImageOps

    photo = ImageOps.exif_transpose(photo)
    if photo.mode.startswith('I'):  # 16 bits of grey, of which Pillow cuts all above 255
        grey = np.asarray(photo) >> 8
        photo = Image.fromarray(grey.clip(0, 255).astype(np.uint8))
    return photo.convert('RGB')


def rgb_array(photo: 'Image.Image', size: Tuple[int, int]) -> np.ndarray:
    """A photograph, resized to (H, W), as RGB pixels ``(H, W, 3)`` in fp32, 0 to 255."""
    from PIL import Image

    photo = rgb(photo).resize(size[::-1], Image.Resampling.BICUBIC)
    return np.array(photo, np.float32)


def normalized(photo: 'Image.Image', size: Tuple[int, int]) -> Tensor:
    """A photograph, resized to (H, W), as the backbones expect it: ``(1, 3, H, W)``."""
    pixels = (rgb_array(photo, size) - MEAN) / np.asarray(STD)
    return torch.from_numpy(pixels).float().permute(2, 0, 1).unsqueeze(0)


def photograph(name: str) -> 'Image.Image':
    """One of ``PHOTOS``, which scikit-image has."""
    from PIL import Image
    from skimage import data

    return Image.fromarray(getattr(data, name)())


def photographs(size: Tuple[int, int]) -> List[Tensor]:
    """Normalised photographs of scikit-image, each ``(1, 3, H, W)``."""
    return [normalized(photograph(name), size) for name in PHOTOS]


def mixed_by(backbone: Any, kind: Type[nn.Module], image: Tensor) -> Iterator[Mixed]:
    """What the attentions of a kind mix in one forward pass without gradients, in their order."""
    found, place, around = [], (), ()

    def enter(stage, number, block, inputs):
        nonlocal place, around
        place, around = (stage, number), (inputs[1], block.attn)

    def record(attention, mix, q, k, v, hw_shape, **options):
        found.append(Mixed(*place, attention, q, k, v, hw_shape, options, *around))
        return mix(q, k, v, hw_shape, **options)

    blocks = [
        (i, j, block)
        for i, stage in enumerate(backbone.stages)
        for j, block in enumerate(stage['blocks'])
    ]
    # Each once, as blocks may share one.
    watched = dict.fromkeys(
        module
        for _, _, block in blocks
        for module in block.modules()
        if isinstance(module, kind) and hasattr(module, 'mix')
    )
    hooks = [block.register_forward_pre_hook(partial(enter, i, j)) for i, j, block in blocks]
    try:
        methods = [(module, 'mix', partial(record, module, module.mix)) for module in watched]
        with _replaced(methods), torch.no_grad():
            backbone(image)
    finally:
        for hook in hooks:
            hook.remove()
    yield from found


@contextmanager
def _replaced(methods: Sequence[Tuple[nn.Module, str, Callable]]) -> Iterator[None]:
    """Other methods of modules for a while. What a module had of its own comes back."""
    before = [(part, name, vars(part).get(name)) for part, name, _ in methods]
    for part, name, method in methods:
        setattr(part, name, method)
    try:
        yield
    finally:
        for part, name, own in before:
            if own is None:
                delattr(part, name)  # the class has the method
            else:
                setattr(part, name, own)


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """A context in which all parts are in eval mode. Each then gets its own mode back."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


@contextmanager
def steps_watched(
    module: nn.Module, kind: Type[nn.Module], steps: Tuple[str, ...], see: Callable
) -> Iterator[None]:
    """Call ``see(name, part, step, arguments, made)`` after each call of some methods.

    Args:
        module: What has the parts.
        kind: Class of the parts, such as :class:`~mmlaplace.models.QKVAttention`.
        steps: Names of methods. A part may lack some.
        see: Called with a part's name in the module, the part, the step, the positional arguments
            of the call and what it returned.
    """

    def watched(name, part, step, method, *arguments, **options):
        made = method(*arguments, **options)
        see(name, part, step, arguments, made)
        return made

    methods = [
        (part, step, partial(watched, name, part, step, getattr(part, step)))
        for name, part in module.named_modules()
        if isinstance(part, kind)
        for step in steps
        if hasattr(part, step)
    ]
    with _replaced(methods):
        yield


def root_mean_square(x: Tensor) -> float:
    """Over all values, in double precision."""
    return x.double().square().mean().sqrt().item()


def attention_matrix(mixed: Mixed, channel: int = 0, window: int = 0) -> Tensor:
    """The weights by which an attention mixed one channel of the values.

    Row i is the gradient of the mixed value of query i with respect to the values. This is exact,
    as values are mixed linearly.

    Args:
        mixed: What was recorded.
        channel: Channel of a head. All have the same weights but in two attentions. In
            :class:`~mmlaplace.models.attentions.PolaAttention` the first half is mixed by pairs of
            the same signs, and the second half by those of opposite signs. In
            :class:`~mmlaplace.models.attentions.HydraAttention` each channel has weights of its
            own. Default: 0.
        window: Number of the window, for attention in windows. Default: 0.

    Returns:
        Weights ``(heads, N, n)`` of N queries for n keys.
    """
    with torch.enable_grad():
        value = mixed.v.detach().requires_grad_()
        out = mixed.attention.mix(mixed.q, mixed.k, value, mixed.hw_shape, **mixed.options)
        rows = [
            torch.autograd.grad(query.sum(), value, retain_graph=True)[0][window, ..., channel]
            for query in out[window, ..., channel].unbind(-1)  # of all heads, which do not mix
        ]
    return torch.stack(rows, dim=-2)
