"""XCiT."""

from typing import Any, Dict, Tuple

from torch import Tensor

from ..conversion import Names, Rows, within
from .family import BLOCK, HEAD, Family

DOWNLOADS = 'https://dl.fbaipublicfiles.com/xcit'


def query(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """q of the rows of q, k and v."""
    return value.chunk(3)[0]


def key_and_value(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """k and v of the rows of q, k and v."""
    return value[len(value) // 3 :]


SCALED: Rows = {**BLOCK, 'gamma1': 'scale1.weight', 'gamma2': 'scale2.weight'}
XCA_BLOCK: Rows = {
    **SCALED,
    'norm3.': 'norm3.',
    'gamma3': 'scale3.weight',
    'attn.': 'attn.',
    'local_mp.conv1.': 'local.layers.0.',
    'local_mp.bn.': 'local.layers.2.',
    'local_mp.conv2.': 'local.layers.3.',
}
CLASS_LAYER: Rows = {
    **SCALED,
    **{
        f'attn.qkv.{kind}': [(f'q.{kind}', query), (f'kv.{kind}', key_and_value)]
        for kind in ('weight', 'bias')
    },
    # timm has three linears.
    'attn.q.': 'q.',
    'attn.k.': 'kv.',
    'attn.v.': 'kv.',
    'attn.proj.': 'proj.',
}
# Convolution, BatchNorm and GELU by turns.
STEM: Rows = {f'{2 * i}.{j}.': f'{3 * i + j}.' for i in range(4) for j in range(2)}
NAMES = Names(
    {
        **within('stages.0.patch_embed.layers.', 'patch_embed.proj.', STEM),
        'pos_embeder.token_projection.': 'stages.0.position.projection.',
        'pos_embed.token_projection.': 'stages.0.position.projection.',  # timm
        **within('stages.0.blocks.{i}.', 'blocks.{i}.', XCA_BLOCK),
        'cls_token': 'norm0.cls_token',
        **within('norm0.layers.{i}.', 'cls_attn_blocks.{i}.', CLASS_LAYER),
        'norm.': 'norm0.norm.',
        **HEAD,
    },
    marks=('blocks.0.local_mp.conv1.weight', 'cls_attn_blocks.0.norm1.weight'),
)


def _family(name: str, patch: int, kind: str) -> Family:
    size, depth = name.split('_')
    backbone: Dict[str, Any] = dict(
        type='XCiTBackbone', arch=size[0] + depth, patch_size=patch, out_type='cls_token'
    )
    if kind.startswith('384'):
        backbone['img_size'] = 384
    return Family((NAMES,), backbone, f'{DOWNLOADS}/xcit_{name}_p{patch}_{kind}.pth')


# By the authors' names. Those with dist are distilled, which changes no name.
FAMILIES = {
    f'xcit_{name}_p{patch}_{kind}'.removesuffix('_224'): _family(name, patch, kind)
    for patch in (16, 8)
    for name in ('nano_12', 'tiny_12', 'tiny_24', 'small_12', 'small_24', 'medium_24', 'large_24')
    for kind in ('224', '224_dist', '384_dist')
}
