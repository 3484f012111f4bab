from typing import Tuple

import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor

from .depthwise import DepthwiseConv


class FFN(BaseModule):
    """Linear, an optional depthwise convolution, GELU, linear.

    Args:
        embed_dims: Channels C.
        ffn_ratio: Hidden channels in units of C.
        drop_rate: Dropout rate behind GELU and behind the last linear. Default: 0.
        dw_kernel_size: Kernel size of the depthwise convolution behind the first linear, as
            PVTv2 has it; 0 leaves it out. Default: 0.
        gelu: ``'none'`` for the exact GELU (default), ``'tanh'`` for its approximation.
    """

    def __init__(
        self,
        embed_dims: int,
        ffn_ratio: float,
        drop_rate: float = 0.0,
        dw_kernel_size: int = 0,
        gelu: str = 'none',
    ) -> None:
        super().__init__()
        hidden = int(embed_dims * ffn_ratio)
        self.layers = nn.Sequential(
            nn.Linear(embed_dims, hidden),
            nn.GELU(approximate=gelu),
            nn.Dropout(drop_rate),
            nn.Linear(hidden, embed_dims),
            nn.Dropout(drop_rate),
        )
        self.local = DepthwiseConv(hidden, dw_kernel_size) if dw_kernel_size else None

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)`` for a map ``(H, W)``."""
        x = self.layers[0](x)
        if self.local is not None:
            x = self.local(x, hw_shape)
        return self.layers[1:](x)
