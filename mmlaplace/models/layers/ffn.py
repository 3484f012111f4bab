from functools import partial
from typing import Optional, Tuple

import torch
import torch.nn as nn
from mmengine.model import BaseModule, Sequential
from torch import Tensor

from mmlaplace.ops.backend import in_cpu_graph
from mmlaplace.ops.onednn_linear import onednn_gelu_ffn
from mmlaplace.ops.precision import autocasting

from .build import ACTIVATIONS, build_activation
from .depthwise import DepthwiseConv
from .gelu_ffn import fits, gelu_ffn
from .linear import (
    Linear,
    are_fp32,
    are_plain,
    bf16_inference,
    by_rows,
    does_more,
    in_blocks,
    linear,
)


class FFN(BaseModule):
    """Linear, an optional depthwise convolution, an activation, linear.

    Args:
        embed_dims: Channels C.
        ffn_ratio: Hidden channels in units of C.
        drop_rate: Dropout rate after the activation and after the last linear. Default: 0.
        dwconv_kernel: Odd kernel size of a depthwise convolution after the first linear, as in
            PVTv2. 0 leaves it out. Default: 0.
        act_cfg: Config of the activation. ``dict(type='GELU', approximate='tanh')`` is the
            approximation of the default. Default: ``dict(type='GELU')``.
        dwconv_act_cfg: Config of an activation before the convolution, such as
            ``dict(type='ReLU')`` in the PVTv2 of linear time. Default: none.
        dwconv_residual: Whether the convolution comes after the activation and its dropout instead,
            and its output is added to its input, as in RAVLT. Default: False.

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
        dwconv_act_cfg: Optional[dict] = None,
        dwconv_residual: bool = False,
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
        self.dwconv_act = build_activation(dwconv_act_cfg) if dwconv_act_cfg else None
        self.dwconv_residual = dwconv_residual

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)`` for a map ``(H, W)``."""
        first, act, dropout, second, last = self.layers
        if self._is_plain(x):
            weights = (first.weight, first.bias, second.weight, second.bias)
            fp32 = are_fp32(*weights)
            if fp32 and fits(act) and in_cpu_graph(x) and not autocasting(x.device):
                return torch.ops.mmlaplace._gelu_ffn(act.approximate, x, *weights)
            if type(act) is nn.GELU and bf16_inference(x, *weights):
                halves = (tensor.bfloat16() for tensor in (x, *weights))
                return onednn_gelu_ffn(act.approximate, *halves)
            if fp32 and in_blocks(x):
                if fits(act):
                    return gelu_ffn(x, act.approximate, *weights)
                return by_rows(partial(_two_linears, act), len(first.weight), x, *weights)
        x = first(x)  # (B, N, C * ffn_ratio)
        if self.dwconv is not None and not self.dwconv_residual:
            x = self.dwconv(x if self.dwconv_act is None else self.dwconv_act(x), hw_shape)
        x = dropout(act(x))
        if self.dwconv is not None and self.dwconv_residual:
            x = x + self.dwconv(x, hw_shape)
        return last(second(x))

    def _is_plain(self, x: Tensor) -> bool:
        """Whether the FFN computes only its two linears of plain tensors and its activation.

        Then it may compute in blocks of rows, and compute parts again in the backward pass.
        Otherwise it computes layer by layer. This is so for layers that users replaced,
        parametrised or hooked, for active dropout, and for an activation with weights or random
        numbers.
        """
        first, act, dropout, second, last = self.layers
        if self.dwconv is not None or not all(type(one) is Linear for one in (first, second)):
            return False
        return (
            are_plain(x, first.weight, first.bias, second.weight, second.bias)
            and type(act) in ACTIVATIONS.values()
            and all(type(layer) is nn.Dropout for layer in (dropout, last))
            and not any(layer.training and layer.p > 0 for layer in (dropout, last))
            and not does_more(self.layers)
        )


def _two_linears(act: nn.Module, x: Tensor, *weights: Tensor) -> Tensor:
    """``linear(act(linear(x)))``; the weights are the weight and bias of each."""
    return linear(act(linear(x, *weights[:2])), *weights[2:])
