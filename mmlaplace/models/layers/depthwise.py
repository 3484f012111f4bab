from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor

from .feature_map import map_to_tokens, tokens_to_map

SHARED = (None, 'heads', 'channels')


class DepthwiseConv(BaseModule):
    """A depthwise convolution over the map of the tokens, which keeps its size.

    Args:
        embed_dims: Channels C.
        kernel_size: Odd side of the kernel.
        num_heads: Heads of the tokens; only needed where filters are shared.
        shared: None gives every channel a filter (default), ``'heads'`` one filter per channel of
            a head, the same in all heads (PolaFormer), ``'channels'`` one filter per head, the
            same in its channels (SOFT).
        bias: Whether filters have a bias. Default: True.

    Raises:
        ValueError: For an even or non-positive ``kernel_size``, or an unknown ``shared``.
    """

    def __init__(
        self,
        embed_dims: int,
        kernel_size: int = 3,
        num_heads: int = 1,
        shared: Optional[str] = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f'kernel_size must be odd and positive, got {kernel_size}')
        if shared not in SHARED:
            raise ValueError(f'shared must be one of {SHARED}, got {shared!r}')
        count = {
            None: embed_dims,
            'heads': embed_dims // num_heads,
            'channels': num_heads,
        }[shared]
        self.conv = nn.Conv2d(
            count, count, kernel_size, padding=kernel_size // 2, groups=count, bias=bias
        )
        # Which filter each channel takes; derived, so no part of a checkpoint.
        channels = torch.arange(embed_dims)
        filters = {
            None: None,
            'heads': channels % count,
            'channels': channels * count // embed_dims,
        }
        self.register_buffer('filters', filters[shared], persistent=False)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        maps = tokens_to_map(x, hw_shape)
        if self.filters is None:
            return map_to_tokens(self.conv(maps))
        weight, bias = self.conv.weight[self.filters], self.conv.bias
        bias = None if bias is None else bias[self.filters]
        maps = F.conv2d(maps, weight, bias, padding=self.conv.padding, groups=len(weight))
        return map_to_tokens(maps)
