"""Record the queries, keys and values of attentions, for photographs among others."""

from contextlib import contextmanager
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Sequence,
    Tuple,
    Type,
)

import numpy as np
import torch
import torch.nn as nn
from torch import Tensor

if TYPE_CHECKING:
    from PIL import Image

PHOTOS = ('astronaut', 'cat', 'coffee')
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
IMAGENET = dict(mean=MEAN, std=STD, to_rgb=True)


class Mixed(NamedTuple):
    """The queries, keys and values that one attention mixed for a batch of images.

    Attributes:
        stage: Number of the stage in the backbone, from 0.
        block: Number of the block in the stage, from 0.
        attention: The module.
        q: Queries ``(B, heads, N, head_dims)``. In :class:`WindowAttention`, B counts windows.
        k: Keys ``(B, heads, n, head_dims)``. In most attentions n is N.
        v: Values ``(B, heads, n, head_dims)``.
        hw_shape: Height and width of the map, or of a window.
        options: Further arguments of the attention's ``mix``, such as a mask.
        map_shape: Height and width of the block's map.
        outer: The attention of the block: ``attention``, or the :class:`WindowAttention` that
            holds it.
    """

    stage: int
    block: int
    attention: Any  # a QKVAttention, typed so because callers use members of its subclasses
    q: Tensor
    k: Tensor
    v: Tensor
    hw_shape: Tuple[int, int]
    options: dict
    map_shape: Tuple[int, int]
    outer: nn.Module


def rgb(photo: 'Image.Image') -> 'Image.Image':
    """A photograph as the toolboxes load it: upright, in RGB with 8 bits.

    Raises:
        ValueError: For pixels that are no whole numbers of 8 or 16 bits.
    """
    from PIL import Image, ImageOps

    photo = ImageOps.exif_transpose(photo)
    if photo.mode.startswith(('I', 'F')):  # grey, where Pillow would clip values at 255
        grey = np.asarray(photo)
        if photo.mode == 'F' or grey.min() < 0 or grey.max() > 65535:
            raise ValueError(
                f'the image has values from {grey.min():g} to {grey.max():g} ({photo.mode!r} of '
                'Pillow); save it with 8 or 16 bits'
            )
        if photo.mode != 'I' or grey.max() > 255:  # 16 bits
            grey = grey >> 8
        photo = Image.fromarray(grey.astype(np.uint8))
    return photo.convert('RGB')


def rgb_array(photo: 'Image.Image', size: Tuple[int, int]) -> np.ndarray:
    """A photograph, resized to (H, W), as RGB pixels ``(H, W, 3)`` in fp32 from 0 to 255."""
    from PIL import Image

    photo = rgb(photo).resize(size[::-1], Image.Resampling.BICUBIC)
    return np.array(photo, np.float32)


def normalized(
    photo: 'Image.Image', size: Tuple[int, int], preprocessor: Mapping[str, Any] = IMAGENET
) -> Tensor:
    """A photograph as a backbone gets it, resized to (H, W) and normalised, ``(1, C, H, W)``.

    Args:
        photo: The photograph.
        size: Height and width.
        preprocessor: The ``data_preprocessor`` of the model's config. Its ``mean``, ``std`` and
            ``to_rgb`` (``bgr_to_rgb`` in mmdet and mmseg) are used. As in the toolboxes, the
            channels are BGR without it. A single mean gives a grey image, and C other means the
            channels red, green, blue, red and so on. Default: ImageNet's, of RGB.
    """
    mean, std = preprocessor.get('mean'), preprocessor.get('std')
    pixels = rgb_array(photo, size)
    channels = 3 if mean is None or std is None else len(mean)
    if channels == 1:
        pixels = rgb_array(rgb(photo).convert('L'), size)[..., :1]
    elif channels != 3:
        pixels = pixels[..., [channel % 3 for channel in range(channels)]]
    elif not any(preprocessor.get(name) for name in ('to_rgb', 'bgr_to_rgb', 'rgb_to_bgr')):
        pixels = pixels[..., ::-1]
    if mean is not None and std is not None:
        pixels = (pixels - mean) / np.asarray(std)
    return torch.from_numpy(pixels.copy()).float().permute(2, 0, 1).unsqueeze(0)


def photograph(name: str) -> 'Image.Image':
    """A photograph of scikit-image, one of ``PHOTOS``."""
    from PIL import Image
    from skimage import data

    return Image.fromarray(getattr(data, name)())


