"""PolaFormer on PVT, PVTv2, Swin and DeiT."""

from functools import partial
from typing import Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows, position_map
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import REDUCED, first, flat, square_map
from ..pyramid import Family
from .deit import ViT, vit
from .pvt import PVT, UNUSED_NORM, PVTv2, pvt_rows
from .swin import WINDOWS, Swin, swin_rows


@MODELS.register_module()
class PolaFormerPVT(PVT):
    """PVT with polarity-aware linear attention in every stage.

    It is :class:`PVT` with :class:`PolaAttention`.

    Source: PolaFormer (arXiv 2501.15061).

    Examples:
        With softmax in the last two stages:

        >>> import torch
        >>> from mmlaplace.models import PolaFormerPVT
        >>> softmax = [dict(type='SoftmaxAttention', sr_ratio=ratio) for ratio in (2, 1)]
        >>> backbone = PolaFormerPVT(arch='micro', attn_cfg=[None, None, *softmax])
        >>> [tuple(x.shape) for x in backbone(torch.randn(1, 3, 64, 96))]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 96, 4, 6), (1, 128, 2, 3)]
    """

    default_attn_cfg = dict(type='PolaAttention')


@MODELS.register_module()
class PolaFormerPVTv2(PVTv2):
    """PVTv2 with polarity-aware linear attention in every stage.

    It is :class:`PVTv2` with :class:`PolaAttention`.

    Source: PolaFormer (arXiv 2501.15061).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PolaFormerPVTv2
        >>> backbone = PolaFormerPVTv2(arch='b0', out_indices=-1)
        >>> backbone(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 256, 2, 3])
    """

    arch_zoo = {size: PVTv2.arch_zoo[size] for size in ('b0', 'b1', 'b2')}
    default_attn_cfg = dict(type='PolaAttention')


@MODELS.register_module()
class PolaFormerSwin(Swin):
    """Swin with polarity-aware linear attention in the first two stages.

    It is :class:`Swin` with :class:`PolaAttention` in the first two stages. The windows there have
    56 tokens a side, which at 224 x 224 is the whole map. If 56 does not divide the sides of a map,
    the windows shrink (``even_windows`` of :class:`WindowAttention`). At 512 x 512 there are 3 x 3
    windows of 43 tokens a side. Padding to windows of 56 would compute 1.7 times as much there. The
    authors' windows at 384 x 384 are in the example.

    Source: PolaFormer (arXiv 2501.15061).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PolaFormerSwin
        >>> windows = dict(per_stage=dict(window_size=(96, 96, 12, 12)))
        >>> backbone = PolaFormerSwin(arch='micro', attn_cfg=windows, img_size=384)
        >>> [tuple(x.shape) for x in backbone(torch.randn(1, 3, 64, 96))]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 128, 4, 6), (1, 256, 2, 3)]
    """

    arch_zoo = {size: Swin.arch_zoo[size] for size in ('micro', 'tiny', 'small', 'base')}
    default_attn_cfg = [
        *[dict(window_size=56, even_windows=True, attn_cfg=dict(type='PolaAttention'))] * 2,
        *[None] * 2,
    ]


@MODELS.register_module()
class PolaFormerDeiT(ViT):
    """DeiT with polarity-aware linear attention.

    It is :class:`ViT` with :class:`PolaAttention` and without a class token, because the
    attention's convolution needs tokens of a map. Classifiers average the map.

    Source: PolaFormer (arXiv 2501.15061). The authors have released no code for this host. The size
    is the paper's.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PolaFormerDeiT
        >>> arch = dict(embed_dims=[64], depths=[2], num_heads=[2], ffn_ratios=[4])
        >>> PolaFormerDeiT(arch)(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 64, 4, 6])
    """

    host = staticmethod(partial(vit, with_cls_token=False))
    arch_zoo = {'tiny': ViT.arch_zoo['tiny']}
    default_attn_cfg = dict(type='PolaAttention')


def query_and_gate(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """q and g of the rows of q, k, v and g."""
    query, _, _, gate = value.chunk(4)
    return torch.cat([query, gate])


def key_and_value(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """k and v of the rows of q, k, v and g."""
    _, key, own, _ = value.chunk(4)
    return torch.cat([key, own])


POLA: Rows = {
    **REDUCED,
    'qg.': 'qkv.',
    'dwc.': 'lepe.conv.',
    'power': ('power', first),
    'scale': ('scale', flat),
    'positional_encoding': ('key_positions', position_map),
}
POLA_WINDOWS: Rows = {
    **POLA,
    **WINDOWS,
    'qkvg.weight': [('qkv.weight', query_and_gate), ('kv.weight', key_and_value)],
    'qkvg.bias': [('qkv.bias', query_and_gate), ('kv.bias', key_and_value)],
    'positional_encoding': ('key_positions', square_map),
}
PVT_NAMES = NameTable(
    {**pvt_rows(POLA), **UNUSED_NORM},
    identifying=('block1.0.attn.power', 'block1.0.attn.qg.weight'),
)
SWIN_NAMES = NameTable(
    swin_rows('{i+1}', POLA_WINDOWS),
    identifying=('layers.0.blocks.0.attn.power', 'layers.0.blocks.0.attn.qkvg.weight'),
)

PAGE = 'https://huggingface.co/ZachMeng/PolaFormer/tree/main'
PUBLISHED = {
    **{
        f'polaformer_pvt_{size}': PublishedModel(
            (PVT_NAMES,),
            dict(type='PolaFormerPVT', arch=size),
            page=PAGE if size in ('tiny', 'small') else '',  # those that their README lists
        )
        for size in ('tiny', 'small', 'medium', 'large')
    },
    **{
        f'polaformer_swin_{size}': PublishedModel(
            (SWIN_NAMES,), dict(type='PolaFormerSwin', arch=size), page=PAGE
        )
        for size in ('tiny', 'small', 'base')
    },
}
FAMILY = Family(
    {
        PolaFormerPVT: 'polaformer-pvt',
        PolaFormerPVTv2: 'polaformer-pvtv2',
        PolaFormerSwin: 'polaformer-swin',
        PolaFormerDeiT: 'polaformer-deit',
    },
    PUBLISHED,
    timm=dict(polaformer=dict(paper_ids='arXiv:2501.15061', crop_mode='squash')),
    licence='MIT',
)
