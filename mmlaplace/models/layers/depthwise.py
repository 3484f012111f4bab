from typing import Tuple

import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor

from .feature_map import map_to_tokens, tokens_to_map


class DepthwiseConv(BaseModule):
    """A depthwise convolution over the map of the tokens, which keeps its size.

    Args:
        embed_dims: Channels C.
        kernel_size: Odd side of the kernel.

    Raises:
        ValueError: For an even or non-positive ``kernel_size``.
    """

    def __init__(self, embed_dims: int, kernel_size: int = 3) -> None:
        super().__init__()
        if kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(f'kernel_size must be odd and positive, got {kernel_size}')
        self.conv = nn.Conv2d(
            embed_dims, embed_dims, kernel_size, padding=kernel_size // 2, groups=embed_dims
        )

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        return map_to_tokens(self.conv(tokens_to_map(x, hw_shape)))
