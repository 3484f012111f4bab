"""CSWin."""

from typing import Any, Dict, List, Optional

from ..conversion import Names, Rows, Target, within
from .family import BLOCK, HEAD, Family

DOWNLOADS = 'https://github.com/microsoft/CSWin-Transformer/releases/download/v0.1.0'


def cswin_rows(linear: Optional[Rows] = None) -> Dict[str, Target]:
    """The rows of a CSWin, whose first two stages may have another attention, on the whole map."""
    block = {**BLOCK, 'qkv.': 'attn.qkv.', 'proj.': 'attn.proj.'}
    rows: Dict[str, Target] = {
        'stage1_conv_embed.0.': 'stages.0.patch_embed.projection.',
        'stage1_conv_embed.2.': 'stages.0.patch_embed.norm.',
        'merge{i}.conv.': 'stages.{i}.patch_embed.projection.',
        'merge{i}.norm.': 'stages.{i}.patch_embed.norm.',
        **within('stages.{i-1}.blocks.{j}.', 'stage{i}.{j}.', block),
        # Of both halves of the heads.
        'stage{i}.{j}.attns.{k}.get_v.': 'stages.{i-1}.blocks.{j}.attn.lepe.conv.',
        'norm.': 'norm3.',
        **HEAD,
    }
    for i in (1, 2):
        start = f'stages.{i - 1}.blocks.{{j}}.attn.'
        rows.update(within(start, f'stage{i}.{{j}}.attns.0.', linear or {}))
    return rows


def linear_maps(**attn_cfg: Any) -> List[Optional[Dict[str, Any]]]:
    """The ``attn_cfg`` of a CSWin with another attention in its first two stages."""
    return [attn_cfg] * 2 + [None] * 2


def arch(size: str) -> Dict[str, tuple]:
    """The sizes of CSWin with other attentions, ``tiny``, ``small`` or ``base``."""
    dims = 96 if size == 'base' else 64
    heads = 4 if size == 'base' else 2
    return dict(
        embed_dims=tuple(dims * 2**i for i in range(4)),
        depths=(2, 4, 18, 1) if size == 'tiny' else (3, 6, 29, 2),
        num_heads=tuple(heads * 2**i for i in range(4)),
        ffn_ratios=(4,) * 4,
    )


# With SLAB, FLatten and InLine, V has a convolution besides their own.
SECOND = {'get_v.': 'second_lepe.conv.'}
MARKS = ('stage1_conv_embed.0.weight', 'stage1.0.attns.0.get_v.weight')
CSWIN = Names(cswin_rows(), MARKS, averaged=True)
FAMILIES = {
    **{
        f'cswin_{size}': Family(
            (CSWIN,), dict(type='CSWin', arch=size), f'{DOWNLOADS}/cswin_{size}_224.pth'
        )
        for size in ('tiny', 'small', 'base', 'large')
    },
    **{
        f'cswin_{size}_384': Family(
            (CSWIN,),
            dict(type='CSWin', arch=size, stripe_widths=(1, 2, 12), img_size=384),
            f'{DOWNLOADS}/cswin_{size}_384.pth',
        )
        for size in ('base', 'large')
    },
}
