"""Necks that make a pyramid of the map of a plain ViT, for heads that read several strides."""

import math
from typing import List, Optional, Sequence, Tuple

import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModule, ModuleList, Sequential
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.backend import ceil_div

from .layers.build import build_map_norm
from .layers.checks import check_counts
from .layers.conv_layers import ConvLayer

__all__ = ['ResizedPyramid', 'SimpleFeaturePyramid']

STRIDES = (4, 8, 16, 32)


def even_stride(patch_size: int) -> int:
    """The power of two that is nearest to a patch: 16 for patches of 14 pixels.

    Examples:
        >>> from mmlaplace.models.plain_necks import even_stride
        >>> even_stride(14), even_stride(8)
        (16, 8)
    """
    return 2 ** round(math.log2(patch_size))


def parse_strides(strides: Sequence[int], num_outs: Optional[int]) -> Tuple[Tuple[int, ...], int]:
    """The strides of a pyramid's levels, and how many levels follow them by max pooling.

    Raises:
        ValueError: For strides that do not rise or are no powers of two, and for fewer
            ``num_outs``.
    """
    is_list = isinstance(strides, (list, tuple)) and len(strides) > 0
    if not is_list or not all(isinstance(s, int) and s > 0 and s & (s - 1) == 0 for s in strides):
        raise ValueError(f'strides must be powers of two, such as {STRIDES}, got {strides!r}')
    if list(strides) != sorted(set(strides)):
        raise ValueError(f'strides must rise, as those of the levels do, got {strides!r}')
    if num_outs is not None and (not isinstance(num_outs, int) or num_outs < len(strides)):
        raise ValueError(
            f'num_outs must be at least the number of strides, {len(strides)}, got {num_outs!r}'
        )
    return tuple(strides), 0 if num_outs is None else num_outs - len(strides)


