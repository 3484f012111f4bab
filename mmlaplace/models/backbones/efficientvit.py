"""EfficientViT: two or three stages of convolutions, then multi-scale linear attention."""

from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch.nn as nn
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows, Target, within
from ...checkpoints.dense import DenseModel, dense_models
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import linear
from ..layers import map_to_tokens
from ..layers.block import Block
from ..layers.conv_layers import BATCH_NORM, H_SWISH, ConvFFN, ConvLayer, convolutions
from ..layers.feature_map import channels_last, shape_of_map
from ..pyramid import STRIDES, Family, PyramidBackbone, Stage, arch


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
            self.residual = convolutions(stem, dims, dims, 1, norm, act)
            in_channels = dims
        self.layers = convolutions(kind, in_channels, embed_dims, ratio, norm, act, stride=2)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        if self.stem is not None:
            x = self.stem(channels_last(x))
            x = x + self.residual(x)
        x = self.layers(x)  # (B, C, H', W')
        return map_to_tokens(x), shape_of_map(x)


class EfficientViTLocalBlock(Block):
    """A block without an attention: ``x + ffn(x)`` with a :class:`ConvFFN`.

    Args:
        embed_dims: Channels C.
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


class EfficientViTBlock(Block):
    """``x + attention(x)``, then ``x + ffn(x)`` with a :class:`ConvFFN`, without norms before.

    Args:
        embed_dims: Channels C.
        attn_cfg: Complete config of a registered attention.
        ffn_ratio, drop_rate, drop_path_rate, with_cp, norm_cfg, ffn_cfg: As in
            :class:`EfficientViTLocalBlock`.

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
        drop_path_rate: float = 0.0,
        with_cp: bool = False,
        norm_cfg: Optional[dict] = None,
        ffn_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(drop_path_rate, with_cp)
        self.attn = MODELS.build(attn_cfg)
        self.ffn = ConvFFN(embed_dims, ffn_ratio, drop_rate, norm_cfg=norm_cfg, **(ffn_cfg or {}))

    def _forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        x = x + self.drop_path(self.attn(x, hw_shape))
        return x + self.drop_path(self.ffn(x, hw_shape))


