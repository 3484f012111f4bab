"""Swin."""

from functools import partial
from typing import Any, Callable, Dict, List, Optional

import torch.nn as nn
from mmengine.registry import MODELS

from ...checkpoints.conversion import NameTable, Rows, Target, within
from ...checkpoints.dense import DenseModel, dense_models
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import ATTENTION, BLOCK, MAP_NORMS, offset_map
from ..attentions.window import WindowAttention
from ..layers import PatchEmbed, PatchMerging
from ..pyramid import STRIDES, Family, PyramidBackbone, Stage, arch
from ..pyramid.options import attention_class
from ..pyramid.stage import in_every_block


def shifted_by_turns(attn: dict, depth: int) -> List[Optional[dict]]:
    """Windows are shifted in every second block, unless the config says otherwise."""
    if attention_class(attn['type']) is not WindowAttention or 'shifted' in attn:
        return in_every_block(attn, depth)
    return [dict(attn, shifted=True) if j % 2 else attn for j in range(depth)]


def swin(
    window_size: int = 7, pad_small_maps: bool = False, resize_windows: bool = False
) -> List[Stage]:
    """Swin: patches that are merged 2 x 2, attention in windows, shifted in every second block.

    Args:
        window_size: Side of a window, in tokens. Default: 7.
        resize_windows: Whether tables of other windows in a checkpoint are resized, as in
            :class:`WindowAttention`. Default: False.
        pad_small_maps: Whether maps that are not longer than a window are padded and shifted, as in
            the authors' detectors. Otherwise the window shrinks, as in their classifiers.
            Default: False.
    """
    attn = dict(
        type='WindowAttention',
        window_size=window_size,
        attn_cfg=dict(type='SoftmaxAttention', relative_bias=True),
    )
    if pad_small_maps:
        attn['pad_small_maps'] = True
    if resize_windows:
        attn['resize_windows'] = True
    norm = dict(type='LN', eps=1e-5)
    embeds: List[Callable[..., nn.Module]] = [
        partial(PatchEmbed, patch_size=4), *[PatchMerging] * 3
    ]  # fmt: skip
    return [
        Stage(embed, stride, attn, attn_in_blocks=shifted_by_turns, norm=norm, out_norm=norm)
        for embed, stride in zip(embeds, STRIDES)
    ]


@MODELS.register_module()
class Swin(PyramidBackbone):
    """Swin: attention in windows of 7 x 7 tokens, shifted in every second block.

    Patches have 4 x 4 pixels, and each later stage merges 2 x 2 tokens. Blocks are pre-norm, with
    :class:`WindowAttention`. The attention in the windows has a config of its own,
    ``attn_cfg=dict(attn_cfg=...)``. Arguments are those of :class:`PyramidBackbone`,
    ``window_size``, and ``pad_small_maps=True`` for a detector or segmentor as the authors'. It
    matters for images below 256 pixels, whose last map has at most 7 tokens a side.

    Source: Swin Transformer (arXiv 2103.14030).

    Examples:
        A linear attention in the first two stages, on the whole map of a 224 x 224 image:

        >>> import torch
        >>> from mmlaplace.models import Swin
        >>> linear = dict(
        ...     window_size=56, even_windows=True, attn_cfg=dict(type='FLattenAttention'))
        >>> maps = Swin(arch='micro', attn_cfg=[linear] * 2 + [None] * 2)(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 128, 4, 6), (1, 256, 2, 3)]
    """

    host = staticmethod(swin)
    arch_zoo = {
        'micro': arch((32, 64, 128, 256), (1, 1, 2, 1)),
        'tiny': arch((96, 192, 384, 768), (2, 2, 6, 2)),
        'small': arch((96, 192, 384, 768), (2, 2, 18, 2)),
        'base': arch((128, 256, 512, 1024), (2, 2, 18, 2)),
        'large': arch((192, 384, 768, 1536), (2, 2, 18, 2)),
    }


WINDOWS: Rows = {
    **ATTENTION,
    'relative_position_bias_table': ('relative_bias', offset_map),
    'relative_position_index': None,
}


