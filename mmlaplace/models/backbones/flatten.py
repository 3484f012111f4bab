"""FLatten Transformer on PVT, PVTv2 and Swin."""

from typing import Any, List, Optional

from ...checkpoints.conversion import NameTable, Rows, position_map
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import REDUCED, flat, square_map
from ..pyramid import Family
from . import cswin
from .pvt import UNUSED_NORM, pvt_rows, pvt_v2_rows
from .swin import WINDOWS, linear_window, swin_rows

CLOUD = 'https://cloud.tsinghua.edu.cn/f'
FLATTEN: Rows = {
    **REDUCED,
    'dwc.': 'lepe.conv.',
    'scale': ('scale', flat),
    'positional_encoding': ('key_positions', position_map),
}
FLATTEN_WINDOWS: Rows = {**FLATTEN, **WINDOWS, 'positional_encoding': ('key_positions', square_map)}
IDENTIFYING = (
    'block1.0.attn.positional_encoding',
    'block1.0.attn.scale',
    'block1.0.attn.dwc.weight',
)
PVT_NAMES = NameTable(
    {**pvt_rows(FLATTEN), **UNUSED_NORM},
    identifying=(*IDENTIFYING, 'pos_embed1', 'block1.0.attn.q.weight'),
)
PVTV2_NAMES = NameTable(
    pvt_v2_rows(FLATTEN),
    identifying=(*IDENTIFYING, 'norm1.weight', 'block1.0.attn.q.weight'),
)
SWIN_NAMES = NameTable(
    swin_rows('{i+1}', FLATTEN_WINDOWS),
    identifying=(
        'layers.0.blocks.0.attn.positional_encoding',
        'layers.0.blocks.0.attn.scale',
        'layers.0.blocks.0.attn.dwc.weight',
        'layers.0.blocks.0.attn.qkv.weight',
    ),
)

CSWIN_NAMES = NameTable(
    cswin.cswin_rows({**FLATTEN, **cswin.SECOND}),
    identifying=(
        *cswin.IDENTIFYING,
        'stage1.0.attns.0.scale',
        'stage1.0.attns.0.positional_encoding',
    ),
)


def linear_windows(kind: str, linear: int, softmax: Optional[int] = None, **options: Any) -> List:
    """The ``attn_cfg`` of a Swin that is linear in two stages, with sides of its windows."""
    last = None if softmax is None else dict(window_size=softmax)
    return [linear_window(linear, type=kind, **options)] * 2 + [last] * 2


MAP_ATTENTION = cswin.linear_maps(
    type='FLattenAttention', qkv='qkv', lepe_kernel=5, second_lepe_kernel=3
)


def _published(names: NameTable, digits: str, **backbone: Any) -> PublishedModel:
    return PublishedModel((names,), backbone, f'{CLOUD}/{digits}/?dl=1')


def _swin(digits: str, arch: str) -> PublishedModel:
    attn_cfg = linear_windows('FLattenAttention', 56, qkv='qkv')
    return _published(SWIN_NAMES, digits, type='Swin', arch=arch, attn_cfg=attn_cfg)


PUBLISHED = {
    'flatten_cswin_tiny': _published(
        CSWIN_NAMES,
        '48ba765ba8b0451d9d5a',
        type='CSWin',
        arch=cswin.linear_arch('tiny'),
        attn_cfg=MAP_ATTENTION,
    ),
    'flatten_pvt_tiny': _published(
        PVT_NAMES,
        '3ab1d773f19d45648690',
        type='PVT',
        arch='tiny',
        attn_cfg=dict(type='FLattenAttention'),
    ),
    'flatten_pvt_v2_b0': _published(
        PVTV2_NAMES,
        '5d1f01532b104da28e7b',
        type='PVTv2',
        arch='b0',
        stage_norms=True,
        attn_cfg=dict(type='FLattenAttention'),
    ),
    'flatten_swin_tiny': _swin('e1518e76703e4e57a7f2', 'tiny'),
    'flatten_swin_small': _swin('94188e52af354bf4a88b', 'small'),
    'flatten_swin_base': _swin('7a9e5186bad04e7fb3a9', 'base'),
    'flatten_swin_base_384': _published(
        SWIN_NAMES,
        '0d0330cf2e5249f1abb6',
        type='Swin',
        arch='base',
        img_size=384,
        attn_cfg=linear_windows('FLattenAttention', 96, softmax=12, qkv='qkv'),
    ),
}
FAMILY = Family(
    published=PUBLISHED,
    timm=dict(
        # As data/build.py: a square of ⌊S / 0.875⌋, at 384 one of S.
        flatten=dict(paper_ids='arXiv:2308.00442', crop_mode='squash'),
        flatten_swin_base_384=dict(crop_pct=1.0),
    ),
    licence='none',
)
