from typing import Optional, Tuple

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
        kernel_size: Odd side of the kernel. Default: 3.
        num_heads: Heads of the tokens; only needed where filters are shared. Default: 1.
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
        # Computed in the forward: a buffer of indices would be lost when a model is built on the
        # meta device and filled by a state dict.
        self.shared = shared
        self.repeats = embed_dims // count

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        maps = tokens_to_map(x, hw_shape)
        if self.shared is None:
            return map_to_tokens(self.conv(maps))
        weight, bias = self._of_each_channel(self.conv.weight), self.conv.bias
        bias = None if bias is None else self._of_each_channel(bias)
        maps = F.conv2d(maps, weight, bias, padding=self.conv.padding, groups=len(weight))
        return map_to_tokens(maps)

    def _of_each_channel(self, filters: Tensor) -> Tensor:
        """Filters ``(count, ...)`` repeated to one per channel, ``(C, ...)``."""
        if self.shared == 'heads':  # channel c takes filter c modulo count
            return filters.repeat(self.repeats, *(1,) * (filters.dim() - 1))
        return filters.repeat_interleave(self.repeats, dim=0)
