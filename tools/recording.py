"""What the tools share about looking into attentions: photographs, and queries, keys and values."""

from functools import partial
from typing import Iterator, List, NamedTuple, Tuple

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch import Tensor

from mmlaplace.models import BaseAttention

PHOTOS = ('astronaut', 'cat', 'coffee')
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class Mixed(NamedTuple):
    """What one attention mixed for a batch of images.

    Attributes:
        stage, block: Where it is in the backbone.
        attention: The module.
        q, k, v: ``(B, heads, N, head_dims)``.
        hw_shape: Height and width of the map.
    """

    stage: int
    block: int
    attention: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    hw_shape: Tuple[int, int]


def photographs(size: Tuple[int, int]) -> List[Tensor]:
    """Normalised photographs of scikit-image, each ``(1, 3, H, W)``."""
    from skimage import data

    images = []
    for name in PHOTOS:
        photo = Image.fromarray(getattr(data, name)()).resize(size[::-1], Image.Resampling.BICUBIC)
        pixels = (np.asarray(photo, np.float32) - MEAN) / np.asarray(STD)
        images.append(torch.from_numpy(pixels).float().permute(2, 0, 1).unsqueeze(0))
    return images


def mixed_by(backbone: nn.Module, kind: type, image: Tensor) -> Iterator[Mixed]:
    """What the attentions of a kind mix in one forward pass without gradients, in their order."""
    found = []

    def record(stage, block, attention, mix, q, k, v, hw_shape, **kwargs):
        found.append(Mixed(stage, block, attention, q, k, v, hw_shape))
        return mix(q, k, v, hw_shape, **kwargs)

    watched = [
        (i, j, module)
        for i, stage in enumerate(backbone.stages)
        for j, block in enumerate(stage['blocks'])
        for module in block.modules()
        if isinstance(module, kind) and isinstance(module, BaseAttention)
    ]
    for i, j, module in watched:
        module.mix = partial(record, i, j, module, module.mix)
    try:
        with torch.no_grad():
            backbone(image)
    finally:
        for _, _, module in watched:
            del module.mix  # the class has the method
    yield from found
