"""XCiT's block: local patch interaction between the attention and the FFN."""

from typing import Any, Dict, Tuple

import torch.nn as nn
from mmengine.model import BaseModule, ModuleDict
from torch import Tensor

from .block import LayerScale, TransformerBlock
from .build import build_token_norm
from .class_attention import LAYER_NORM
from .feature_map import map_to_tokens, tokens_to_map


class LocalPatchInteraction(BaseModule):
    """Two depthwise 3 x 3 convolutions of the map of the tokens, with GELU and BatchNorm between.

    Args:
        embed_dims: Channels C.

    Source: XCiT (arXiv 2106.09681).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.local_patch import LocalPatchInteraction
        >>> LocalPatchInteraction(64)(torch.randn(1, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([1, 45, 64])
    """

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        depthwise: Dict[str, Any] = dict(kernel_size=3, padding=1, groups=embed_dims)
        first = nn.Conv2d(embed_dims, embed_dims, **depthwise)
        last = nn.Conv2d(embed_dims, embed_dims, **depthwise)
        # By name, and the BatchNorm first: fuse_conv_bn would merge it into a convolution that is
        # registered before it, across the GELU.
        norm = nn.BatchNorm2d(embed_dims)
        self.layers = ModuleDict({'2': norm, '0': first, '1': nn.GELU(), '3': last})

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)`` for a map ``(H, W)``."""
        maps = tokens_to_map(x, hw_shape)
        for name in ('0', '1', '2', '3'):
            maps = self.layers[name](maps)
        return map_to_tokens(maps)


class XCABlock(TransformerBlock):
    """A block with a :class:`LocalPatchInteraction` between the attention and the FFN.

    Each of the three branches has a norm and a layer scale. Arguments are those of
    :class:`TransformerBlock`, and ``layer_scale`` is 1 by default.

    Source: XCiT (arXiv 2106.09681).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.local_patch import XCABlock
        >>> attn_cfg = dict(
        ...     type='XCAttention', embed_dims=64, num_heads=2, input_resolution=(14, 14))
        >>> XCABlock(64, attn_cfg)(torch.randn(1, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([1, 45, 64])
    """

    def __init__(self, embed_dims: int, attn_cfg: dict, *args: Any, **kwargs: Any) -> None:
        norm_cfg = kwargs.pop('norm_cfg', None) or LAYER_NORM
        layer_scale = kwargs.pop('layer_scale', 1.0)
        options = dict(kwargs, norm_cfg=norm_cfg, layer_scale=layer_scale)
        super().__init__(embed_dims, attn_cfg, *args, **options)
        self.norm3 = build_token_norm(norm_cfg, embed_dims)
        self.local = LocalPatchInteraction(embed_dims)
        self.scale3 = LayerScale(embed_dims, layer_scale)

    def branches(self) -> list:
        attention, ffn = super().branches()
        return [attention, (None, self.norm3, self.local, self.scale3), ffn]
