"""MobileViTv2: inverted residuals, and separable attention on half of the channels."""

from functools import partial
from typing import Any, Dict, List, Optional, Tuple

import torch.nn as nn
from mmengine.model import BaseModule, Sequential
from mmengine.registry import MODELS
from torch import Tensor

from ..layers import TransformerBlock, map_to_tokens
from ..layers.build import build_token_norm
from ..layers.feature_map import channels_last, shape_of_map
from .base import PyramidBackbone
from .efficientvit import BATCH_NORM, ConvLayer, EfficientViTLocalBlock, inverted_residual
from .hosts import STRIDES, arch
from .stage import Stage

GROUP_NORM = dict(type='GN', num_groups=1)
SILU = dict(type='SiLU')


class MobileViTv2Embed(BaseModule):
    """An inverted residual that halves a map, and what leads from it to the blocks of a stage.

    A side of S pixels becomes ⌈S / 2⌉ tokens, or ⌈S / 4⌉ with a stem.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels C of the stage.
        stem: Whether a 3 x 3 convolution of stride 2 to C/4 channels, and an inverted residual to
            C/2 channels come first. Default: False.
        local: Whether a depthwise 3 x 3 convolution and a linear to C/2 channels follow. Default:
            False.
        norm_cfg: Config of the norms. Default: ``dict(type='BN')``.

    Source: MobileViTv2 (arXiv 2206.02680).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.mobilevitv2 import MobileViTv2Embed
        >>> tokens, hw_shape = MobileViTv2Embed(16, 32, local=True)(torch.randn(1, 16, 7, 9))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 20, 16]), (4, 5))
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        stem: bool = False,
        local: bool = False,
        norm_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__()
        layers: Dict[str, Any] = dict(norm_cfg=norm_cfg or BATCH_NORM, act_cfg=SILU)
        self.stem = Sequential()
        if stem:
            first, in_channels = in_channels, embed_dims // 2
            self.stem.append(ConvLayer(first, embed_dims // 4, 3, stride=2, **layers))
            self.stem.append(inverted_residual(embed_dims // 4, in_channels, 2, **layers))
        self.layers = inverted_residual(in_channels, embed_dims, 2, stride=2, **layers)
        self.local: nn.Module = nn.Identity()
        self.proj: nn.Module = nn.Identity()
        if local:
            self.local = ConvLayer(embed_dims, embed_dims, 3, groups=embed_dims, **layers)
            self.proj = nn.Linear(embed_dims, embed_dims // 2, bias=False)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C or C/2), (H', W')`` with ``N = H' * W'``."""
        x = self.local(self.layers(self.stem(channels_last(x))))
        return self.proj(map_to_tokens(x)), shape_of_map(x)


class MobileViTv2Block(TransformerBlock):
    """A :class:`TransformerBlock` whose norms have the statistics of all channels and tokens.

    Arguments are those of :class:`TransformerBlock`. ``norm_cfg`` has no effect.

    Source: MobileViTv2 (arXiv 2206.02680).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.mobilevitv2 import MobileViTv2Block
        >>> attn_cfg = dict(
        ...     type='SeparableAttention', embed_dims=64, num_heads=2, input_resolution=(14, 14))
        >>> MobileViTv2Block(64, attn_cfg)(torch.randn(2, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([2, 45, 64])
    """

    def __init__(
        self, embed_dims: int, *args: Any, norm_cfg: Optional[dict] = None, **kwargs: Any
    ) -> None:
        kwargs.update(norm_cfg=GROUP_NORM)
        super().__init__(embed_dims, *args, **kwargs)


class MobileViTv2End(BaseModule):
    """A norm of half the channels, a linear to all of them, and a norm: ``norm(W norm(x))``.

    Args:
        in_channels: Channels of the blocks, C/2.
        embed_dims: Channels C of the stage.
        norm_cfg: Config of the last norm. The first is a GroupNorm of one group. Default:
            ``dict(type='BN')``.

    Source: MobileViTv2 (arXiv 2206.02680).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.mobilevitv2 import MobileViTv2End
        >>> MobileViTv2End(16, 32)(torch.randn(1, 5 * 9, 16)).shape
        torch.Size([1, 45, 32])
    """

    def __init__(self, in_channels: int, embed_dims: int, norm_cfg: Optional[dict] = None) -> None:
        super().__init__()
        self.norm1 = build_token_norm(GROUP_NORM, in_channels)
        self.proj = nn.Linear(in_channels, embed_dims, bias=False)
        self.norm2 = build_token_norm(norm_cfg or BATCH_NORM, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C/2) -> (B, N, C)``."""
        return self.norm2(self.proj(self.norm1(x)))


def mobilevitv2() -> List[Stage]:
    """MobileViTv2: inverted residuals in the first stage, transformer blocks in the others.

    The blocks of these have half of the stage's channels. Their norms have statistics of a whole
    map, and their attention sums over one token of each patch of 2 x 2.
    """
    first, *others = STRIDES
    local = Stage(
        partial(MobileViTv2Embed, stem=True),
        first,
        dict(type='SeparableAttention'),
        norm=BATCH_NORM,
        out_norm=None,
        block=dict(ffn_cfg=dict(kind='inverted', act_cfg=SILU)),
        attn_blocks=0,
        local_class=EfficientViTLocalBlock,
    )
    return [
        local,
        *(
            Stage(
                partial(MobileViTv2Embed, local=True),
                stride,
                dict(type='SeparableAttention', patch_size=2),
                norm=BATCH_NORM,
                out_norm=None,
                block=dict(ffn_cfg=dict(act_cfg=SILU)),
                block_class=MobileViTv2Block,
                width=0.5,
                end=MobileViTv2End,
            )
            for stride in others
        ),
    ]


def _arch(width: float) -> dict:
    """The arch of a width, with heads of 32 channels where these divide the blocks' channels."""
    dims = tuple(int(width * channels) for channels in (128, 256, 384, 512))
    heads = (1, *(max(h for h in range(1, c // 64 + 1) if c // 2 % h == 0) for c in dims[1:]))
    return arch(dims, (1, 2, 4, 3), heads, (2, 2, 2, 2))


@MODELS.register_module()
class MobileViTv2(PyramidBackbone):
    """MobileViTv2: inverted residuals, and :class:`SeparableAttention` in the last three stages.

    A 3 x 3 convolution and an inverted residual are the stem. Another one, of stride 2, begins each
    stage. The last three stages have transformer blocks on half of their channels: a depthwise
    convolution and a linear lead to them, and a norm and a linear back. The norms in the blocks are
    GroupNorms of one group. All others are BatchNorms, and ``norm_cfg=dict(type='SyncBN')`` sets
    these. The separable attention has no heads, so ``num_heads`` counts those of other attentions.
    Arguments are those of :class:`PyramidBackbone`. The archs are named by their width, such as
    ``'100'``.

    The authors resize a map whose sides are no multiples of 2 before its blocks, and do not resize
    it back. Here it keeps its size.

    Source: MobileViTv2 (arXiv 2206.02680).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import MobileViTv2
        >>> maps = MobileViTv2(arch='050')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 64, 16, 24), (1, 128, 8, 12), (1, 192, 4, 6), (1, 256, 2, 3)]
    """

    host = staticmethod(mobilevitv2)
    default_arch = '100'
    arch_zoo = {f'{width:03}': _arch(width / 100) for width in range(50, 201, 25)}
