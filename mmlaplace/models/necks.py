"""Necks: layers between the maps of a backbone and the linear head of a classifier or segmentor."""

from typing import Optional, Sequence, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModule, ModuleList, Sequential
from mmengine.registry import MODELS
from torch import Tensor

from .layers.build import build_activation, build_map_norm
from .layers.conv_layers import BATCH_NORM, H_SWISH, RELU, ConvLayer, convolutions

__all__ = [
    'ConvPoolingNeck',
    'EfficientViTNeck',
    'EfficientViTSegNeck',
    'PyramidPoolingNeck',
    'SSDLiteNeck',
]


def check_maps(maps: Sequence[Tensor], count: int) -> None:
    """Raise a ValueError for another number of maps than ``in_channels`` has."""
    if len(maps) != count:
        raise ValueError(
            f'in_channels has {count} maps, got {len(maps)}; set out_indices of the backbone'
            + (f', {tuple(range(4 - count, 4))} for the last stages' if count <= 4 else '')
        )


@MODELS.register_module()
class ConvPoolingNeck(BaseModule):
    """A 1 x 1 convolution, a norm and an activation, then the mean over the map.

    It stands for mmpretrain's ``GlobalAveragePooling`` in the classifiers of RAVLT and MAViT.

    Args:
        in_channels: Channels C of the last map.
        out_channels: Channels D of the features, the ``in_channels`` of the head.
        norm_cfg: Config of the norm. Default: ``dict(type='BN')``.
        act_cfg: Config of the activation. Default: ``dict(type='SiLU')``.
        init_cfg: As in mmengine. Default: a truncated normal convolution.

    Source: RALA (arXiv 2411.07635).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import ConvPoolingNeck
        >>> (features,) = ConvPoolingNeck(512, 1024)((torch.randn(2, 512, 7, 7),))
        >>> features.shape
        torch.Size([2, 1024])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        norm_cfg: Optional[dict] = None,
        act_cfg: Optional[dict] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg or dict(type='TruncNormal', layer='Conv2d', std=0.02, bias=0.0))
        self.projection = nn.Conv2d(in_channels, out_channels, 1)
        self.norm = build_map_norm(norm_cfg or dict(type='BN'), out_channels)
        self.act = build_activation(act_cfg or dict(type='SiLU'))

    def forward(self, maps: Tuple[Tensor, ...]) -> Tuple[Tensor]:
        """The features ``(B, D)`` of the last map ``(B, C, H, W)``, in a tuple."""
        x = self.act(self.norm(self.projection(maps[-1])))  # (B, D, H, W)
        return (x.mean((2, 3)),)


@MODELS.register_module()
class EfficientViTNeck(BaseModule):
    """A 1 x 1 convolution with BatchNorm, the mean over the map, and a linear with LayerNorm.

    An activation follows each of both norms. The neck stands for mmpretrain's
    ``GlobalAveragePooling`` in the classifiers of EfficientViT.

    Args:
        in_channels: Channels C of the last map.
        hidden_channels: Channels of the convolution.
        out_channels: Channels D of the linear, the ``in_channels`` of the head.
        eps: Added to the variance in both norms. The L series has 1e-7. Default: 1e-5.
        act_cfg: Config of both activations. Default: ``dict(type='HSwish')``.
        init_cfg: As in mmengine. Default: a truncated normal linear.

    Source: EfficientViT (arXiv 2205.14756).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import EfficientViTNeck
        >>> (features,) = EfficientViTNeck(128, 1024, 1280)((torch.randn(2, 128, 7, 7),))
        >>> features.shape
        torch.Size([2, 1280])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        eps: float = 1e-5,
        act_cfg: Optional[dict] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg or dict(type='TruncNormal', layer='Linear', std=0.02, bias=0.0))
        self.projection = nn.Conv2d(in_channels, hidden_channels, 1, bias=False)
        self.norm = build_map_norm(dict(type='BN', eps=eps), hidden_channels)
        self.act = build_activation(act_cfg or dict(type='HSwish'))
        self.linear = nn.Linear(hidden_channels, out_channels, bias=False)
        self.linear_norm = nn.LayerNorm(out_channels, eps=eps)

    def forward(self, maps: Tuple[Tensor, ...]) -> Tuple[Tensor]:
        """The features ``(B, D)`` of the last map ``(B, C, H, W)``, in a tuple."""
        x = self.act(self.norm(self.projection(maps[-1]))).mean((2, 3))  # (B, hidden_channels)
        return (self.act(self.linear_norm(self.linear(x))),)


