"""SwiftFormer: convolutional blocks, and one of additive attention at the end of each stage."""

from functools import partial
from typing import Any, Dict, List, Optional, Tuple

from mmengine.registry import MODELS
from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows, Target, within
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import flat, linear
from ..layers import (
    FFN,
    ConvPatchEmbed,
    DepthwiseConv,
    LayerScale,
    OverlapPatchEmbed,
)
from ..layers.block import Block
from ..layers.build import build_token_norm
from ..pyramid import STRIDES, Family, PyramidBackbone, Stage, arch

BATCH_NORM = dict(type='BN')


class SwiftFormerLocalBlock(Block):
    r"""A block without an attention: a depthwise convolution, a norm and an FFN.

    .. math:: x + \gamma \odot \mathrm{FFN}(\mathrm{norm}(\mathrm{DWConv}(x)))

    Args:
        embed_dims: Channels C.
        ffn_ratio: Hidden channels of the FFN in units of C. Default: 4.
        drop_rate: Dropout rate in the FFN. Default: 0.
        drop_path_rate: Stochastic depth rate. Default: 0.
        with_cp: Whether to recompute activations in the backward pass. Default: False.
        norm_cfg: Config of the norm. Default: ``dict(type='BN')``.
        ffn_cfg: Further arguments of :class:`FFN`. Default: none.

    Source: SwiftFormer (arXiv 2303.15446).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.swiftformer import SwiftFormerLocalBlock
        >>> SwiftFormerLocalBlock(64)(torch.randn(2, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([2, 45, 64])
    """

    attn = None

    def __init__(
        self,
        embed_dims: int,
        ffn_ratio: float = 4.0,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        norm_cfg: Optional[dict] = None,
        ffn_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(drop_path_rate, with_cp)
        self.conv = DepthwiseConv(embed_dims, 3)
        self.norm = build_token_norm(norm_cfg or BATCH_NORM, embed_dims)
        self.ffn = FFN(embed_dims, ffn_ratio, drop_rate, **(ffn_cfg or {}))
        self.scale = LayerScale(embed_dims, 1.0)

    def _forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        out = self.ffn(self.norm(self.conv(x, hw_shape)), hw_shape)
        return x + self.drop_path(self.scale(out))


class SwiftFormerBlock(Block):
    """A local block whose FFN does not widen, then attention without a norm, then an FFN.

    A :class:`LayerScale` of 1e-5 is on the branches of the attention and of the last FFN.

    Args:
        embed_dims: Channels C.
        attn_cfg: Complete config of a registered attention.
        ffn_ratio, drop_rate, drop_path_rate, with_cp, norm_cfg, ffn_cfg: As in
            :class:`SwiftFormerLocalBlock`.

    Source: SwiftFormer (arXiv 2303.15446).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.swiftformer import SwiftFormerBlock
        >>> attn_cfg = dict(
        ...     type='AdditiveAttention', embed_dims=64, num_heads=2, input_resolution=(14, 14))
        >>> SwiftFormerBlock(64, attn_cfg)(torch.randn(2, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([2, 45, 64])
    """

    def __init__(
        self,
        embed_dims: int,
        attn_cfg: dict,
        ffn_ratio: float = 4.0,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        norm_cfg: Optional[dict] = None,
        ffn_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(drop_path_rate, with_cp)
        self.attn = MODELS.build(attn_cfg)
        self.norm2 = build_token_norm(norm_cfg or BATCH_NORM, embed_dims)
        self.ffn = FFN(embed_dims, ffn_ratio, drop_rate, **(ffn_cfg or {}))
        self.scale1 = LayerScale(embed_dims, 1e-5)
        self.scale2 = LayerScale(embed_dims, 1e-5)
        self.local = SwiftFormerLocalBlock(
            embed_dims, ffn_ratio=1, drop_rate=drop_rate, norm_cfg=norm_cfg, ffn_cfg=ffn_cfg
        )

    def _forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        x = self.local(x, hw_shape)
        x = x + self.drop_path(self.scale1(self.attn(x, hw_shape)))
        return x + self.drop_path(self.scale2(self.ffn(self.norm2(x), hw_shape)))


def _block(embed_dims: int, attn_cfg: Optional[dict] = None, **block: Any) -> Block:
    if attn_cfg is None:
        return SwiftFormerLocalBlock(embed_dims, **block)
    return SwiftFormerBlock(embed_dims, attn_cfg, **block)


def in_the_last_block(attn: dict, depth: int) -> List[Optional[dict]]:
    """An attention in the last block alone."""
    return [None] * (depth - 1) + [attn]


def _stem(in_channels: int, embed_dims: int, norm_cfg: Optional[dict] = None) -> ConvPatchEmbed:
    return ConvPatchEmbed(in_channels, embed_dims, (2, 2), embed_dims // 2, norm_cfg)


def swiftformer() -> List[Stage]:
    """SwiftFormer: convolutions embed patches, and the last block of a stage has an attention."""
    down = partial(OverlapPatchEmbed, kernel_size=3, stride=2, norm_cfg=BATCH_NORM)
    return [
        Stage(
            _stem if stride == 4 else down,
            stride,
            dict(type='AdditiveAttention'),
            norm=BATCH_NORM,
            out_norm=BATCH_NORM,
            attn_in_blocks=in_the_last_block,
            block=dict(type=_block),
        )
        for stride in STRIDES
    ]


@MODELS.register_module()
class SwiftFormer(PyramidBackbone):
    """SwiftFormer: stages of convolutions, each with one block of additive attention at its end.

    Two 3 x 3 convolutions with BatchNorm and ReLU embed patches. One with BatchNorm begins each
    later stage. All norms are BatchNorms, and ``norm_cfg=dict(type='SyncBN')`` sets all of them.
    ``attn_cfg`` is for the last block of each stage. The additive attention has no heads, so
    ``num_heads`` counts those of other attentions. Arguments are those of :class:`PyramidBackbone`.

    Source: SwiftFormer (arXiv 2303.15446).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SwiftFormer
        >>> maps = SwiftFormer(arch='xs')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 48, 16, 24), (1, 56, 8, 12), (1, 112, 4, 6), (1, 220, 2, 3)]
    """

    host = staticmethod(swiftformer)
    default_arch = 'xs'
    arch_zoo = {
        'xs': arch((48, 56, 112, 220), (3, 3, 6, 4), (1, 2, 4, 5)),
        's': arch((48, 64, 168, 224), (3, 3, 9, 6), (1, 2, 6, 7)),
        'l1': arch((48, 96, 192, 384), (4, 3, 10, 5), (1, 3, 6, 12)),
        'l3': arch((64, 128, 320, 512), (4, 4, 12, 6)),
    }


EMBED: Rows = {'proj.': 'projection.', 'norm.': 'norm.norm.'}


def _blocks(scale: str, projection: str) -> Dict[str, Target]:
    """The rows of a block, with the ends of the names of layer scales, and a linear's name."""
    local: Rows = {
        'dwconv.': 'conv.conv.',
        'norm.': 'norm.norm.',
        'pwconv1.': ('ffn.layers.0.', linear),
        'pwconv2.': ('ffn.layers.3.', linear),
        f'layer_scale{scale}': ('scale.weight', flat),
    }
    return {
        **local,
        **within('local.', 'local_representation.', local),
        'attn.to_query.': 'attn.query.',
        'attn.to_key.': 'attn.key.',
        'attn.w_g': 'attn.score',
        f'attn.{projection}.': 'attn.mixed_proj.',
        'attn.final.': 'attn.proj.',
        f'layer_scale_1{scale}': ('scale1.weight', flat),
        'linear.norm1.': 'norm2.norm.',
        'linear.fc1.': ('ffn.layers.0.', linear),
        'linear.fc2.': ('ffn.layers.3.', linear),
        f'layer_scale_2{scale}': ('scale2.weight', flat),
    }


def _ends(stem: str, second_head: str) -> Rows:
    """The rows of the stem, which has that name, of the last norm and of the heads."""
    return {
        stem: 'stages.0.patch_embed.layers.',
        'norm.': 'norm3.norm.',
        'head.': 'head.fc.',
        second_head: 'head.fc.',
    }


AUTHORS_BLOCK = _blocks('', 'Proj')
TIMM_BLOCK = _blocks('.gamma', 'proj')
AUTHORS_NAMES = NameTable(
    {
        **_ends('patch_embed.', 'dist_head.'),
        # The authors count stages, and the embeddings between them, together.
        **within('stages.0.blocks.{j}.', 'network.0.{j}.', AUTHORS_BLOCK),
        **within('stages.1.patch_embed.', 'network.1.', EMBED),
        **within('stages.1.blocks.{j}.', 'network.2.{j}.', AUTHORS_BLOCK),
        **within('stages.2.patch_embed.', 'network.3.', EMBED),
        **within('stages.2.blocks.{j}.', 'network.4.{j}.', AUTHORS_BLOCK),
        **within('stages.3.patch_embed.', 'network.5.', EMBED),
        **within('stages.3.blocks.{j}.', 'network.6.{j}.', AUTHORS_BLOCK),
    },
    identifying=('network.0.0.pwconv1.weight', 'network.1.proj.weight', 'patch_embed.0.weight'),
    means=('head.',),
)
TIMM_NAMES = NameTable(
    {
        **_ends('stem.', 'head_dist.'),
        **within('stages.{i}.patch_embed.', 'stages.{i}.downsample.', EMBED),
        **within('stages.{i}.blocks.{j}.', 'stages.{i}.blocks.{j}.', TIMM_BLOCK),
    },
    identifying=(
        'stages.0.blocks.0.pwconv1.weight',
        'stages.1.downsample.proj.weight',
        'stem.0.weight',
    ),
    means=('head.',),
)

PUBLISHED = {
    f'swiftformer_{size}': PublishedModel(
        (AUTHORS_NAMES, TIMM_NAMES),
        dict(type='SwiftFormer', arch=size),
        f'https://huggingface.co/timm/swiftformer_{size}.dist_in1k/resolve/main/model.safetensors',
    )
    for size in ('xs', 's', 'l1', 'l3')
}
FAMILY = Family({SwiftFormer: 'swiftformer'}, PUBLISHED, licence='Apache-2.0')
