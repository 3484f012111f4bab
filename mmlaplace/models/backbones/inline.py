"""InLine attention on DeiT, PVT and Swin."""

from typing import Any, Dict, List, Optional

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
PVT = NameTable(
    {**pvt_rows(INLINE), **UNUSED_NORM},
    identifying=('block1.0.attn.residual.0.weight', 'block1.0.attn.q.weight', 'pos_embed1'),
)
SWIN = NameTable(
    swin_rows('{i+1}', {**INLINE, **WINDOWS}),
    identifying=('layers.0.blocks.0.attn.residual.0.weight', 'layers.0.blocks.0.attn.qkv.weight'),
)
DEIT = NameTable(vit_rows(INLINE), identifying=(*IDENTIFYING, 'blocks.0.attn.residual.0.weight'))

CSWIN = NameTable(
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
    own = linear_window(side, type='InLineAttention')
    last = own if blocks is None else dict(own, first_blocks=blocks)
    return [*[own] * (stages - 1), last, *[None] * (4 - stages)]


def _deit(dims: int, heads: int, img_size: int) -> Dict[str, Any]:
    arch = dict(embed_dims=(dims,), depths=(12,), num_heads=(heads,), ffn_ratios=(4,))
    attn_cfg = dict(type='InLineAttention')
    return dict(type='ViT', arch=arch, img_size=img_size, attn_cfg=attn_cfg)


def _pvt(*depths: int) -> Dict[str, Any]:
    # PVT's sizes, with twice the heads.
    arch = dict(
        embed_dims=(64, 128, 320, 512),
        depths=depths,
        num_heads=(2, 4, 10, 16),
        ffn_ratios=(8, 8, 4, 4),
    )
    return dict(type='PVT', arch=arch, attn_cfg=dict(type='InLineAttention', qkv='q_kv'))


def _swin(arch: str, *windows_of: Any, **options: Any) -> Dict[str, Any]:
    return dict(type='Swin', arch=arch, attn_cfg=windows(*windows_of), **options)


def _cswin(size: str) -> Dict[str, Any]:
    return dict(type='CSWin', arch=cswin.linear_arch(size), attn_cfg=MAP_ATTENTION)


PUBLISHED = {
    name: PublishedModel((table,), backbone, f'{CLOUD}/{digits}/?dl=1')
    for name, table, backbone, digits in (
        ('inline_deit_tiny', DEIT, _deit(192, 6, 224), '1d6b8191ad6d4114b291'),
        ('inline_deit_small', DEIT, _deit(320, 10, 288), '2f3898b07e9247f3beb3'),
        ('inline_deit_base', DEIT, _deit(384, 12, 448), '10bdd726d4b0435eb34e'),
        ('inline_pvt_tiny', PVT, _pvt(2, 2, 2, 2), '90ac52b1555b401eb5e6'),
        ('inline_pvt_small', PVT, _pvt(3, 4, 6, 3), '1ab953b2479d433080a3'),
        ('inline_pvt_medium', PVT, _pvt(3, 4, 18, 3), 'a72aec31e6084bc0a280'),
        ('inline_pvt_large', PVT, _pvt(3, 8, 27, 3), 'efd91318ba964f01b288'),
        ('inline_swin_tiny', SWIN, _swin('tiny', 56, 3), '32810869fcc34410966b'),
        ('inline_swin_small', SWIN, _swin('small', 56, 2), 'e9657fd247c04c7cb1a1'),
        # Their code has 20.6, 33.0 and 73.4 M parameters, and their README says 25, 43 and 96.
        ('inline_cswin_tiny', CSWIN, _cswin('tiny'), '49fa2ecc543647c4b970'),
        ('inline_cswin_small', CSWIN, _cswin('small'), '59f4e65f776f4052b93c'),
        ('inline_cswin_base', CSWIN, _cswin('base'), '91e17121df284ae38521'),
        ('inline_swin_base', SWIN, _swin('base', 56, 3, 2), 'bf23564bb64c420aafe1'),
    )
}
FAMILY = Family(
    published=PUBLISHED,
    timm=dict(  # as data/build.py: a square of ⌊S / 0.875⌋
        inline=dict(paper_ids='arXiv:2412.06590', crop_mode='squash')
    ),
)