def efficientvit(large: bool = False) -> List[Stage]:
    """EfficientViT: local blocks in the first stages, attention and convolutions in the others.

    Args:
        large: Whether it is of the L series: the first two stages have fused MBConvs, only the last
            has attentions, and activations are tanh GELUs. Default: False, the B series.
    """
    norm = dict(type='BN', eps=1e-7 if large else 1e-5)
    act = dict(type='GELU', approximate='tanh') if large else H_SWISH
    kinds = ['inverted', 'inverted', 'inverted_one_norm', 'inverted_one_norm']
    ratios = (4, 4, 4, 4)
    with_attention = (False, False, True, True)
    stems = ('depthwise', None, None, None)
    if large:
        kinds[:2] = ['fused', 'fused']
        ratios = (16, 16, 16, 24)
        with_attention = (False, False, False, True)
        stems = ('plain', None, None, None)
    stages = []
    for i, stride in enumerate(STRIDES):
        layers: Dict[str, Any] = dict(kind=kinds[i], act_cfg=act)
        stages.append(
            Stage(
                partial(EfficientViTEmbed, ratio=ratios[i], stem=stems[i], norm_cfg=norm, **layers),
                stride,
                dict(type='LiteMLA', norm_cfg=norm) if with_attention[i] else None,
                norm=norm,
                out_norm=None,
                block=dict(
                    type=EfficientViTBlock if with_attention[i] else EfficientViTLocalBlock,
                    ffn_cfg=layers,
                ),
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
        'l3': arch((128, 256, 512, 1024), (2, 2, 8, 8), ffn_ratios=(4, 4, 4, 6)),
    }


MBCONV = ('inverted_conv', 'depth_conv', 'point_conv')
LAYERS: Dict[str, Sequence[str]] = {  # the names of a block's convolutions, in their order
    'inverted': MBCONV,
    'fused': ('spatial_conv', 'point_conv'),
    'depthwise': ('depth_conv', 'point_conv'),
    'plain': ('conv1', 'conv2'),
}
LITEMLA: Rows = {
    'qkv.conv.': ('qkv.', linear),
    'aggreg.': 'aggregations.',
    'proj.conv.': ('proj.', linear),
    'proj.norm.': 'norm.',
}
BLOCK: Rows = {
    **within('attn.', 'context_module.main.', LITEMLA),
    **{f'local_module.main.{name}.': f'ffn.layers.{i}.' for i, name in enumerate(MBCONV)},
}


def _layers(own: str, released: str, kind: str) -> Dict[str, Target]:
    return {f'{released}main.{name}.': f'{own}{i}.' for i, name in enumerate(LAYERS[kind])}


def _rows(
    stem: str, residual: str, stages: Sequence[str], kinds: Sequence[str], attentions: int
) -> Dict[str, Target]:
    """The rows of a backbone.

    Args:
        stem: Start of the names of the first convolution.
        residual: Start of the names of the residual convolutions of the stem.
        stages: Starts of the names of the blocks of each stage, the first of which halves the map.
        kinds: Of the convolutions of the stem, and of each stage.
        attentions: How many of the last stages have attentions.
    """
    first = 'stages.0.patch_embed.'
    rows = {stem: f'{first}stem.', **_layers(f'{first}residual.', residual, kinds[0])}
    for i, (released, kind) in enumerate(zip(stages, kinds[1:])):
        rows.update(_layers(f'stages.{i}.patch_embed.layers.', f'{released}0.', kind))
        block = f'stages.{i}.blocks.{{j-1}}.'
        if i < len(stages) - attentions:
            rows.update(_layers(f'{block}ffn.layers.', f'{released}{{j}}.', kind))
        else:
            rows.update(within(block, f'{released}{{j}}.', BLOCK))
    return rows


def _authors(large: bool, kinds: Sequence[str]) -> NameTable:
    start = 'backbone.stages.0.op_list' if large else 'backbone.input_stem.op_list'
    stages = [f'backbone.stages.{i + large}.op_list.' for i in range(4)]
    rows = _rows(f'{start}.0.', f'{start}.1.', stages, kinds, 1 if large else 2)
    head: Rows = {
        'head.op_list.0.conv.': 'neck.projection.',
        'head.op_list.0.norm.': 'neck.norm.',
        'head.op_list.2.linear.': 'neck.linear.',
        'head.op_list.2.norm.': 'neck.linear_norm.',
        'head.op_list.3.linear.': 'head.fc.',
    }
    attention = f'{stages[3]}1.context_module.main.qkv.conv.weight'
    return NameTable({**rows, **head}, identifying=(f'{start}.0.conv.weight', attention))


def _timm(large: bool, kinds: Sequence[str]) -> NameTable:
    stages = [f'stages.{i}.blocks.' for i in range(4)]
    rows = _rows('stem.in_conv.', 'stem.res0.', stages, kinds, 1 if large else 2)
    head: Rows = {
        'head.in_conv.conv.': 'neck.projection.',
        'head.in_conv.norm.': 'neck.norm.',
        'head.classifier.0.': 'neck.linear.',
        'head.classifier.1.': 'neck.linear_norm.',
        'head.classifier.4.': 'head.fc.',
    }
    convolution = f'stem.res0.main.{LAYERS[kinds[0]][0]}.conv.weight'
    attention = 'stages.3.blocks.1.context_module.main.qkv.conv.weight'
    return NameTable({**rows, **head}, identifying=(convolution, attention))


SMALL = ('depthwise', 'inverted', 'inverted', 'inverted', 'inverted')
LARGE = ('plain', 'fused', 'fused', 'inverted', 'inverted')
NAMES = {  # by whether the model is of the L series
    False: (_authors(False, SMALL), _timm(False, SMALL)),
    True: (_authors(True, LARGE), _timm(True, LARGE)),
}

HUB = 'https://huggingface.co'
SIZES: Dict[str, Tuple[int, int, int]] = {
    # channels of the last map, of the neck, and of the head
    'b0': (128, 1024, 1280),
    'b1': (256, 1536, 1600),
    'b2': (384, 2304, 2560),
    'b3': (512, 2304, 2560),
    'l1': (512, 3072, 3200),
    'l2': (512, 3072, 3200),
    'l3': (1024, 6144, 6400),
}


def _published(size: str, side: int) -> PublishedModel:
    """The classifier of a size, whose weights are for images of this side."""
    large = size.startswith('l')
    kind = 'EfficientViTLarge' if large else 'EfficientViT'
    backbone: Dict[str, Any] = dict(type=kind, arch=size)
    if side != 224:
        backbone.update(img_size=side)
    dims, hidden, out = SIZES[size]
    neck: Dict[str, Any] = dict(
        type='EfficientViTNeck', in_channels=dims, hidden_channels=hidden, out_channels=out
    )
    if large:
        neck.update(eps=1e-7, act_cfg=dict(type='GELU', approximate='tanh'))
    weights = f'{HUB}/han-cai/efficientvit-cls/resolve/main/efficientvit_{size}_r{side}.pt'
    if size == 'b0':  # which the authors' page does not have
        weights = f'{HUB}/timm/efficientvit_b0.r224_in1k/resolve/main/model.safetensors'
    return PublishedModel(NAMES[large], backbone, weights, neck)


PUBLISHED = {
    'efficientvit_b0': _published('b0', 224),
    'efficientvit_b1': _published('b1', 224),
    'efficientvit_b1_256': _published('b1', 256),
    'efficientvit_b1_288': _published('b1', 288),
    'efficientvit_b2': _published('b2', 224),
    'efficientvit_b2_256': _published('b2', 256),
    'efficientvit_b2_288': _published('b2', 288),
    'efficientvit_b3': _published('b3', 224),
    'efficientvit_b3_256': _published('b3', 256),
    'efficientvit_b3_288': _published('b3', 288),
    'efficientvit_l1': _published('l1', 224),
    'efficientvit_l2': _published('l2', 224),
    'efficientvit_l2_256': _published('l2', 256),
    'efficientvit_l2_288': _published('l2', 288),
    'efficientvit_l2_320': _published('l2', 320),
    'efficientvit_l2_384': _published('l2', 384),
    'efficientvit_l3': _published('l3', 224),
    'efficientvit_l3_256': _published('l3', 256),
    'efficientvit_l3_288': _published('l3', 288),
    'efficientvit_l3_320': _published('l3', 320),
    'efficientvit_l3_384': _published('l3', 384),
}


def _segmentors(data: str, sizes: Sequence[str], expands: bool) -> Dict[str, DenseModel]:
    """The segmentors on these data, whose head expands its channels before the last linear."""
    large = sizes[0].startswith('l')
    last = f'head.output_ops.0.op_list.{int(expands)}.conv.'
    rows: Dict[str, Target] = {
        **NAMES[large][0].rows,
        **{f'head.input_ops.{2 - i}.op_list.0.': f'neck.laterals.{i}.' for i in (1, 2)},
        'head.input_ops.2.': 'neck.laterals.0.',
        **_layers('neck.blocks.{j}.', 'head.middle.op_list.{j}.', 'fused' if large else 'inverted'),
        **({'head.output_ops.0.op_list.0.': 'neck.expand.0.'} if expands else {}),
        last: 'decode_head.conv_seg.',
    }
    # Other layers have no bias, as a norm has it.
    identifying = (*NAMES[large][0].identifying, f'{last}bias')
    file = f'efficientvit_seg_{{}}_{data.partition("-")[0]}.pt'
    return dense_models(
        {f'efficientvit-{{}}_seghead_8xb2-160k_{data}': dict(zip(sizes, sizes))},
        'efficientvit_{}',
        NameTable(rows, identifying, whole=True),
        f'{HUB}/han-cai/efficientvit-seg/resolve/main/{file}',
    )


DENSE = {
    **_segmentors('cityscapes-1024x1024', ('b0', 'b1', 'b2', 'b3'), expands=True),
    **_segmentors('cityscapes-1024x1024', ('l1', 'l2'), expands=False),
    **_segmentors('ade20k-512x512', ('b1', 'b2', 'b3'), expands=False),
    **_segmentors('ade20k-512x512', ('l1', 'l2'), expands=True),
}
FAMILY = Family(
    {EfficientViT: 'efficientvit', EfficientViTLarge: 'efficientvit'},
    PUBLISHED,
    dense=DENSE,
    licence='Apache-2.0',
)
