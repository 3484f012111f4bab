"""Convolutions with a norm and an activation, and inverted residuals of them."""

from functools import partial
from typing import Any, Dict, Optional, Tuple

import torch.nn as nn
from mmengine.model import BaseModule, Sequential
from torch import Tensor

from .build import build_activation, build_map_norm
from .feature_map import map_to_tokens, tokens_to_map

BATCH_NORM = dict(type='BN')
H_SWISH = dict(type='HSwish')
RELU = dict(type='ReLU')


class ConvLayer(BaseModule):
    """A convolution that keeps the size or divides it, a norm and an activation.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        kernel_size: Odd side of the kernel. Default: 1.
        stride: Downsampling rate. Default: 1.
        groups: Groups of channels. Default: 1.
        norm_cfg: Config of the norm. Default: None, none, and the convolution has a bias.
        act_cfg: Config of the activation. Default: None, none.
        dilation: Distance of the taps of the kernel. Default: 1.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.conv_layers import ConvLayer
        >>> ConvLayer(3, 8, 3, stride=2, norm_cfg=dict(type='BN'))(torch.randn(1, 3, 7, 9)).shape
        torch.Size([1, 8, 4, 5])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int = 1,
        stride: int = 1,
        groups: int = 1,
        norm_cfg: Optional[dict] = None,
        act_cfg: Optional[dict] = None,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        options: Dict[str, Any] = dict(stride=stride, groups=groups, dilation=dilation)
        options.update(padding=kernel_size // 2 * dilation, bias=norm_cfg is None)
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, **options)
        self.norm = None if norm_cfg is None else build_map_norm(norm_cfg, out_channels)
        self.act = None if act_cfg is None else build_activation(act_cfg)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C_in, H, W) -> (B, C_out, ⌈H / stride⌉, ⌈W / stride⌉)``."""
        x = self.conv(x)
        x = x if self.norm is None else self.norm(x)
        return x if self.act is None else self.act(x)


def convolutions(
    kind: str,
    inputs: int,
    outputs: int,
    ratio: float,
    norm_cfg: dict,
    act_cfg: dict,
    stride: int = 1,
    dilation: int = 1,
) -> Sequential:
    """The convolutions of a block, of which all but the last have an activation.

    The kinds are ``'depthwise'``, ``'plain'``, ``'inverted'`` (MBConv), ``'fused'`` (fused MBConv)
    and ``'inverted_one_norm'``, in which only the last has a norm.
    """
    hidden = round(inputs * ratio)
    one_norm = kind == 'inverted_one_norm'
    inverted = ((hidden, 1, 1, 1), (hidden, 3, stride, hidden), (outputs, 1, 1, 1))
    layers = {  # channels, kernel, stride, groups
        'depthwise': ((inputs, 3, stride, inputs), (outputs, 1, 1, 1)),
        'plain': ((inputs, 3, stride, 1), (outputs, 3, 1, 1)),
        'fused': ((hidden, 3, stride, 1), (outputs, 1, 1, 1)),
        'inverted': inverted,
        'inverted_one_norm': inverted,
    }[kind]
    convs = Sequential()
    for i, (channels, kernel, step, groups) in enumerate(layers):
        last = i + 1 == len(layers)
        norm = norm_cfg if last or not one_norm else None
        act = None if last else act_cfg
        convs.append(ConvLayer(inputs, channels, kernel, step, groups, norm, act, dilation))
        inputs = channels
    return convs


inverted_residual = partial(convolutions, 'inverted')


class ConvFFN(BaseModule):
    """The convolutions of an MBConv or a fused MBConv in the place of an FFN.

    Args:
        embed_dims: Channels C.
        ffn_ratio: Hidden channels in units of C.
        drop_rate: Dropout rate of the output. Default: 0.
        kind: ``'inverted'`` (MBConv), ``'inverted_one_norm'``, whose last convolution alone has a
            norm, or ``'fused'`` (fused MBConv). Default: 'inverted_one_norm'.
        norm_cfg: Config of the norms. Default: ``dict(type='BN')``.
        act_cfg: Config of the activations. Default: ``dict(type='HSwish')``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.conv_layers import ConvFFN
        >>> ConvFFN(64, 4)(torch.randn(1, 5 * 9, 64), (5, 9)).shape
        torch.Size([1, 45, 64])
    """

    def __init__(
        self,
        embed_dims: int,
        ffn_ratio: float,
        drop_rate: float = 0.0,
        kind: str = 'inverted_one_norm',
        norm_cfg: Optional[dict] = None,
        act_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__()
        norm, act = norm_cfg or BATCH_NORM, act_cfg or H_SWISH
        self.layers = convolutions(kind, embed_dims, embed_dims, ffn_ratio, norm, act)
        self.dropout = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)`` for a map ``(H, W)``."""
        return self.dropout(map_to_tokens(self.layers(tokens_to_map(x, hw_shape))))
