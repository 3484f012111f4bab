"""ViT and DeiT, which have the same names."""

from ..conversion import Names, Rows, within
from .family import ATTENTION, BLOCK, HEAD, Family, class_position, map_positions


def vit_rows(attention: Rows = ATTENTION) -> Rows:
    """The rows of a ViT with a class token, and with an attention."""
    block = {**BLOCK, **within('attn.', 'attn.', attention)}
    return {
        'patch_embed.proj.': 'stages.0.patch_embed.projection.',
        'cls_token': 'stages.0.position.cls_token',
        'pos_embed': [
            ('stages.0.position.cls_position', class_position),
            ('stages.0.position.map', map_positions),
        ],
        **within('stages.0.blocks.{i}.', 'blocks.{i}.', block),
        'norm.': 'norm0.',
        **HEAD,
    }


MARKS = ('cls_token', 'pos_embed', 'blocks.0.attn.qkv.weight')
VIT = Names(vit_rows(), MARKS)

DOWNLOADS = 'https://dl.fbaipublicfiles.com/deit'
FAMILIES = {
    f'deit_{size}': Family(
        (VIT,), dict(type='ViT', arch=size), f'{DOWNLOADS}/deit_{size}_patch16_224-{digits}.pth'
    )
    for size, digits in dict(tiny='a1311bcf', small='cd65a155', base='b5f2ef4d').items()
}
