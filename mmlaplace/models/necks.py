"""Necks of classifiers: layers between the last map and the linear head."""

from typing import Optional, Tuple

import torch.nn as nn
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor

from .layers.build import build_activation, build_map_norm

__all__ = ['ConvPoolingNeck', 'EfficientViTNeck']


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
