import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor


class FFN(BaseModule):
    """Linear, GELU, linear.

    Args:
        embed_dims: Channels C.
        ffn_ratio: Hidden channels in units of C.
        drop_rate: Dropout rate behind each linear. Default: 0.
    """

    def __init__(self, embed_dims: int, ffn_ratio: float, drop_rate: float = 0.0) -> None:
        super().__init__()
        hidden = int(embed_dims * ffn_ratio)
        self.layers = nn.Sequential(
            nn.Linear(embed_dims, hidden),
            nn.GELU(),
            nn.Dropout(drop_rate),
            nn.Linear(hidden, embed_dims),
            nn.Dropout(drop_rate),
        )

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        return self.layers(x)