def cells(side: int, patch_size: int, stride: int) -> int:
    """Cells of a stride for so many patches, in the pyramids of this file.

    Patches of 14 pixels may reach over the image by up to 13, so cells of the even stride 16 are
    those that lie in the patches as a whole: exactly those of an image whose sides are multiples of
    16. Smaller cells divide these. Larger ones join them, and the last ones may reach over them.
    """
    even = even_stride(patch_size)
    within = max(1, side * patch_size // even)
    return within * (even // stride) if stride < even else ceil_div(within, stride // even)


def resized_to(x: Tensor, patch_size: int, stride: int) -> Tensor:
    """A map of patches at a stride, bilinearly, each value at its exact place.

    Where cells reach over the patches, the last ones go on.
    """
    if stride == patch_size:
        return x
    height, width = (cells(side, patch_size, stride) for side in x.shape[2:])
    more = [
        max(0, ceil_div(wanted * stride, patch_size) - side)
        for wanted, side in zip((width, height), x.shape[:1:-1])
    ]
    if any(more):
        x = F.pad(x, (0, more[0], 0, more[1]), mode='replicate')
    x = F.interpolate(
        x,
        scale_factor=patch_size / stride,
        mode='bilinear',
        align_corners=False,
        recompute_scale_factor=False,
    )
    return x[:, :, :height, :width]


def with_pooled(levels: List[Tensor], count: int) -> Tuple[Tensor, ...]:
    """The levels, and so many more, each with every second value of the one before."""
    for _ in range(count):
        levels.append(F.max_pool2d(levels[-1], 1, stride=2))
    return tuple(levels)


@MODELS.register_module()
class SimpleFeaturePyramid(BaseModule):
    """ViTDet's simple feature pyramid: levels of several strides, all of the last map of a ViT.

    Transposed convolutions 2 x 2 of stride 2 enlarge the map, each to half the channels, with a
    norm and GELU between two of them. Max pooling reduces it. A 1 x 1 and a 3 x 3 convolution
    follow on each level, both with a norm. In mmdet it is in the place of ``FPN``, or before
    another neck: ``neck=[dict(type='SimpleFeaturePyramid', ...), dict(type='FPN', ...)]``.

    A map of patches of 14 pixels is first resized bilinearly to the stride of 16, so that levels
    have the strides that heads expect. Give such a model images whose sides are multiples of 16.
    Levels cover the map of that stride: where its sides are odd, the last cells reach over it.

    Args:
        in_channels: Channels C of the map.
        out_channels: Channels D of the levels. Default: 256.
        patch_size: Side of a patch of the backbone, in pixels. Default: 16.
        strides: Strides of the levels, in pixels of the image, rising powers of two. Default:
            (4, 8, 16, 32).
        num_outs: Number of levels. Those after the strides are every second value of the one
            before, such as stride 64 for Mask R-CNN. Default: None, as many as strides.
        norm_cfg: Config of the norms. Default: ``dict(type='LN2d')``, over the channels.
        init_cfg: As in mmengine. Default: None, that of PyTorch.

    Raises:
        ValueError: For strides that are no rising powers of two, fewer ``num_outs`` than strides,
            and channels that cannot be halved as often. In the forward, for several maps, or a map
            of other channels.

    Source: ViTDet (arXiv 2203.16527).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SimpleFeaturePyramid
        >>> pyramid = SimpleFeaturePyramid(64, out_channels=32, num_outs=5)
        >>> [tuple(x.shape[1:]) for x in pyramid((torch.randn(1, 64, 8, 12),))]
        [(32, 32, 48), (32, 16, 24), (32, 8, 12), (32, 4, 6), (32, 2, 3)]
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 256,
        patch_size: int = 16,
        strides: Sequence[int] = STRIDES,
        num_outs: Optional[int] = None,
        norm_cfg: Optional[dict] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        check_counts(in_channels=in_channels, out_channels=out_channels, patch_size=patch_size)
        norm = norm_cfg or dict(type='LN2d', eps=1e-6)
        self.strides, self.pooled = parse_strides(strides, num_outs)
        self.in_channels = in_channels
        self.patch_size = patch_size
        self.levels = ModuleList()
        for stride in self.strides:
            layers, channels = Sequential(), in_channels
            factor = even_stride(patch_size) / stride
            while factor > 1:
                if channels < in_channels:
                    layers.extend([build_map_norm(norm, channels), nn.GELU()])
                if channels % 2:
                    raise ValueError(
                        f'in_channels={in_channels} cannot be halved for each doubling of the map '
                        f'to stride {stride}; leave that stride out'
                    )
                layers.append(nn.ConvTranspose2d(channels, channels // 2, 2, stride=2))
                channels, factor = channels // 2, factor / 2
            if factor < 1:
                layers.append(nn.MaxPool2d(round(1 / factor), ceil_mode=True))
            layers.append(ConvLayer(channels, out_channels, norm_cfg=norm))
            layers.append(ConvLayer(out_channels, out_channels, 3, norm_cfg=norm))
            self.levels.append(layers)

    def forward(self, maps: Sequence[Tensor]) -> Tuple[Tensor, ...]:
        """The levels ``(B, D, H_i, W_i)`` of one map ``(B, C, H, W)``."""
        if len(maps) != 1:
            raise ValueError(
                f'SimpleFeaturePyramid makes its levels of one map, got {len(maps)}; leave out '
                'out_blocks and pyramid_blocks of a plain ViT, and this neck behind a backbone '
                'with several strides'
            )
        (x,) = maps
        if x.shape[1] != self.in_channels:
            raise ValueError(
                f'in_channels is {self.in_channels}, and the map of the backbone has {x.shape[1]} '
                f'channels; set in_channels={x.shape[1]} of SimpleFeaturePyramid'
            )
        x = resized_to(x, self.patch_size, even_stride(self.patch_size))
        return with_pooled([level(x) for level in self.levels], self.pooled)


@MODELS.register_module()
class ResizedPyramid(BaseModule):
    """A pyramid without parameters: the map of a plain ViT, resized bilinearly to each stride.

    It is the half of DEIMv2's spatial tuning adapter that has no parameters. The other half, a
    small convolutional network that reads the image, is left out, as necks get no image. A neck or
    head with 1 x 1 convolutions follows, such as mmdet's ``FPN`` or ``ChannelMapper``.

    Args:
        patch_size: Side of a patch of the backbone, in pixels. Default: 16.
        strides: Strides of the levels, in pixels of the image, rising powers of two. Default:
            (8, 16, 32), those of DEIMv2.
        num_outs: Number of levels. Those after the strides are every second value of the one
            before. Default: None, as many as strides.
        init_cfg: As in mmengine. There is nothing to initialise.

    Raises:
        ValueError: For strides that are no rising powers of two, or fewer ``num_outs`` than
            strides. In the forward, for another number of maps than one, or one for each stride.

    Source: DEIMv2 (arXiv 2509.20787).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import ResizedPyramid
        >>> [tuple(x.shape[1:]) for x in ResizedPyramid()((torch.randn(1, 64, 8, 12),))]
        [(64, 16, 24), (64, 8, 12), (64, 4, 6)]
    """

    def __init__(
        self,
        patch_size: int = 16,
        strides: Sequence[int] = STRIDES[1:],
        num_outs: Optional[int] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        check_counts(patch_size=patch_size)
        self.strides, self.pooled = parse_strides(strides, num_outs)
        self.patch_size = patch_size

    def forward(self, maps: Sequence[Tensor]) -> Tuple[Tensor, ...]:
        """Levels ``(B, C, H_i, W_i)`` of one map ``(B, C, H, W)``, or of one map for each level."""
        if len(maps) not in (1, len(self.strides)):
            raise ValueError(
                f'ResizedPyramid takes one map, or one for each of the {len(self.strides)} '
                f'strides, got {len(maps)}; set out_blocks of the backbone to so many blocks'
            )
        each = list(maps) if len(maps) > 1 else [maps[0]] * len(self.strides)
        levels = [resized_to(x, self.patch_size, stride) for x, stride in zip(each, self.strides)]
        return with_pooled(levels, self.pooled)
