"""EfficientViT: two or three stages of convolutions, then multi-scale linear attention."""

from functools import partial
from typing import Any, Dict, List, Optional, Tuple

import torch.nn as nn
from mmengine.model import BaseModule, Sequential
from mmengine.registry import MODELS
from torch import Tensor

from ..layers import TransformerBlock, map_to_tokens, tokens_to_map
from ..layers.block import Block
from ..layers.build import build_activation, build_map_norm
from ..layers.feature_map import channels_last, shape_of_map
from .base import PyramidBackbone
from .hosts import STRIDES, arch
from .stage import Stage

BATCH_NORM = dict(type='BN')
H_SWISH = dict(type='HSwish')


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

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.efficientvit import ConvLayer
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
    ) -> None:
        super().__init__()
        options: Dict[str, Any] = dict(stride=stride, padding=kernel_size // 2, groups=groups)
        bias = norm_cfg is None
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, bias=bias, **options)
        self.norm = None if norm_cfg is None else build_map_norm(norm_cfg, out_channels)
        self.act = None if act_cfg is None else build_activation(act_cfg)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, C_in, H, W) -> (B, C_out, ⌈H / stride⌉, ⌈W / stride⌉)``."""
        x = self.conv(x)
        x = x if self.norm is None else self.norm(x)
        return x if self.act is None else self.act(x)


def _convolutions(
    kind: str,
    inputs: int,
    outputs: int,
    ratio: float,
    norm_cfg: dict,
    act_cfg: dict,
    stride: int = 1,
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
        norm, act = norm_cfg if last or not one_norm else None, None if last else act_cfg
        convs.append(ConvLayer(inputs, channels, kernel, step, groups, norm, act))
        inputs = channels
    return convs


inverted_residual = partial(_convolutions, 'inverted')


class EfficientViTEmbed(BaseModule):
    """Convolutions that halve a map: an MBConv or a fused one, without a residual connection.

    A side of S pixels becomes ⌈S / 2⌉ tokens, or ⌈S / 4⌉ with a stem.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels C of the tokens.
        kind: ``'inverted'``, ``'inverted_one_norm'`` or ``'fused'``.
        ratio: Hidden channels in units of those before.
        stem: Kind of the residual convolutions of a stem, ``'depthwise'`` or ``'plain'``. They
            follow a 3 x 3 convolution of stride 2 to C/2 channels. Default: None, no stem.
        norm_cfg: Config of the norms. Default: ``dict(type='BN')``.
        act_cfg: Config of the activations. Default: ``dict(type='HSwish')``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.efficientvit import EfficientViTEmbed
        >>> tokens, hw_shape = EfficientViTEmbed(16, 32, 'fused', 4)(torch.randn(1, 16, 7, 9))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 20, 32]), (4, 5))
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        kind: str,
        ratio: float,
        stem: Optional[str] = None,
        norm_cfg: Optional[dict] = None,
        act_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__()
        norm, act = norm_cfg or BATCH_NORM, act_cfg or H_SWISH
        self.stem: Optional[nn.Module] = None
        if stem is not None:
            dims = embed_dims // 2
            self.stem = ConvLayer(in_channels, dims, 3, 2, norm_cfg=norm, act_cfg=act)
            self.residual = _convolutions(stem, dims, dims, 1, norm, act)
            in_channels = dims
        self.layers = _convolutions(kind, in_channels, embed_dims, ratio, norm, act, stride=2)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        if self.stem is not None:
            x = self.stem(channels_last(x))
            x = x + self.residual(x)
        x = self.layers(x)  # (B, C, H', W')
        return map_to_tokens(x), shape_of_map(x)


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
        >>> from mmlaplace.models.backbones.efficientvit import ConvFFN
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
        self.layers = _convolutions(kind, embed_dims, embed_dims, ffn_ratio, norm, act)
        self.dropout = nn.Dropout(drop_rate)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)`` for a map ``(H, W)``."""
        return self.dropout(map_to_tokens(self.layers(tokens_to_map(x, hw_shape))))


class EfficientViTLocalBlock(Block):
    """A block without an attention: ``x + ffn(x)`` with a :class:`ConvFFN`.

    Args:
        embed_dims: Channels C.
        attn_cfg: Not used. Default: None.
        ffn_ratio: Hidden channels in units of C. Default: 4.
        drop_rate: Dropout rate of the output of the convolutions. Default: 0.
        drop_path_rate: Stochastic depth rate. Default: 0.
        with_cp: Whether to recompute activations in the backward pass. Default: False.
        norm_cfg: Config of the norms. Default: ``dict(type='BN')``.
        ffn_cfg: Further arguments of :class:`ConvFFN`. Default: none.

    Source: EfficientViT (arXiv 2205.14756).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.efficientvit import EfficientViTLocalBlock
        >>> EfficientViTLocalBlock(64)(torch.randn(2, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([2, 45, 64])
    """

    attn = None

    def __init__(
        self,
        embed_dims: int,
        attn_cfg: Optional[dict] = None,
        ffn_ratio: float = 4.0,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        norm_cfg: Optional[dict] = None,
        ffn_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(drop_path_rate, with_cp)
        self.ffn = ConvFFN(embed_dims, ffn_ratio, drop_rate, norm_cfg=norm_cfg, **(ffn_cfg or {}))

    def _forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        return x + self.drop_path(self.ffn(x, hw_shape))


class EfficientViTBlock(TransformerBlock):
    """``x + attention(x)``, then ``x + ffn(x)`` with a :class:`ConvFFN`, without norms before.

    Arguments are those of :class:`TransformerBlock`. ``norm_cfg`` is for the convolutions.

    Source: EfficientViT (arXiv 2205.14756).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.efficientvit import EfficientViTBlock
        >>> attn_cfg = dict(type='LiteMLA', embed_dims=64, num_heads=2, input_resolution=(14, 14))
        >>> EfficientViTBlock(64, attn_cfg)(torch.randn(2, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([2, 45, 64])
    """

    def __init__(
        self,
        embed_dims: int,
        attn_cfg: dict,
        ffn_ratio: float = 4.0,
        drop_rate: float = 0.0,
        *args: Any,
        norm_cfg: Optional[dict] = None,
        ffn_cfg: Optional[dict] = None,
        **kwargs: Any,
    ) -> None:
        kwargs.update(norm_cfg=dict(type=nn.Identity))
        super().__init__(embed_dims, attn_cfg, ffn_ratio, drop_rate, *args, **kwargs)
        self.ffn = ConvFFN(embed_dims, ffn_ratio, drop_rate, norm_cfg=norm_cfg, **(ffn_cfg or {}))


def efficientvit(large: bool = False) -> List[Stage]:
    """EfficientViT: local blocks in the first stages, attention and convolutions in the others.

    Args:
        large: Whether it is of the L series: the first two stages have fused MBConvs, only the last
            has attentions, and activations are tanh GELUs. Default: False, the B series.
    """
    norm = dict(type='BN', eps=1e-7 if large else 1e-5)
    act = dict(type='GELU', approximate='tanh') if large else H_SWISH
    kinds = ['inverted', 'inverted', 'inverted_one_norm', 'inverted_one_norm']
    ratios, with_attention = (4, 4, 4, 4), (False, False, True, True)
    if large:
        kinds[:2] = ['fused', 'fused']
        ratios, with_attention = (16, 16, 16, 24), (False, False, False, True)
    stages = []
    for i, (kind, ratio) in enumerate(zip(kinds, ratios)):
        own: Dict[str, Any] = dict(kind=kind, act_cfg=act)
        stem = None if i else 'plain' if large else 'depthwise'
        stages.append(
            Stage(
                partial(EfficientViTEmbed, ratio=ratio, stem=stem, norm_cfg=norm, **own),
                STRIDES[i],
                dict(type='LiteMLA', norm_cfg=norm),
                norm=norm,
                out_norm=None,
                block=dict(ffn_cfg=own),
                block_class=EfficientViTBlock,
                attn_blocks=None if with_attention[i] else 0,
                local_class=EfficientViTLocalBlock,
            )
        )
    return stages


@MODELS.register_module()
class EfficientViT(PyramidBackbone):
    """EfficientViT of MIT's Han Lab, B series: convolutions, then :class:`LiteMLA` in two stages.

    A stem of convolutions and an MBConv embed patches of 4 x 4 pixels. An MBConv of stride 2 begins
    each later stage. The first two stages have MBConvs as blocks. Blocks of the others are an
    attention and an MBConv, so ``attn_cfg`` is for these. The maps have no further norm.
    ``norm_cfg=dict(type='SyncBN')`` sets all norms outside of the attentions. Arguments are those
    of :class:`PyramidBackbone` and of the host
    :func:`~mmlaplace.models.backbones.efficientvit.efficientvit`.

    Source: EfficientViT (arXiv 2205.14756).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import EfficientViT
        >>> maps = EfficientViT(arch='b0')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 16, 16, 24), (1, 32, 8, 12), (1, 64, 4, 6), (1, 128, 2, 3)]
    """

    host = staticmethod(efficientvit)
    default_arch = 'b0'
    arch_zoo = {
        'b0': arch((16, 32, 64, 128), (1, 1, 2, 2), (1, 2, 4, 8)),
        'b1': arch((32, 64, 128, 256), (1, 2, 3, 4), (2, 4, 8, 16)),
        'b2': arch((48, 96, 192, 384), (2, 3, 4, 6), (1, 3, 6, 12)),
        'b3': arch((64, 128, 256, 512), (3, 5, 6, 9)),
    }


@MODELS.register_module()
class EfficientViTLarge(EfficientViT):
    """EfficientViT, L series: fused MBConvs in two stages, MBConvs, then :class:`LiteMLA`.

    It is the host of :class:`EfficientViT` with ``large=True``.

    Source: EfficientViT (arXiv 2205.14756).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import EfficientViTLarge
        >>> arch = dict(
        ...     embed_dims=(16, 32, 64, 128), depths=(1, 1, 1, 1), num_heads=(1, 1, 2, 4),
        ...     ffn_ratios=(4, 4, 4, 6))
        >>> EfficientViTLarge(arch)(torch.randn(1, 3, 64, 96))[-1].shape
        torch.Size([1, 128, 2, 3])
    """

    host = staticmethod(partial(efficientvit, large=True))
    default_arch = 'l1'
    arch_zoo = {
        'l1': arch((64, 128, 256, 512), (1, 1, 6, 6), ffn_ratios=(4, 4, 4, 6)),
        'l2': arch((64, 128, 256, 512), (2, 2, 8, 8), ffn_ratios=(4, 4, 4, 6)),
    }
