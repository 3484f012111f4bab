"""PVT and PVTv2."""

from typing import Optional

from ..conversion import Names, Rows, position_map, within
from .family import BLOCK, HEAD, REDUCED, Family, class_position, map_positions

DOWNLOADS = 'https://github.com/whai362/PVT/releases/download/v2'
# The authors number stages from 1.
EMBEDS: Rows = within(
    'stages.{i-1}.patch_embed.', 'patch_embed{i}.', {'proj.': 'projection.', 'norm.': 'norm.'}
)
CONVOLUTION: Rows = {'mlp.dwconv.dwconv.': 'ffn.dwconv.conv.'}  # of PVTv2's FFN


def blocks(theirs: str, ours: str, attention: Rows, more: Optional[Rows] = None) -> Rows:
    """The rows of blocks with an attention, and of further parts of a block."""
    return within(ours, theirs, {**BLOCK, **within('attn.', 'attn.', attention), **(more or {})})


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
PVT = Names(
    {**pvt_rows(), **CLASS_TOKEN},
    marks=('cls_token', 'pos_embed1', 'block1.0.attn.q.weight', 'block1.0.mlp.fc1.weight'),
)
PVTV2_AUTHORS = Names(
    pvt_v2_rows(),
    marks=('block1.0.attn.q.weight', 'block1.0.mlp.dwconv.dwconv.weight', 'norm1.weight'),
)
PVTV2_TIMM = Names(
    {
        'patch_embed.proj.': 'stages.0.patch_embed.projection.',
        'patch_embed.norm.': 'stages.0.patch_embed.norm.',
        'stages.{i}.downsample.proj.': 'stages.{i}.patch_embed.projection.',
        'stages.{i}.downsample.norm.': 'stages.{i}.patch_embed.norm.',
        **blocks('stages.{i}.blocks.{j}.', 'stages.{i}.blocks.{j}.', REDUCED,
                 {'mlp.dwconv.': 'ffn.dwconv.conv.'}),
        'stages.{i}.norm.': 'stages.{i}.norm.',
        **HEAD,
    },
    marks=('stages.0.blocks.0.attn.q.weight', 'stages.0.blocks.0.mlp.dwconv.weight'),
)  # fmt: skip

FAMILIES = {
    **{
        f'pvt_{size}': Family(
            (PVT,), dict(type='PVT', arch=size, with_cls_token=True), f'{DOWNLOADS}/pvt_{size}.pth'
        )
        for size in ('tiny', 'small', 'medium', 'large')
    },
    **{
        f'pvt_v2_{size}': Family(
            (PVTV2_AUTHORS, PVTV2_TIMM),
            dict(type='PVTv2', arch=size, stage_norms=True),
            f'{DOWNLOADS}/pvt_v2_{size}.pth',
        )
        for size in ('b0', 'b1', 'b2', 'b3', 'b4', 'b5')
    },
    'pvt_v2_b2_li': Family(
        (PVTV2_AUTHORS, PVTV2_TIMM),
        dict(type='PVTv2', arch='b2', stage_norms=True, linear_attention=True),
        f'{DOWNLOADS}/pvt_v2_b2_li.pth',
    ),
}