def photographs(size: Tuple[int, int], preprocessor: Mapping[str, Any] = IMAGENET) -> List[Tensor]:
    """The photographs ``PHOTOS`` of scikit-image as :func:`normalized` makes them."""
    return [normalized(photograph(name), size, preprocessor) for name in PHOTOS]


def with_channels(images: Tensor, channels: int) -> Tensor:
    """Images ``(B, channels, H, W)`` of RGB ones: red, green, blue, red and so on."""
    return images[:, [channel % 3 for channel in range(channels)]]


def mixed_by(backbone: Any, kind: Type[nn.Module], image: Tensor) -> Iterator[Mixed]:
    """Run a backbone on an image without gradients, and record the inputs of its attentions.

    Args:
        backbone: A backbone with ``stages``.
        kind: The class of the attentions to record.
        image: The input ``(B, 3, H, W)``.

    Yields:
        A :class:`Mixed` for each attention, in the order of the forward pass.
    """
    records: List[Mixed] = []
    running: Dict[str, Any] = {}  # the block that runs

    def enter(stage, number, block, inputs):
        running.update(stage=stage, block=number, map_shape=inputs[1], outer=block.attn)

    def record(attention, mix, q, k, v, hw_shape, **options):
        mixed = dict(attention=attention, q=q, k=k, v=v, hw_shape=hw_shape, options=options)
        records.append(Mixed(**mixed, **running))
        return mix(q, k, v, hw_shape, **options)

    hooks = []
    methods: Dict[nn.Module, Tuple[nn.Module, str, Callable]] = {}  # blocks may share an attention
    for i, stage in enumerate(backbone.stages):
        for j, block in enumerate(stage['blocks']):
            hooks.append(block.register_forward_pre_hook(partial(enter, i, j)))
            for module in block.modules():
                if isinstance(module, kind) and hasattr(module, 'mix'):
                    methods[module] = (module, 'mix', partial(record, module, module.mix))
    try:
        with _replaced(list(methods.values())), torch.no_grad():
            backbone(image)
    finally:
        for hook in hooks:
            hook.remove()
    yield from records


@contextmanager
def _replaced(methods: Sequence[Tuple[nn.Module, str, Callable]]) -> Iterator[None]:
    """A context in which methods of modules are replaced. Afterwards they are as before."""
    before = [(part, name, vars(part).get(name)) for part, name, _ in methods]
    for part, name, method in methods:
        setattr(part, name, method)
    try:
        yield
    finally:
        for part, name, own in before:
            if own is None:
                delattr(part, name)  # then the method of the class is visible again
            else:
                setattr(part, name, own)


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """A context in which a module and its parts are in eval mode. Then each is as before."""
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
    """A context that calls ``see(name, part, step, arguments, output)`` after some methods.

    Args:
        module: The model.
        kind: Class of the submodules to watch, such as :class:`~mmlaplace.models.QKVAttention`.
        steps: Names of the methods. A submodule may lack some of them.
        see: A function. Its arguments are the name of the submodule in ``module``, the submodule,
            the name of the method, the positional arguments of the call and its result.
    """

    def watched(name, part, step, method, *arguments, **options):
        output = method(*arguments, **options)
        see(name, part, step, arguments, output)
        return output

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
    """The root mean square of all values, in double precision."""
    return x.double().square().mean().sqrt().item()


def attention_matrix(mixed: Mixed, channel: int = 0, window: int = 0) -> Tensor:
    """The weights by which an attention mixed one channel of the values.

    Row i is the gradient of the mixed value of query i with respect to the values. This is exact,
    because attentions mix values linearly.

    Args:
        mixed: The recorded queries, keys and values.
        channel: Channel of a head. In most attentions all channels have the same weights. In
            :class:`~mmlaplace.models.attentions.PolaAttention`, the first half of the channels has
            the weights of pairs of the same sign, and the second half those of pairs of opposite
            signs. In :class:`~mmlaplace.models.attentions.HydraAttention`, each channel has its
            own weights. Default: 0.
        window: Number of the window in :class:`WindowAttention`. Default: 0.

    Returns:
        Weights ``(heads, N, n)`` of N queries for n keys.
    """
    with torch.enable_grad():
        value = mixed.v.detach().requires_grad_()
        out = mixed.attention.mix(mixed.q, mixed.k, value, mixed.hw_shape, **mixed.options)
        rows = [
            torch.autograd.grad(query.sum(), value, retain_graph=True)[0][window, ..., channel]
            for query in out[window, ..., channel].unbind(-1)  # all heads at once: they do not mix
        ]
    return torch.stack(rows, dim=-2)
