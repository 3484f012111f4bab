"""SwiGLU: an FFN with a gate."""

from typing import Optional, Tuple

import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor

from .build import build_activation, build_token_norm


class SwiGLU(BaseModule):
    r"""A gate, a linear, and the linear of their product, as in EVA-02 and DINOv3's ViT-S+.

    .. math:: W_2\, \mathrm{norm}(\mathrm{SiLU}(W_g x) \odot W_1 x)

    It is in the place of :class:`FFN`.

    Args:
        embed_dims: Channels C.
        ffn_ratio: Hidden channels in units of C, those of the gate and of the linear each.
        drop_rate: Dropout rate after the product and after the last linear. Default: 0.
        act_cfg: Config of the activation of the gate. Default: ``dict(type='SiLU')``.
        with_norm: Whether the product has a norm. Default: False.
        norm_cfg: Config of this norm. Default: ``dict(type='LN', eps=1e-6)``.

    Source: GLU Variants Improve Transformer (arXiv 2002.05202).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import SwiGLU
        >>> SwiGLU(64, ffn_ratio=4)(torch.randn(1, 5 * 9, 64), (5, 9)).shape
        torch.Size([1, 45, 64])
    """

    def __init__(
        self,
        embed_dims: int,
        ffn_ratio: float,
        drop_rate: float = 0.0,
        act_cfg: Optional[dict] = None,
        with_norm: bool = False,
        norm_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__()
        hidden = int(embed_dims * ffn_ratio)
        self.first = nn.Linear(embed_dims, 2 * hidden)  # the gate, then the values
        self.act = build_activation(act_cfg or dict(type='SiLU'))
        self.norm: nn.Module = nn.Identity()
        if with_norm:
            self.norm = build_token_norm(norm_cfg or dict(type='LN', eps=1e-6), hidden)
        self.last = nn.Linear(hidden, embed_dims)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)`` for a map ``(H, W)``."""
        gate, values = self.first(x).chunk(2, dim=-1)  # (B, N, C * ffn_ratio)
        return self.drop(self.last(self.norm(self.drop(self.act(gate) * values))))