def swin_rows(merging: str, attention: Rows = WINDOWS) -> Dict[str, Target]:
    """The rows of a Swin, whose stage ``{i}`` has the merging of the stage ``merging`` here."""
    merged = {'downsample.norm.': 'norm.', 'downsample.reduction.': 'reduction.'}
    block = {**BLOCK, **within('attn.attn.', 'attn.', attention), 'attn_mask': None}
    return {
        'patch_embed.proj.': 'stages.0.patch_embed.projection.',
        'patch_embed.norm.': 'stages.0.patch_embed.norm.',
        **within(f'stages.{merging}.patch_embed.', 'layers.{i}.', merged),
        **within('stages.{i}.blocks.{j}.', 'layers.{i}.blocks.{j}.', block),
        'norm.': 'norm3.',
        'head.': 'head.fc.',
        'head.fc.': 'head.fc.',
    }


def linear_window(side: int, **attn_cfg: Any) -> Dict[str, Any]:
    """The ``attn_cfg`` of a stage of Swin with another attention in windows of ``side`` tokens."""
    return dict(window_size=side, even_windows=True, attn_cfg=attn_cfg)


TABLE = 'layers.0.blocks.0.attn.relative_position_bias_table'
# In the authors' code, a merging belongs to the stage before it.
SWIN_NAMES = NameTable(
    swin_rows('{i+1}'), identifying=(TABLE, 'layers.0.downsample.reduction.weight')
)
SWIN_TIMM_NAMES = NameTable(
    swin_rows('{i}'), identifying=(TABLE, 'layers.3.downsample.reduction.weight')
)

STORAGE = 'https://github.com/SwinTransformer/storage/releases/download'
DOWNLOADS = f'{STORAGE}/v1.0.0'
PUBLISHED = {
    f'swin_{size}': PublishedModel(
        (SWIN_NAMES, SWIN_TIMM_NAMES),
        dict(type='Swin', arch=size),
        f'{DOWNLOADS}/swin_{size}_patch4_window7_224{data}.pth',
    )
    for size, data in dict(tiny='', small='', base='', large='_22kto1k').items()
}
PUBLISHED.update(
    {
        f'swin_{size}_384': PublishedModel(
            (SWIN_NAMES, SWIN_TIMM_NAMES),
            dict(type='Swin', arch=size, window_size=12, img_size=384),
            f'{DOWNLOADS}/swin_{size}_patch4_window12_384{data}.pth',
        )
        for size, data in dict(base='', large='_22kto1k').items()
    }
)
MAPS, LICENCE = SWIN_NAMES.of_maps(MAP_NORMS), 'Apache-2.0'
MASK_RCNN, UPERNET = 'mask-rcnn_swin-{}_fpn_ms-{}_coco', '{}_upernet_8xb2-160k_ade20k-512x512'
FILES = {
    MASK_RCNN.format('{}', '1x'): dict(tiny='v1.0.3/mask_rcnn_swin_tiny_patch4_window7_1x'),
    MASK_RCNN.format('{}', '3x'): {
        size: f'v1.0.2/mask_rcnn_swin_{size}_patch4_window7' for size in ('tiny', 'small')
    },
    UPERNET.format('swin-{}'): {
        size: f'v1.0.1/upernet_swin_{size}_patch4_window7_512x512'
        for size in ('tiny', 'small', 'base')
    },
}
# Pretrained by MoBY, without labels.
MOBY = (
    (MASK_RCNN.format('tiny', '1x'), 'mask_rcnn_swin_tiny_patch4_window7_1x',
     {'box AP': 43.6, 'mask AP': 39.6}),
    (MASK_RCNN.format('tiny', '3x'), 'mask_rcnn_swin_tiny_patch4_window7_3x',
     {'box AP': 46.0, 'mask AP': 41.7}),
    (UPERNET.format('swin-tiny'), 'upernet_swin_tiny_patch4_window7_512x512', {'mIoU': 44.06}),
)  # fmt: skip
DENSE = {
    **dense_models(FILES, 'swin_{}', MAPS, STORAGE + '/{}.pth', licence=LICENCE),
    **{
        f'{config}-moby': DenseModel(
            'swin_tiny', MAPS, f'{STORAGE}/v1.0.3/moby_{file}.pth', '', LICENCE, config, scores
        )
        for config, file, scores in MOBY
    },
}
FAMILY = Family({Swin: 'swin'}, PUBLISHED, dense=DENSE)
