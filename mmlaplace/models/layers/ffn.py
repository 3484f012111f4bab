from typing import Optional, Tuple

import torch.nn as nn
from mmengine.model import BaseModule, Sequential
from torch import Tensor

from .build import build_activation
from .depthwise import DepthwiseConv
from .gelu_ffn import fits, gelu_ffn
from .linear import Linear, by_rows


class FFN(BaseModule):
    """Linear, an optional depthwise convolution, an activation, linear.

    Args:
        embed_dims: Channels C.
        ffn_ratio: Hidden channels in units of C.
        drop_rate: Dropout rate after the activation and after the last linear. Default: 0.
        dwconv_kernel: Odd side of the depthwise convolution after the first linear, which PVTv2
            has. 0 leaves it out. Default: 0.
        act_cfg: Config of the activation. ``dict(type='GELU', approximate='tanh')`` is the
            approximation of the default. Default: ``dict(type='GELU')``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import FFN
        >>> FFN(64, ffn_ratio=4, dwconv_kernel=3)(torch.randn(1, 5 * 9, 64), (5, 9)).shape
        torch.Size([1, 45, 64])
    """

    def __init__(
        self,
        embed_dims: int,
        ffn_ratio: float,
        drop_rate: float = 0.0,
        dwconv_kernel: int = 0,
        act_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__()
        hidden = int(embed_dims * ffn_ratio)
        self.layers = Sequential(
            Linear(embed_dims, hidden),
            build_activation(act_cfg or dict(type='GELU')),
            nn.Dropout(drop_rate),
            Linear(hidden, embed_dims),
            nn.Dropout(drop_rate),
        )
        self.dwconv = DepthwiseConv(hidden, dwconv_kernel) if dwconv_kernel else None

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)`` for a map ``(H, W)``."""
        first, *rest = self.layers
        if self.dwconv is None and (self.layers[2].p == 0 or not self.training):
            if fits(x, self.layers):
                return gelu_ffn(x, first, self.layers[1], self.layers[3])
            return by_rows(self.layers, first.out_features, x)
        x = first(x)  # (B, N, C * ffn_ratio)
        if self.dwconv is not None:
            x = self.dwconv(x, hw_shape)
        for layer in rest:
            x = layer(x)
        return x
