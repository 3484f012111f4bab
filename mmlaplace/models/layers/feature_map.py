from typing import Tuple

import torch
from torch import Tensor

from mmlaplace.ops._checks import is_transforming


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
