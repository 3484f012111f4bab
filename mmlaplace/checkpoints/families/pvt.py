"""PVT and PVTv2."""

from ..conversion import Names, Rows, position_map, within
from .family import BLOCK, HEAD, REDUCED, Family, class_position, map_positions

DOWNLOADS = 'https://github.com/whai362/PVT/releases/download/v2'
PVT_BLOCK: Rows = {**BLOCK, **within('attn.', 'attn.', REDUCED)}
# The authors number stages from 1.
EMBEDS: Rows = within(
    'stages.{i-1}.patch_embed.', 'patch_embed{i}.', {'proj.': 'projection.', 'norm.': 'norm.'}
)
PYRAMID: Rows = {
    **EMBEDS,
    'pos_embed{i}': ('stages.{i-1}.position.map', position_map),
    **within('stages.{i-1}.blocks.{j}.', 'block{i}.{j}.', PVT_BLOCK),
    **HEAD,
}
CLASS_TOKEN: Rows = {
    'pos_embed4': [
        ('stages.3.position.cls_position', class_position),
        ('stages.3.position.map', map_positions),
    ],
    'cls_token': 'stages.3.position.cls_token',
    'norm.': 'norm3.',
}
PVT = Names(
    {**PYRAMID, **CLASS_TOKEN},
    marks=('cls_token', 'pos_embed1', 'block1.0.attn.q.weight', 'block1.0.mlp.fc1.weight'),
)
PVTV2_AUTHORS = Names(
    {
        **EMBEDS,
        **within('stages.{i-1}.blocks.{j}.', 'block{i}.{j}.',
                 {**PVT_BLOCK, 'mlp.dwconv.dwconv.': 'ffn.dwconv.conv.'}),
        'norm{i}.': 'stages.{i-1}.norm.',
        **HEAD,
    },
    marks=('block1.0.attn.q.weight', 'block1.0.mlp.dwconv.dwconv.weight', 'norm1.weight'),
)  # fmt: skip
PVTV2_TIMM = Names(
    {
        'patch_embed.proj.': 'stages.0.patch_embed.projection.',
        'patch_embed.norm.': 'stages.0.patch_embed.norm.',
        'stages.{i}.downsample.proj.': 'stages.{i}.patch_embed.projection.',
        'stages.{i}.downsample.norm.': 'stages.{i}.patch_embed.norm.',
        **within('stages.{i}.blocks.{j}.', 'stages.{i}.blocks.{j}.',
                 {**PVT_BLOCK, 'mlp.dwconv.': 'ffn.dwconv.conv.'}),
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
}
