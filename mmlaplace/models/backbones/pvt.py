"""PVT and PVTv2."""

from dataclasses import replace
from functools import partial
from typing import Any, Dict, List, Optional

import torch.nn as nn
from mmengine.registry import MODELS

from ...checkpoints.conversion import NameTable, Rows, position_map, within
from ...checkpoints.dense import dense_models
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import BLOCK, HEAD, REDUCED, class_position, map_positions
from ..layers import OverlapPatchEmbed, PatchEmbed
from ..layers.build import build_token_norm
from ..pyramid import MICRO, STRIDES, Family, PyramidBackbone, Stage, arch


def overlapping_patches(stride: int) -> partial:
    """Kernel 7 for stride 4, kernel 3 for stride 2."""
    return partial(OverlapPatchEmbed, kernel_size=2 * stride - 1, stride=stride)


def patches(stride: int, ceil_mode: bool = True) -> partial:
    """Patches of PVT, which do not overlap."""
    return partial(PatchEmbed, patch_size=stride, ceil_mode=ceil_mode)


def pvt(with_cls_token: bool = False, ceil_mode: bool = True) -> List[Stage]:
    """PVT: patches, learned positions, softmax on reduced keys, maps without a norm.

    Args:
        with_cls_token: Whether the last stage has a class token, and a norm after it, as the
            authors' classifiers have. Default: False.
        ceil_mode: Whether sides of maps are rounded up, by zeros at the border. Otherwise they are
            rounded down, as in the authors' code, and the rest of the image is dropped. It matters
            for sides that 32 does not divide. Default: True.
    """
    stages = [
        Stage(
            patches(stride, ceil_mode),
            stride,
            dict(type='SoftmaxAttention', sr_ratio=sr_ratio),
            position={},
            out_norm=None,
        )
        for stride, sr_ratio in zip(STRIDES, (8, 4, 2, 1))
    ]
    if with_cls_token:
        last = stages[-1]
        stages[-1] = replace(last, position=dict(cls_token=True), out_norm=last.norm)
    return stages


def _stage_norm(embed_dims: int, norm_cfg: Optional[dict] = None) -> nn.Module:
    return build_token_norm(norm_cfg or dict(type='LN', eps=1e-6), embed_dims)


def pvt_v2(stage_norms: bool = False, linear_attention: bool = False) -> List[Stage]:
    """PVTv2: overlapping patch embeddings, no positions, a convolution in the FFN.

    Args:
        stage_norms: Whether each stage ends with a norm, whose output the next stage takes, as in
            the authors' code. The norms of patch embeddings then have its eps, 1e-5. Otherwise
            only the returned maps have a norm. Default: False.
        linear_attention: Whether keys and values are pooled to 7 x 7 tokens in every stage, and
            FFNs have a ReLU before the convolution, as in the authors' PVTv2 of linear time.
            Default: False.
    """
    own: Dict[str, Any] = dict(end=_stage_norm, out_norm=None) if stage_norms else {}
    embed_norm = dict(norm_cfg=dict(type='LN', eps=1e-5)) if stage_norms else {}
    ffn_cfg: Dict[str, Any] = dict(dwconv_kernel=3)
    if linear_attention:
        ffn_cfg['dwconv_act_cfg'] = dict(type='ReLU')
    return [
        Stage(
            partial(overlapping_patches(stride), **embed_norm),
            stride,
            dict(
                type='SoftmaxAttention',
                **(dict(pool_size=7) if linear_attention else dict(sr_ratio=sr_ratio)),
            ),
            block=dict(ffn_cfg=ffn_cfg),
            **own,
        )
        for stride, sr_ratio in zip(STRIDES, (8, 4, 2, 1))
    ]


_arch = partial(arch, num_heads=(1, 2, 5, 8), ffn_ratios=(8, 8, 4, 4))


@MODELS.register_module()
class PVT(PyramidBackbone):
    """PVT: patches, learned positions, and softmax attention on spatially reduced keys and values.

    Patches have a side of 4 pixels, then of 2 tokens. Learned positions come before each stage and
    are resized to the input. Blocks are pre-norm. Returned maps have no norm, as in the authors'
    detectors. ``attn_cfg=dict(type='FLattenAttention')`` gives FLatten-PVT. Arguments are those of
    :class:`PyramidBackbone`, ``ceil_mode``, and ``with_cls_token``: the authors' classifiers have a
    class token, the others here average the last map.

    Source: PVT (arXiv 2102.12122).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PVT
        >>> backbone = PVT(arch='micro', attn_cfg=dict(type='FLattenAttention'), out_indices=-1)
        >>> backbone(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 128, 2, 3])
    """

    host = staticmethod(pvt)
    arch_zoo = {
        'micro': MICRO,
        'tiny': _arch((64, 128, 320, 512), (2, 2, 2, 2)),
        'small': _arch((64, 128, 320, 512), (3, 4, 6, 3)),
        'medium': _arch((64, 128, 320, 512), (3, 4, 18, 3)),
        'large': _arch((64, 128, 320, 512), (3, 8, 27, 3)),
    }


