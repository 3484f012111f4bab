from typing import Any, Dict, Optional, Tuple

import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor

from .feature_map import map_to_tokens, tokens_to_map
from .shared_conv import SharedConv2d

FILTERS_PER = ('channel', 'head', 'head_channel')


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
        self.sets = embed_dims // count
        if filters_per == 'channel':
            self.conv = nn.Conv2d(count, count, kernel_size, **options)
        else:
            options.update(interleaved=filters_per == 'head')
            self.conv = SharedConv2d(count, count, kernel_size, **options)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        return map_to_tokens(self.conv(tokens_to_map(x, hw_shape)))  # of maps (B, C, H, W)

    def filters(self) -> Tuple[Tensor, Optional[Tensor]]:
        """The filter of each channel, ``(C, 1, k, k)``, and their biases ``(C,)``, if any."""
        if isinstance(self.conv, SharedConv2d):
            return self.conv.filters(self.sets)
        return self.conv.weight, self.conv.bias
