"""SLAB on DeiT, PVT, Swin and CSWin, and these hosts with its norm alone."""

import re
from typing import Any, Dict, Tuple

from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows, Target, position_map
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import ATTENTION, REDUCED, square_map, unchanged
from ..pyramid import Family
from . import cswin
from .deit import IDENTIFYING, vit_rows
from .flatten import linear_windows
from .pvt import pvt_rows
from .swin import TABLE, WINDOWS, swin_rows

DOWNLOADS = 'https://github.com/xinghaochen/SLAB/releases/download/ckpts'


def as_float(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    return value.float()


def with_norms(rows: Rows) -> Rows:
    """The rows, in which each norm is a LayerNorm and a RepBN with counters, or a RepBN."""
    extended: Dict[str, Target] = dict(rows)
    for start, target in rows.items():
        if not isinstance(target, str) or not re.search(r'\bnorm\d?\.$', target):
            continue
        extended[f'{start}norm1.'] = f'{target}layer_norm.'
        extended[f'{start}norm2.'] = target
        # The batches that the BatchNorm counts are the forwards, which the counters count down.
        extended[f'{start}norm2.bn.num_batches_tracked'] = [
            (f'{target}bn.num_batches_tracked', unchanged),
            (f'{target}forwards', as_float),
        ]
        for counter in ('warm', 'iter', 'total_step'):
            extended[f'{start}{counter}'] = None
    return extended


SLAB: Rows = {'dwc.': 'lepe.conv.', 'positional_encoding': ('key_positions', position_map)}
MAP_POSITIONS = ('stages.0.position.map', position_map)
DEIT_NAMES = NameTable(
    # A class token that the authors' forward does not use.
    with_norms({**vit_rows({**ATTENTION, **SLAB}), 'pos_embed': MAP_POSITIONS, 'cls_token': None}),
    identifying=(*IDENTIFYING, 'blocks.0.attn.positional_encoding', 'blocks.0.norm1.norm2.alpha'),
)
PVT_NAMES = NameTable(
    with_norms(pvt_rows({**REDUCED, **SLAB})),
    identifying=('pos_embed1', 'block1.0.attn.q.weight', 'block1.0.norm1.norm2.alpha'),
)
SWIN_NAMES = NameTable(
    with_norms(
        swin_rows(
            '{i+1}', {**WINDOWS, **SLAB, 'positional_encoding': ('key_positions', square_map)}
        )
    ),
    identifying=(
        'layers.0.blocks.0.attn.positional_encoding',
        'layers.0.blocks.0.norm1.norm2.alpha',
    ),
)
CSWIN_NAMES = NameTable(
    with_norms(cswin.cswin_rows({**SLAB, **cswin.SECOND, 'scale': None})),
    identifying=(
        *cswin.IDENTIFYING,
        'stage1_conv_embed.2.norm2.alpha',
        'stage1.0.attns.0.positional_encoding',
        'stage1.0.attns.0.scale',
    ),
)
# With softmax, on DeiT tiny and Swin without the LayerNorm.
SOFTMAX_DEIT_NAMES = NameTable(
    with_norms(vit_rows()), identifying=(*IDENTIFYING, 'blocks.0.norm1.norm2.alpha')
)
REPBN_DEIT_NAMES = NameTable(
    with_norms(vit_rows()), identifying=(*IDENTIFYING, 'blocks.0.norm1.alpha')
)
REPBN_SWIN_NAMES = NameTable(
    with_norms(swin_rows('{i+1}')), identifying=(TABLE, 'layers.0.blocks.0.norm1.alpha')
)


def prepbn(steps: int, eps: float = 1e-6) -> Dict[str, Any]:
    """The norm that becomes a RepBN in so many steps."""
    return dict(type='PRepBN', steps=steps, eps=eps)


REPBN = dict(type='RepBN')
SLAB_MAPS = cswin.linear_maps(type='SLABAttention', lepe_kernel=5, second_lepe_kernel=3)


def _published(names: NameTable, file: str, **backbone: Any) -> PublishedModel:
    return PublishedModel((names,), backbone, f'{DOWNLOADS}/{file}.pth')


def _slab_deit(arch: str) -> PublishedModel:
    return _published(
        DEIT_NAMES,
        f'slab_deit_{arch}',
        type='ViT',
        arch=arch,
        with_cls_token=False,
        attn_cfg=dict(type='SLABAttention'),
        norm_cfg=prepbn(60000),
    )


def _slab_swin(arch: str) -> PublishedModel:
    return _published(
        SWIN_NAMES,
        f'slab_swin_{arch}',
        type='Swin',
        arch=arch,
        attn_cfg=linear_windows('SLABAttention', 56),
        norm_cfg=prepbn(60000, 1e-5),
    )


def _prepbn_pvt(arch: str, steps: int) -> PublishedModel:
    norm = prepbn(steps)
    return _published(
        PVT_NAMES,
        f'pvt_{arch}_prepbn',
        type='PVT',
        arch=arch,
        attn_cfg=dict(sr_norm_cfg=norm),
        norm_cfg=norm,
    )


PUBLISHED = {
    'slab_deit_tiny': _slab_deit('tiny'),
    'slab_deit_small': _slab_deit('small'),
    'slab_pvt_tiny': _published(
        PVT_NAMES,
        'slab_pvt_tiny',
        type='PVT',
        arch='tiny',
        attn_cfg=dict(type='SLABAttention', qkv='q_kv'),
        norm_cfg=prepbn(300000),
    ),
    'slab_swin_tiny': _slab_swin('tiny'),
    'slab_swin_small': _slab_swin('small'),
    'slab_cswin_tiny': _published(
        CSWIN_NAMES,
        'slab_cswin_tiny',
        type='CSWin',
        arch=cswin.linear_arch('tiny'),
        attn_cfg=SLAB_MAPS,
        norm_cfg=prepbn(240000, 1e-5),
    ),
    'prepbn_deit_tiny': _published(
        REPBN_DEIT_NAMES,
        'deit_tiny_prepbn',
        type='ViT',
        arch='tiny',
        norm_cfg=REPBN,
    ),
    'prepbn_deit_small': _published(
        SOFTMAX_DEIT_NAMES,
        'deit_small_prepbn',
        type='ViT',
        arch='small',
        norm_cfg=prepbn(300000),
    ),
    'prepbn_pvt_tiny': _prepbn_pvt('tiny', 300000),
    # Of 1,024 images. The authors take 300,000 of 512.
    'prepbn_pvt_small': _prepbn_pvt('small', 150000),
    'prepbn_pvt_medium': _prepbn_pvt('medium', 300000),
    'prepbn_swin_tiny': _published(
        REPBN_SWIN_NAMES,
        'swin_tiny_prepbn',
        type='Swin',
        arch='tiny',
        norm_cfg=REPBN,
    ),
}
# Evaluated as classification/data/build.py does: the centre, by timm's defaults.
TIMM = dict(paper_ids='arXiv:2405.11582')
FAMILY = Family(published=PUBLISHED, timm=dict(slab=TIMM, prepbn=TIMM), licence='none')