@MODELS.register_module()
class PVTv2(PyramidBackbone):
    """PVTv2: overlapping patch embeddings, no positions, a depthwise convolution in the FFN.

    Patch embeddings have kernel 7 and stride 4, then kernel 3 and stride 2. Attention is softmax on
    spatially reduced keys and values. Arguments are those of :class:`PyramidBackbone`, and
    ``stage_norms``, which the authors' weights need, and ``linear_attention``.

    Source: PVTv2 (arXiv 2106.13797).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PVTv2
        >>> maps = PVTv2(arch='b0')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 160, 4, 6), (1, 256, 2, 3)]
    """

    host = staticmethod(pvt_v2)
    arch_zoo = {
        'b0': _arch((32, 64, 160, 256), (2, 2, 2, 2)),
        'b1': _arch((64, 128, 320, 512), (2, 2, 2, 2)),
        'b2': _arch((64, 128, 320, 512), (3, 4, 6, 3)),
        'b3': _arch((64, 128, 320, 512), (3, 4, 18, 3)),
        'b4': _arch((64, 128, 320, 512), (3, 8, 27, 3)),
        'b5': _arch((64, 128, 320, 512), (3, 6, 40, 3), ffn_ratios=(4, 4, 4, 4)),
    }
    default_arch = 'b1'


DOWNLOADS = 'https://github.com/whai362/PVT/releases/download/v2'
# The authors number stages from 1.
EMBEDS: Rows = within(
    'stages.{i-1}.patch_embed.', 'patch_embed{i}.', {'proj.': 'projection.', 'norm.': 'norm.'}
)
CONVOLUTION: Rows = {'mlp.dwconv.dwconv.': 'ffn.dwconv.conv.'}  # of PVTv2's FFN


def blocks(released: str, own: str, attention: Rows, more: Optional[Rows] = None) -> Rows:
    """The rows of blocks with an attention, and of further parts of a block."""
    return within(own, released, {**BLOCK, **within('attn.', 'attn.', attention), **(more or {})})


def pvt_rows(attention: Rows = REDUCED) -> Rows:
    """The rows of a PVT without a class token, and with an attention."""
    return {
        **EMBEDS,
        'pos_embed{i}': ('stages.{i-1}.position.map', position_map),
        **blocks('block{i}.{j}.', 'stages.{i-1}.blocks.{j}.', attention),
        **HEAD,
    }


def pvt_v2_rows(attention: Rows = REDUCED) -> Rows:
    """The rows of a PVTv2 in its authors' code, with an attention."""
    return {
        **EMBEDS,
        **blocks('block{i}.{j}.', 'stages.{i-1}.blocks.{j}.', attention, CONVOLUTION),
        'norm{i}.': 'stages.{i-1}.norm.',
        **HEAD,
    }


UNUSED_NORM: Rows = {'norm.': None}  # some authors' forwards do not use it
CLASS_TOKEN: Rows = {
    'pos_embed4': [
        ('stages.3.position.cls_position', class_position),
        ('stages.3.position.map', map_positions),
    ],
    'cls_token': 'stages.3.position.cls_token',
    'norm.': 'norm3.',
}
PVT_NAMES = NameTable(
    {**pvt_rows(), **CLASS_TOKEN},
    identifying=('cls_token', 'pos_embed1', 'block1.0.attn.q.weight', 'block1.0.mlp.fc1.weight'),
)
PVTV2_NAMES = NameTable(
    pvt_v2_rows(),
    identifying=('block1.0.attn.q.weight', 'block1.0.mlp.dwconv.dwconv.weight', 'norm1.weight'),
)
PVTV2_TIMM_NAMES = NameTable(
    {
        'patch_embed.proj.': 'stages.0.patch_embed.projection.',
        'patch_embed.norm.': 'stages.0.patch_embed.norm.',
        'stages.{i}.downsample.proj.': 'stages.{i}.patch_embed.projection.',
        'stages.{i}.downsample.norm.': 'stages.{i}.patch_embed.norm.',
        **blocks(
            'stages.{i}.blocks.{j}.',
            'stages.{i}.blocks.{j}.',
            REDUCED,
            {'mlp.dwconv.': 'ffn.dwconv.conv.'},
        ),
        'stages.{i}.norm.': 'stages.{i}.norm.',
        **HEAD,
    },
    identifying=('stages.0.blocks.0.attn.q.weight', 'stages.0.blocks.0.mlp.dwconv.weight'),
)

