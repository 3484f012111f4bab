"""InLine attention on DeiT, PVT and Swin."""

from typing import Any, List, Optional, Tuple

from ...checkpoints.conversion import NameTable, Rows
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import REDUCED
from ..pyramid import Family
from . import cswin
from .deit import IDENTIFYING, vit_rows
from .flatten import CLOUD
from .pvt import UNUSED_NORM, pvt_rows
from .swin import WINDOWS, linear_window, swin_rows

INLINE: Rows = {**REDUCED, 'qkv.': 'qkv.', 'residual.': 'lepe.'}
PVT_NAMES = NameTable(
    {**pvt_rows(INLINE), **UNUSED_NORM},
    identifying=('block1.0.attn.residual.0.weight', 'block1.0.attn.q.weight', 'pos_embed1'),
)
SWIN_NAMES = NameTable(
    swin_rows('{i+1}', {**INLINE, **WINDOWS}),
    identifying=('layers.0.blocks.0.attn.residual.0.weight', 'layers.0.blocks.0.attn.qkv.weight'),
)
DEIT_NAMES = NameTable(
    vit_rows(INLINE), identifying=(*IDENTIFYING, 'blocks.0.attn.residual.0.weight')
)

CSWIN_NAMES = NameTable(
    cswin.cswin_rows({**INLINE, **cswin.SECOND}),
    identifying=(*cswin.IDENTIFYING, 'stage1.0.attns.0.residual.0.weight'),
)
MAP_ATTENTION = cswin.linear_maps(
    type='InLineAttention', second_lepe_kernel=3, filters_from='residual'
)


def windows(side: int, stages: int, blocks: Optional[int] = None) -> List[Optional[dict]]:
    """The ``attn_cfg`` of a Swin: InLine in its first stages, in windows of ``side``.

    Args:
        side: Side of the windows of InLine, in tokens.
        stages: How many stages have it.
        blocks: In the last of these stages, only so many blocks have it. Default: None, all.
    """
    linear = linear_window(side, type='InLineAttention')
    configs: List[Optional[dict]] = [linear] * stages + [None] * (4 - stages)
    if blocks is not None:
        configs[stages - 1] = dict(linear, first_blocks=blocks)
    return configs


def _published(names: NameTable, digits: str, **backbone: Any) -> PublishedModel:
    return PublishedModel((names,), backbone, f'{CLOUD}/{digits}/?dl=1')


def _deit(digits: str, dims: int, heads: int, img_size: int) -> PublishedModel:
    arch = dict(embed_dims=(dims,), depths=(12,), num_heads=(heads,), ffn_ratios=(4,))
    attn_cfg = dict(type='InLineAttention')
    return _published(
        DEIT_NAMES, digits, type='ViT', arch=arch, img_size=img_size, attn_cfg=attn_cfg
    )


def _pvt(digits: str, depths: Tuple[int, ...]) -> PublishedModel:
    # PVT's sizes, with twice the heads.
    arch = dict(
        embed_dims=(64, 128, 320, 512),
        depths=depths,
        num_heads=(2, 4, 10, 16),
        ffn_ratios=(8, 8, 4, 4),
    )
    attn_cfg = dict(type='InLineAttention', qkv='q_kv')
    return _published(PVT_NAMES, digits, type='PVT', arch=arch, attn_cfg=attn_cfg)


def _swin(digits: str, arch: str, stages: int, blocks: Optional[int] = None) -> PublishedModel:
    attn_cfg = windows(side=56, stages=stages, blocks=blocks)
    return _published(SWIN_NAMES, digits, type='Swin', arch=arch, attn_cfg=attn_cfg)


def _cswin(digits: str, size: str) -> PublishedModel:
    arch = cswin.linear_arch(size)
    return _published(CSWIN_NAMES, digits, type='CSWin', arch=arch, attn_cfg=MAP_ATTENTION)


PUBLISHED = {
    'inline_deit_tiny': _deit('1d6b8191ad6d4114b291', dims=192, heads=6, img_size=224),
    'inline_deit_small': _deit('2f3898b07e9247f3beb3', dims=320, heads=10, img_size=288),
    'inline_deit_base': _deit('10bdd726d4b0435eb34e', dims=384, heads=12, img_size=448),
    'inline_pvt_tiny': _pvt('90ac52b1555b401eb5e6', depths=(2, 2, 2, 2)),
    'inline_pvt_small': _pvt('1ab953b2479d433080a3', depths=(3, 4, 6, 3)),
    'inline_pvt_medium': _pvt('a72aec31e6084bc0a280', depths=(3, 4, 18, 3)),
    'inline_pvt_large': _pvt('efd91318ba964f01b288', depths=(3, 8, 27, 3)),
    'inline_swin_tiny': _swin('32810869fcc34410966b', 'tiny', stages=3),
    'inline_swin_small': _swin('e9657fd247c04c7cb1a1', 'small', stages=2),
    # Their code has 20.6, 33.0 and 73.4 M parameters, and their README says 25, 43 and 96.
    'inline_cswin_tiny': _cswin('49fa2ecc543647c4b970', 'tiny'),
    'inline_cswin_small': _cswin('59f4e65f776f4052b93c', 'small'),
    'inline_cswin_base': _cswin('91e17121df284ae38521', 'base'),
    'inline_swin_base': _swin('bf23564bb64c420aafe1', 'base', stages=3, blocks=2),
}
FAMILY = Family(
    published=PUBLISHED,
    timm=dict(  # as data/build.py: a square of ⌊S / 0.875⌋
        inline=dict(paper_ids='arXiv:2412.06590', crop_mode='squash')
    ),
    licence='none',
)
