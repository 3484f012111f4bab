from typing import Tuple

import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor

from .feature_map import map_to_tokens


class OverlapPatchEmbed(BaseModule):
    """An overlapping strided convolution and a LayerNorm: a map into fewer tokens.

    A side of S pixels becomes ⌈S / stride⌉ tokens.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels of the tokens.
        kernel_size: Odd side of the kernel, larger than ``stride``.
        stride: Downsampling rate.
    """

    def __init__(self, in_channels: int, embed_dims: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            in_channels, embed_dims, kernel_size, stride=stride, padding=kernel_size // 2
        )
        self.norm = nn.LayerNorm(embed_dims, eps=1e-6)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = self.projection(x)
        return self.norm(map_to_tokens(x)), tuple(x.shape[2:])