PUBLISHED = {
    **{
        f'pvt_{size}': PublishedModel(
            (PVT_NAMES,),
            dict(type='PVT', arch=size, with_cls_token=True),
            f'{DOWNLOADS}/pvt_{size}.pth',
        )
        for size in ('tiny', 'small', 'medium', 'large')
    },
    **{
        f'pvt_v2_{size}': PublishedModel(
            (PVTV2_NAMES, PVTV2_TIMM_NAMES),
            dict(type='PVTv2', arch=size, stage_norms=True),
            f'{DOWNLOADS}/pvt_v2_{size}.pth',
        )
        for size in ('b0', 'b1', 'b2', 'b3', 'b4', 'b5')
    },
    'pvt_v2_b2_li': PublishedModel(
        (PVTV2_NAMES, PVTV2_TIMM_NAMES),
        dict(type='PVTv2', arch='b2', stage_norms=True, linear_attention=True),
        f'{DOWNLOADS}/pvt_v2_b2_li.pth',
    ),
}
# The authors give one address of both detectors of PVT-Large, so one of them is not linked.
FILES = {
    'retinanet_pvt-{}_fpn_1x_coco': dict(
        tiny='1ZbS-g3oqAChkYiDYTiZLzw61lal2pgbl',
        small='1U02ngyT_IYxS8SlU3WXf5r0TFsoBE3Lm',
        medium='1DJCmbrpLJhQi20ztSCmtruDaXtqOsrns',
        large='1zG_Ji_GamjQgPbe6hHOjZlIHs5jZbVFL',
    ),
    'mask-rcnn_pvt-{}_fpn_1x_coco': dict(
        tiny='1JGcl7ZnDIf-qQjrCXVtb71XeRWOIu7Xf',
        small='1XGJQTivM_KviRDVvKTPgkJQhFco2oXSA',
        medium='1m0TFlJOVSLaAA4alVqp_VRckg0uRGTJ-',
        large='1zG_Ji_GamjQgPbe6hHOjZlIHs5jZbVFL',
    ),
    'pvt-{}_fpn_8xb4-40k_ade20k-512x512': dict(
        tiny='13SaiOJ9hH7Wwg_AyeQ158LNV9vtjq6Lu',
        small='13fy-FXAfYnHgHRaUiJWVBON670wFLIiD',
        medium='10ErJJZCcucnjjo8et2ivuHRzxbwc04y2',
        large='1JkaXbTorIWLj9Oe5Dh6kzH_1vtrRFJRL',
    ),
}
V2_FILES = {
    'retinanet_pvtv2-{}_fpn_1x_coco': dict(
        b0='1K6OkU3CYVglnLSDSvsY8HpDcISB6eKzM',
        b1='1UyBfxAyQygVgAtBeynXrG2iCJj70kiP9',
        b2='1VqrLiQ0329HpqiG3BU3q0LoXi6ncS1_k',
        b3='1Lz4qRtDoYT8RvDpVxJCvstM3qTtHlLqL',
        b4='1GCiE6tniZrG36vumnGi9d79xQEXCS-l2',
        b5='10cUAXpajabSpAJVSPRNywkOiUlgIjN0e',
    ),
    'mask-rcnn_pvtv2-{}_fpn_1x_coco': dict(
        b0='1eRDCU0Erv-kWwCFCwU_VljdjpHk9ktAY',
        b1='1Y4xgILkl7bh3-DV3rksZTGlN_VTLAIkO',
        b2='1F3-FBjDLkskZFvhECO3sSkHwBg8Mx_j0',
        b3='1Uq9KpUSLt1-B_6tgVTc1-neuxYBMTI1S',
        b4='1IpdgEHAe3XNlIldk6drzOWRcE-wFCv7v',
        b5='1BvI5XXaGbv3tbLrXbVQ5K45gFVEHbBGX',
    ),
}
# Their last positions keep that of a class token, which their forward does not use.
PVT_MAPS = PVT_NAMES.of_maps(
    {'pos_embed4': ('stages.3.position.map', map_positions)}, PVT_NAMES.identifying[1:]
)
_drive = dict(page='https://drive.google.com/file/d/{}/view')
DENSE = {
    **dense_models(FILES, 'pvt_{}', PVT_MAPS, **_drive),
    **dense_models(V2_FILES, 'pvt_v2_{}', PVTV2_NAMES, **_drive),
}
FAMILY = Family(
    {PVT: 'pvt', PVTv2: 'pvtv2'},
    PUBLISHED,
    # timm has PVTv2, and not PVT. Evaluated as classification/datasets.py does: the centre.
    timm=dict.fromkeys(
        [f'pvt_{size}' for size in ('tiny', 'small', 'medium', 'large')],
        dict(paper_ids='arXiv:2102.12122'),
    ),
    dense=DENSE,
    licence='Apache-2.0',
)
