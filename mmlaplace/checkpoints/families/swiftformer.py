"""SwiftFormer, whose two heads become one: the mean that the authors' model predicts with."""

from typing import Dict

from ..conversion import Names, Rows, Target, within
from .family import Family, flat, linear

EMBED: Rows = {'proj.': 'projection.', 'norm.': 'norm.norm.'}


def _blocks(scale: str, projection: str) -> Dict[str, Target]:
    """The rows of a block, with the ends of the names of layer scales, and a linear's name."""
    local: Rows = {
        'dwconv.': 'conv.conv.',
        'norm.': 'norm.norm.',
        'pwconv1.': ('ffn.layers.0.', linear),
        'pwconv2.': ('ffn.layers.3.', linear),
        f'layer_scale{scale}': ('scale.weight', flat),
    }
    return {
        **local,
        **within('local.', 'local_representation.', local),
        'attn.to_query.': 'attn.query.',
        'attn.to_key.': 'attn.key.',
        'attn.w_g': 'attn.score',
        f'attn.{projection}.': 'attn.mixed_proj.',
        'attn.final.': 'attn.proj.',
        f'layer_scale_1{scale}': ('scale1.weight', flat),
        'linear.norm1.': 'norm2.norm.',
        'linear.fc1.': ('ffn.layers.0.', linear),
        'linear.fc2.': ('ffn.layers.3.', linear),
        f'layer_scale_2{scale}': ('scale2.weight', flat),
    }


def _ends(stem: str, second_head: str) -> Rows:
    """The rows of the stem, which has that name, of the last norm and of the heads."""
    return {
        stem: 'stages.0.patch_embed.layers.',
        'norm.': 'norm3.norm.',
        'head.': 'head.fc.',
        second_head: 'head.fc.',
    }


rows: Dict[str, Target] = dict(_ends('patch_embed.', 'dist_head.'))
for stage in range(4):  # the authors count embeddings and stages together
    if stage:
        rows.update(within(f'stages.{stage}.patch_embed.', f'network.{2 * stage - 1}.', EMBED))
    rows.update(
        within(f'stages.{stage}.blocks.{{j}}.', f'network.{2 * stage}.{{j}}.', _blocks('', 'Proj'))
    )
AUTHORS = Names(
    rows,
    marks=('network.0.0.pwconv1.weight', 'network.1.proj.weight', 'patch_embed.0.weight'),
    means=('head.',),
)
TIMM = Names(
    {
        **_ends('stem.', 'head_dist.'),
        **within('stages.{i}.patch_embed.', 'stages.{i}.downsample.', EMBED),
        **within('stages.{i}.blocks.{j}.', 'stages.{i}.blocks.{j}.', _blocks('.gamma', 'proj')),
    },
    marks=('stages.0.blocks.0.pwconv1.weight', 'stages.1.downsample.proj.weight', 'stem.0.weight'),
    means=('head.',),
)

FAMILIES = {
    f'swiftformer_{size}': Family(
        (AUTHORS, TIMM),
        dict(type='SwiftFormer', arch=size),
        f'https://huggingface.co/timm/swiftformer_{size}.dist_in1k/resolve/main/model.safetensors',
    )
    for size in ('xs', 's', 'l1', 'l3')
}
