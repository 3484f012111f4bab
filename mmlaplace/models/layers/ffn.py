from typing import Optional, Tuple

import torch
import torch.nn as nn
from mmengine.model import BaseModule, Sequential
from torch import Tensor
from torch.nn.modules import module as every_module

from mmlaplace.ops._checks import is_compiling
from mmlaplace.ops.gelu_ffn import gelu_ffn

from .build import build_activation
from .feature_map import DepthwiseConv

PLAIN = (Tensor, nn.Parameter)
LAYERS = (nn.Linear, nn.GELU, nn.Dropout, nn.Linear, nn.Dropout)


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
            nn.Linear(embed_dims, hidden),
            build_activation(act_cfg or dict(type='GELU')),
            nn.Dropout(drop_rate),
            nn.Linear(hidden, embed_dims),
            nn.Dropout(drop_rate),
        )
        self.dwconv = DepthwiseConv(hidden, dwconv_kernel) if dwconv_kernel else None
        self.dwconv_act = build_activation(dwconv_act_cfg) if dwconv_act_cfg else None
        self.dwconv_residual = dwconv_residual

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)`` for a map ``(H, W)``."""
        first, act, dropout, second, last = self.layers._modules.values()
        if self.dwconv is None and self.is_one_op(x):
            return gelu_ffn(
                x, first.weight, first.bias, second.weight, second.bias, act.approximate
            )
        x = first(x)  # (B, N, C * ffn_ratio)
        if self.dwconv is not None and not self.dwconv_residual:
            x = self.dwconv(x if self.dwconv_act is None else self.dwconv_act(x), hw_shape)
        x = dropout(act(x))
        if self.dwconv is not None and self.dwconv_residual:
            x = x + self.dwconv(x, hw_shape)
        return last(second(x))

    def is_one_op(self, x: Tensor) -> bool:
        """Whether the layers compute nothing else than the op does.

        A user may have replaced, parametrised or hooked them. Other classes of tensors, such as
        those of quantised and of sharded weights, know few functions. Graphs have torch's own
        layers, as other compilers and runtimes read them.
        """
        if is_compiling() or torch.jit.is_tracing() or every_module._has_any_global_hook():
            return False
        for layer, kind in zip(self.layers._modules.values(), LAYERS):
            if (
                type(layer) is not kind
                or 'forward' in layer.__dict__
                or layer._forward_hooks or layer._forward_pre_hooks
                or layer._backward_hooks or layer._backward_pre_hooks
                or (kind is nn.Dropout and layer.training and layer.p > 0)
                or (kind is nn.Linear and type(layer.weight) not in PLAIN)
            ):  # fmt: skip
                return False
        return type(x) in PLAIN
