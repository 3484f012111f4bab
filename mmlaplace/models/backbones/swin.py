"""Swin."""

from typing import Any, Dict

from ..conversion import Names, Rows, Target, within
from .family import ATTENTION, BLOCK, Family, offset_map

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
AUTHORS = Names(swin_rows('{i+1}'), marks=(TABLE, 'layers.0.downsample.reduction.weight'))
TIMM = Names(swin_rows('{i}'), marks=(TABLE, 'layers.3.downsample.reduction.weight'))

DOWNLOADS = 'https://github.com/SwinTransformer/storage/releases/download/v1.0.0'
FAMILIES = {
    f'swin_{size}': Family(
        (AUTHORS, TIMM),
        dict(type='Swin', arch=size),
        f'{DOWNLOADS}/swin_{size}_patch4_window7_224{data}.pth',
    )
    for size, data in dict(tiny='', small='', base='', large='_22kto1k').items()
}
FAMILIES.update(
    {
        f'swin_{size}_384': Family(
            (AUTHORS, TIMM),
            dict(type='Swin', arch=size, window_size=12, img_size=384),
            f'{DOWNLOADS}/swin_{size}_patch4_window12_384{data}.pth',
        )
        for size, data in dict(base='', large='_22kto1k').items()
    }
)