@MODELS.register_module()
class EfficientViTSegNeck(BaseModule):
    """All of EfficientViT's ``SegHead`` but the last linear: one map of the size of the finest.

    A 1 x 1 convolution with a norm brings each map to C channels. The coarser ones are enlarged by
    bicubic interpolation, and all are added. Blocks ``x + convolutions(x)`` follow, and maybe a
    1 x 1 convolution with a norm and an activation to more channels. mmseg's ``FCNHead`` with
    ``num_convs=0, concat_input=False`` and the same channels is the linear and the loss.

    Args:
        in_channels: Channels of the maps, the finest first.
        channels: Channels C of the sum and of the blocks.
        num_blocks: Number of blocks.
        kind: Kind of the convolutions of a block, ``'inverted'`` (MBConv, the B series) or
            ``'fused'`` (fused MBConv, the L series). Default: 'inverted'.
        ffn_ratio: Hidden channels of a block in units of C. Default: 4.
        out_channels: Channels D of the output. Default: None, C, without the last convolution.
        norm_cfg: Config of the norms. The L series has ``dict(type='BN', eps=1e-7)``. Default:
            ``dict(type='BN')``.
        act_cfg: Config of the activations. The L series has tanh GELUs. Default:
            ``dict(type='HSwish')``.
        init_cfg: As in mmengine. Default: None, that of PyTorch.

    Source: EfficientViT (arXiv 2205.14756).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import EfficientViTSegNeck
        >>> maps = [torch.randn(1, 32 * 2**i, 24 >> i, 32 >> i) for i in range(3)]
        >>> (out,) = EfficientViTSegNeck((32, 64, 128), 32, num_blocks=1, out_channels=128)(maps)
        >>> out.shape
        torch.Size([1, 128, 24, 32])
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        channels: int,
        num_blocks: int,
        kind: str = 'inverted',
        ffn_ratio: float = 4.0,
        out_channels: Optional[int] = None,
        norm_cfg: Optional[dict] = None,
        act_cfg: Optional[dict] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        norm, act = norm_cfg or BATCH_NORM, act_cfg or H_SWISH
        self.laterals = ModuleList(ConvLayer(dims, channels, norm_cfg=norm) for dims in in_channels)
        self.blocks = ModuleList(
            convolutions(kind, channels, channels, ffn_ratio, norm, act) for _ in range(num_blocks)
        )
        self.expand = Sequential()
        if out_channels is not None:
            self.expand.append(ConvLayer(channels, out_channels, norm_cfg=norm, act_cfg=act))

    def forward(self, maps: Sequence[Tensor]) -> Tuple[Tensor]:
        """The map ``(B, D, H, W)`` of maps ``(B, C_i, H_i, W_i)``, the first ``H, W``, in a tuple.

        Raises:
            ValueError: For another number of maps than ``in_channels`` has.
        """
        check_maps(maps, len(self.laterals))
        x, *coarser = (lateral(each) for lateral, each in zip(self.laterals, maps))
        for each in coarser:
            x = x + F.interpolate(each, x.shape[-2:], mode='bicubic')
        for block in self.blocks:
            x = x + block(x)  # (B, C, H, W)
        return (self.expand(x),)


@MODELS.register_module()
class PyramidPoolingNeck(BaseModule):
    """The last map, and its means over grids of several sizes, enlarged to its size, as one map.

    Each branch has adaptive average pooling to ``size x size``, a 1 x 1 convolution to ``1 / L`` of
    the channels for L sizes, a norm and a ReLU. Unlike mmseg's ``PSPHead``, whose branches are as
    wide as its output, it leaves the convolution behind it to a head, such as ``FCNHead`` of
    ``2 * in_channels``. The other maps are passed on.

    Args:
        in_channels: Channels C of the last map.
        pool_sizes: Sides of the L grids. Default: (1, 2, 3, 6).
        norm_cfg: Config of the norms. Default: ``dict(type='BN')``.
        init_cfg: As in mmengine. Default: None, that of PyTorch.

    Source: PSPNet (arXiv 1612.01105), with the widths of MobileViTv2 (arXiv 2206.02680).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PyramidPoolingNeck
        >>> maps = torch.randn(2, 32, 24, 32), torch.randn(2, 64, 12, 16)
        >>> [tuple(x.shape) for x in PyramidPoolingNeck(64)(maps)]
        [(2, 32, 24, 32), (2, 128, 12, 16)]
    """

    def __init__(
        self,
        in_channels: int,
        pool_sizes: Sequence[int] = (1, 2, 3, 6),
        norm_cfg: Optional[dict] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        channels, norm = in_channels // len(pool_sizes), norm_cfg or BATCH_NORM
        if not channels:
            raise ValueError(
                f'in_channels must be at least the number of pool_sizes, {len(pool_sizes)}, got '
                f'{in_channels}'
            )
        # Modules, for which an export puts pooling that its runtimes have.
        self.pools = ModuleList(nn.AdaptiveAvgPool2d(size) for size in pool_sizes)
        self.branches = ModuleList(
            ConvLayer(in_channels, channels, norm_cfg=norm, act_cfg=RELU) for _ in pool_sizes
        )

    def forward(self, maps: Sequence[Tensor]) -> Tuple[Tensor, ...]:
        """The maps, of which the last ``(B, C, H, W)`` becomes ``(B, C + L * (C // L), H, W)``."""
        *others, x = maps
        pooled = [
            F.interpolate(
                branch(pool(x)),
                x.shape[-2:],
                mode='bilinear',
                align_corners=True,
            )
            for branch, pool in zip(self.branches, self.pools)
        ]
        return (*others, torch.cat([x, *pooled], dim=1))


@MODELS.register_module()
class SSDLiteNeck(BaseModule):
    """The maps of SSD's levels, of two maps of a backbone: all but the last layer of each level.

    Two levels are a map each, by a 1 x 1 convolution with a norm and a ReLU where it has other
    channels. A depthwise convolution of stride 2 and such a 1 x 1 convolution make each further
    level of the one before it, and a 1 x 1 convolution and a ReLU the last one, of its mean. Behind
    the levels but the last is a depthwise convolution with a norm, which boxes and classes share.
    mmdet's ``SSDNeck`` has other convolutions. ``SSDLiteHead`` of ``mmlaplace.models.ssd`` follows.

    Args:
        in_channels: Channels of the two maps, the finer first. The coarser one makes the others.
        out_channels: Channels of the levels. Default: (512, 256, 256, 128, 128, 64).
        norm_cfg: Config of the norms. Default: ``dict(type='BN')``.
        init_cfg: As in mmengine. Default: uniform Xavier convolutions.

    Source: CVNets (arXiv 2206.02002), with the widths of MobileViTv2 (arXiv 2206.02680).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SSDLiteNeck
        >>> maps = torch.randn(2, 32, 20, 20), torch.randn(2, 64, 10, 10)
        >>> [tuple(x.shape[1:]) for x in SSDLiteNeck((32, 64), (16, 16, 16, 8))(maps)]
        [(16, 20, 20), (16, 10, 10), (16, 5, 5), (8, 1, 1)]
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        out_channels: Sequence[int] = (512, 256, 256, 128, 128, 64),
        norm_cfg: Optional[dict] = None,
        init_cfg: Optional[dict] = None,
    ) -> None:
        if len(out_channels) <= len(in_channels):
            raise ValueError(
                f'out_channels must have more levels than the {len(in_channels)} maps of '
                f'in_channels, got {tuple(out_channels)}'
            )
        super().__init__(init_cfg or dict(type='Xavier', layer='Conv2d', distribution='uniform'))
        norm = norm_cfg or BATCH_NORM

        def depthwise(dims: int, stride: int = 1) -> ConvLayer:
            return ConvLayer(dims, dims, 3, stride, groups=dims, norm_cfg=norm)

        def pointwise(inputs: int, outputs: int) -> ConvLayer:
            return ConvLayer(inputs, outputs, norm_cfg=norm, act_cfg=RELU)

        self.projections = ModuleList(
            nn.Identity() if inputs == outputs else pointwise(inputs, outputs)
            for inputs, outputs in zip(in_channels, out_channels)
        )
        *middle, last = out_channels[len(in_channels) :]
        self.extra_layers, dims = ModuleList(), in_channels[-1]
        for channels in middle:
            layers = Sequential(depthwise(dims, stride=2), pointwise(dims, channels))
            self.extra_layers.append(layers)
            dims = channels
        linear = nn.Conv2d(dims, last, 1, bias=False)
        self.extra_layers.append(Sequential(nn.AdaptiveAvgPool2d(1), linear, nn.ReLU()))
        self.depthwise = ModuleList(map(depthwise, out_channels[:-1]))

    def forward(self, maps: Sequence[Tensor]) -> Tuple[Tensor, ...]:
        """The levels ``(B, out_channels[i], H_i, W_i)`` of maps ``(B, in_channels[i], H_i, W_i)``.

        The last is of 1 x 1.

        Raises:
            ValueError: For another number of maps than ``in_channels`` has.
        """
        check_maps(maps, len(self.projections))
        levels = [projection(x) for projection, x in zip(self.projections, maps)]
        x = maps[-1]
        for layers in self.extra_layers:
            x = layers(x)
            levels.append(x)
        *levels, last = levels
        return (*(layer(level) for layer, level in zip(self.depthwise, levels)), last)
