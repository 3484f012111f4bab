"""RAVLT and MAViT, whose weights differ in the channels before the head alone."""

from typing import Any, Dict

from ..conversion import Names, Rows, within
from .family import Family, flat, linear

ATTENTION: Rows = {
    'qkvo.': ('qkv.', linear), 'lepe.': 'lepe.conv.', 'proj.': ('proj.', linear)
}  # fmt: skip
BLOCK: Rows = {
    'pos.': 'cpe1.conv.',
    'norm1.norm.': 'norm1.',
    **within('attn.', 'attn.', ATTENTION),
    'gamma_1': ('scale1.weight', flat),
    'norm2.norm.': 'norm2.',
    'ffn.fc1.': ('ffn.layers.0.', linear),
    'ffn.dwconv.': 'ffn.dwconv.conv.',
    'ffn.fc2.': ('ffn.layers.3.', linear),
    'gamma_2': ('scale2.weight', flat),
}
NAMES = Names(
    {
        'patch_embed.proj.': 'stages.0.patch_embed.layers.',
        # In the authors' code, the embedding of a stage belongs to the stage before it.
        **within(
            'stages.{i+1}.patch_embed.layers.',
            'layers.{i}.downsample.',
            {'reduction.': '0.', 'norm.': '1.'},
        ),
        **within('stages.{i}.blocks.{j}.', 'layers.{i}.blocks.{j}.', BLOCK),
        'layers.{i}.RoPE.angle': None,
        'proj.': 'neck.projection.',
        'norm.': 'neck.norm.',
        'head.': ('head.fc.', linear),
    },
    marks=('layers.0.blocks.0.attn.qkvo.weight', 'layers.0.blocks.0.gamma_1', 'proj.weight'),
)


def _family(kind: str, size: str, projection: int, weights: str = '', page: str = '') -> Family:
    backbone: Dict[str, Any] = dict(type=kind, arch=size, out_norms=False)
    dims = 640 if size == 'large' else 512
    neck = dict(type='ConvPoolingNeck', in_channels=dims, out_channels=projection)
    return Family((NAMES,), backbone, weights, neck, page)


HUB = 'https://huggingface.co/aldjalkdf'
FAMILIES = {
    **{
        f'ravlt_{size}': _family(
            'RAVLT', size, 1024, f'{HUB}/RAVLT/resolve/main/RAVLT_{letter}.pth'
        )
        for size, letter in dict(tiny='T', small='S', base='B', large='L').items()
    },
    # Their authors name the folder alone. Its history names two of the files.
    'mavit_tiny': _family('MAViT', 'tiny', 2048, page=f'{HUB}/MAViT/tree/main'),
    **{
        f'mavit_{size}': _family(
            'MAViT', size, projection, f'{HUB}/MAViT/resolve/main/MAViT_{letter}.pth'
        )
        for size, projection, letter in (
            ('small', 2048, 'S'),
            ('base', 2048, 'B'),
            ('large', 2560, 'L'),
        )
    },
}
