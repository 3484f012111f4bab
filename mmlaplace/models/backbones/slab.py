"""SLAB on DeiT, PVT, Swin and CSWin, and these hosts with its norm alone."""

import re
from typing import Any, Dict, Tuple

from torch import Tensor

from ...checkpoints.conversion import NameTable, Rows, position_map
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
    norms = {
        start: target
        for start, target in rows.items()
        if isinstance(target, str) and re.search(r'\bnorm\d?\.$', target)
    }
    return {
        **rows,
        **{f'{start}norm1.': f'{target}layer_norm.' for start, target in norms.items()},
        **{f'{start}norm2.': target for start, target in norms.items()},
        # The batches that the BatchNorm counts are the forwards, which the counters count down.
        **{
            f'{start}norm2.bn.num_batches_tracked': [
                (f'{target}bn.num_batches_tracked', unchanged),
                (f'{target}forwards', as_float),
            ]
            for start, target in norms.items()
        },
        **{f'{start}{name}': None for start in norms for name in ('warm', 'iter', 'total_step')},
    }


SLAB: Rows = {'dwc.': 'lepe.conv.', 'positional_encoding': ('key_positions', position_map)}
MAP_POSITIONS = ('stages.0.position.map', position_map)
DEIT = NameTable(
    # A class token that the authors' forward does not use.
    with_norms({**vit_rows({**ATTENTION, **SLAB}), 'pos_embed': MAP_POSITIONS, 'cls_token': None}),
    identifying=(*IDENTIFYING, 'blocks.0.attn.positional_encoding', 'blocks.0.norm1.norm2.alpha'),
)
PVT = NameTable(
    with_norms(pvt_rows({**REDUCED, **SLAB})),
    identifying=('pos_embed1', 'block1.0.attn.q.weight', 'block1.0.norm1.norm2.alpha'),
)
SWIN = NameTable(
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
CSWIN = NameTable(
    with_norms(cswin.cswin_rows({**SLAB, **cswin.SECOND, 'scale': None})),
    identifying=(
        *cswin.IDENTIFYING,
        'stage1_conv_embed.2.norm2.alpha',
        'stage1.0.attns.0.positional_encoding',
        'stage1.0.attns.0.scale',
    ),
)
# With softmax, on DeiT tiny and Swin without the LayerNorm.
SOFTMAX_DEIT, DEIT_REPBN = (
    NameTable(with_norms(vit_rows()), identifying=(*IDENTIFYING, f'blocks.0.norm1.{norm}alpha'))
    for norm in ('norm2.', '')
)
SWIN_REPBN = NameTable(
    with_norms(swin_rows('{i+1}')), identifying=(TABLE, 'layers.0.blocks.0.norm1.alpha')
)


def prepbn(steps: int, eps: float = 1e-6) -> Dict[str, Any]:
    """The norm that becomes a RepBN in so many steps."""
    return dict(type='PRepBN', steps=steps, eps=eps)


REPBN = dict(type='RepBN')
SLAB_WINDOWS = linear_windows('SLABAttention', 56)


def _deit(arch: str) -> Dict[str, Any]:
    attn_cfg = dict(type='SLABAttention')
    return dict(
        type='ViT', arch=arch, with_cls_token=False, attn_cfg=attn_cfg, norm_cfg=prepbn(60000)
    )


def _pvt(arch: str, steps: int = 300000) -> Dict[str, Any]:
    norm = prepbn(steps)
    return dict(type='PVT', arch=arch, attn_cfg=dict(sr_norm_cfg=norm), norm_cfg=norm)


def _swin(arch: str) -> Dict[str, Any]:
    return dict(type='Swin', arch=arch, attn_cfg=SLAB_WINDOWS, norm_cfg=prepbn(60000, 1e-5))


SLAB_MAPS = cswin.linear_maps(type='SLABAttention', lepe_kernel=5, second_lepe_kernel=3)
SLAB_CSWIN = dict(
    type='CSWin',
    arch=cswin.linear_arch('tiny'),
    attn_cfg=SLAB_MAPS,
    norm_cfg=prepbn(240000, 1e-5),
)
SLAB_PVT = dict(
    type='PVT',
    arch='tiny',
    attn_cfg=dict(type='SLABAttention', qkv='q_kv'),
    norm_cfg=prepbn(300000),
)
PUBLISHED = {
    name: PublishedModel((table,), backbone, f'{DOWNLOADS}/{file}.pth')
    for name, table, backbone, file in (
        ('slab_deit_tiny', DEIT, _deit('tiny'), 'slab_deit_tiny'),
        ('slab_deit_small', DEIT, _deit('small'), 'slab_deit_small'),
        ('slab_pvt_tiny', PVT, SLAB_PVT, 'slab_pvt_tiny'),
        ('slab_swin_tiny', SWIN, _swin('tiny'), 'slab_swin_tiny'),
        ('slab_swin_small', SWIN, _swin('small'), 'slab_swin_small'),
        ('slab_cswin_tiny', CSWIN, SLAB_CSWIN, 'slab_cswin_tiny'),
        (
            'prepbn_deit_tiny',
            DEIT_REPBN,
            dict(type='ViT', arch='tiny', norm_cfg=REPBN),
            'deit_tiny_prepbn',
        ),
        (
            'prepbn_deit_small',
            SOFTMAX_DEIT,
            dict(type='ViT', arch='small', norm_cfg=prepbn(300000)),
            'deit_small_prepbn',
        ),
        ('prepbn_pvt_tiny', PVT, _pvt('tiny'), 'pvt_tiny_prepbn'),
        # Of 1,024 images. The authors take 300,000 of 512.
        ('prepbn_pvt_small', PVT, _pvt('small', 150000), 'pvt_small_prepbn'),
        ('prepbn_pvt_medium', PVT, _pvt('medium'), 'pvt_medium_prepbn'),
        (
            'prepbn_swin_tiny',
            SWIN_REPBN,
            dict(type='Swin', arch='tiny', norm_cfg=REPBN),
            'swin_tiny_prepbn',
        ),
    )
}
FAMILY = Family(
    published=PUBLISHED,
    # Evaluated as classification/data/build.py does: the centre, by timm's defaults.
    timm=dict.fromkeys(('slab', 'prepbn'), dict(paper_ids='arXiv:2405.11582')),
)
