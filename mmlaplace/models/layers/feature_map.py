"""Tokens as maps, and depthwise convolutions of these."""

from typing import Any, Dict, List, Sequence, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor

from mmlaplace.ops._checks import is_transforming
from mmlaplace.ops.backend import exporting
from mmlaplace.ops.precision import upcast

from .shared_conv import SharedConv2d

FILTERS_PER = ('channel', 'head', 'head_channel')


def tokens_to_map(x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
    """``(B, N, C) -> (B, C, H, W)`` for ``N = H * W``, row by row.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import tokens_to_map
        >>> tokens_to_map(torch.randn(1, 5 * 9, 64), (5, 9)).shape
        torch.Size([1, 64, 5, 9])
    """
    # By permute, as transpose and then view give a batch of 1 strides that convolutions do not take
    # for channels-last. They would copy the map.
    height, width = hw_shape
    return x.view(x.shape[0], height, width, x.shape[2]).permute(0, 3, 1, 2)


def map_to_tokens(x: Tensor) -> Tensor:
    """``(B, C, H, W) -> (B, N, C)`` with ``N = H * W``, row by row.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import map_to_tokens
        >>> map_to_tokens(torch.randn(1, 64, 5, 9)).shape
        torch.Size([1, 45, 64])
    """
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def shape_of_map(x: Tensor) -> Tuple[int, int]:
    """Height and width of maps ``(..., H, W)``."""
    height, width = x.shape[-2:]
    return height, width


def channels_last(x: Tensor) -> Tensor:
    """Maps ``(B, C, H, W)`` with the channels of a pixel beside each other in memory.

    A convolution of such maps gives tokens without a copy. Maps of tokens already have this order.
    Images are copied. This takes less time than to reorder the result of the convolution.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.feature_map import channels_last
        >>> channels_last(torch.randn(1, 3, 8, 8)).stride()
        (192, 1, 24, 3)
    """
    if is_transforming():  # vmap knows no such order, and values do not depend on it
        return x
    return x.contiguous(memory_format=torch.channels_last)


# A step of a symbolic trace, which has no strides. While torch.fx traces, it replaces the name in
# this module, so callers look it up here.
@torch.fx.wrap
def memory_format_of(x: Tensor) -> torch.memory_format:
    """``torch.channels_last`` for maps ``(B, C, H, W)`` in that order, else contiguous.

    In transforms of torch.func it is contiguous, as ``vmap`` knows no other order.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import memory_format_of
        >>> memory_format_of(torch.randn(1, 3, 8, 8).to(memory_format=torch.channels_last))
        torch.channels_last
    """
    if is_transforming():
        return torch.contiguous_format
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return torch.channels_last
    return torch.contiguous_format


def resize_map(
    x: Tensor, hw_shape: Sequence[int], mode: str = 'bilinear', antialias: bool = False
) -> Tensor:
    """Interpolate a map ``(B, C, H, W)`` to another size.

    It is computed in at least fp32. A map that has that size is returned unchanged, and so is a
    tensor that is not 4-D.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import resize_map
        >>> resize_map(torch.randn(1, 64, 14, 14), (10, 17)).shape
        torch.Size([1, 64, 10, 17])
    """
    if x.dim() != 4:
        return x
    differs = False
    for own, wanted in zip(x.shape[2:], hw_shape):
        # To compare a dynamic size with one would fix it in the graph.
        known = isinstance(own, int) and isinstance(wanted, int)
        differs = differs or not known or own != wanted
    if not differs:
        return x
    resized = F.interpolate(
        upcast(x)[0], tuple(hw_shape), mode=mode, align_corners=False, antialias=antialias
    )
    return resized.to(x.dtype)


def taps(x: Tensor, size: int) -> List[Tensor]:
    """What each tap of a ``size`` x ``size`` kernel sees of zero-padded maps ``(B, C, H, W)``."""
    height, width = x.shape[2:]
    padded = F.pad(x, [size // 2] * 4)
    return [
        padded[:, :, row : row + height, column : column + width]
        for row in range(size)
        for column in range(size)
    ]


def convolve_each(x: Tensor, filters: Tensor) -> Tensor:
    """A depthwise convolution of maps, zero-padded, with filters for each image.

    Args:
        x: Maps ``(B, C, H, W)``.
        filters: ``(B, C, size, size)`` with an odd size.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.feature_map import convolve_each
        >>> convolve_each(torch.randn(2, 4, 5, 9), torch.randn(2, 4, 3, 3)).shape
        torch.Size([2, 4, 5, 9])
    """
    size = filters.shape[-1]
    # Exporters know no convolution with filters that are computed, and torch none of no image.
    if exporting() or len(x) == 0:
        weights = filters.flatten(2)[..., None, None]  # (B, C, size², 1, 1)
        parts = (seen * weights[:, :, tap] for tap, seen in enumerate(taps(x, size)))
        return sum(parts)  # type: ignore[return-value]  # of at least one
    filters = filters.reshape(-1, 1, size, size)  # (B * C, 1, size, size)
    out = F.conv2d(x.flatten(0, 1)[None], filters, padding=size // 2, groups=len(filters))
    return out.view(x.shape)


class DepthwiseConv(BaseModule):
    """A depthwise convolution over the map of the tokens, which keeps its size.

    Args:
        embed_dims: Channels C.
        kernel_size: Odd side of the kernel. Default: 3.
        num_heads: Heads of the tokens. Only shared filters need it. Default: 1.
        filters_per: How filters are shared. ``'channel'`` (default): each channel has its own.
            ``'head'``: one for all channels of a head (SOFT). ``'head_channel'``: one for each
            channel of a head, the same in all heads (PolaFormer, FLatten).
        bias: Whether filters have a bias. Default: True.

    Raises:
        ValueError: For an even or non-positive ``kernel_size``, or an unknown ``filters_per``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import DepthwiseConv
        >>> conv = DepthwiseConv(64, 5, num_heads=2, filters_per='head_channel')
        >>> conv(torch.randn(1, 6 * 8, 64), hw_shape=(6, 8)).shape, conv.conv.weight.shape
        (torch.Size([1, 48, 64]), torch.Size([32, 1, 5, 5]))
    """

    # Of its convolution: where each channel has its filter, and where channels share filters.
    conv_types: Tuple[type, type] = (nn.Conv2d, SharedConv2d)

    def __init__(
        self,
        embed_dims: int,
        kernel_size: int = 3,
        num_heads: int = 1,
        filters_per: str = 'channel',
        bias: bool = True,
    ) -> None:
        super().__init__()
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f'kernel_size must be odd and positive, got {kernel_size}')
        if filters_per not in FILTERS_PER:
            raise ValueError(f'filters_per must be one of {FILTERS_PER}, got {filters_per!r}')
        count = {
            'channel': embed_dims,
            'head': num_heads,
            'head_channel': embed_dims // num_heads,
        }[filters_per]
        options: Dict[str, Any] = dict(padding=kernel_size // 2, groups=count, bias=bias)
        own, shared = self.conv_types
        if filters_per == 'channel':
            self.conv = own(count, count, kernel_size, **options)
        else:
            options.update(interleaved=filters_per == 'head')
            self.conv = shared(count, count, kernel_size, **options)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        maps = x.view(x.shape[0], *hw_shape, x.shape[2]).permute(0, 3, 1, 2)  # (B, C, H, W)
        return self.conv(maps).permute(0, 2, 3, 1).flatten(1, 2)
