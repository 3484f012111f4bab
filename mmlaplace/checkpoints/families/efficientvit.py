"""EfficientViT of MIT's Han Lab."""

from typing import Any, Dict, Sequence, Tuple

from ..conversion import Names, Rows, Target, within
from .family import Family, linear

MBCONV = ('inverted_conv', 'depth_conv', 'point_conv')
LAYERS: Dict[str, Sequence[str]] = {  # the names of a block's convolutions, in their order
    'inverted': MBCONV,
    'fused': ('spatial_conv', 'point_conv'),
    'depthwise': ('depth_conv', 'point_conv'),
    'plain': ('conv1', 'conv2'),
}
LITEMLA: Rows = {
    'qkv.conv.': ('qkv.', linear),
    'aggreg.': 'aggregations.',
    'proj.conv.': ('proj.', linear),
    'proj.norm.': 'norm.',
}
BLOCK: Rows = {
    **within('attn.', 'context_module.main.', LITEMLA),
    **{f'local_module.main.{name}.': f'ffn.layers.{i}.' for i, name in enumerate(MBCONV)},
}


def _layers(ours: str, theirs: str, kind: str) -> Dict[str, Target]:
    return {f'{theirs}main.{name}.': f'{ours}{i}.' for i, name in enumerate(LAYERS[kind])}


def _rows(
    stem: str, residual: str, stages: Sequence[str], kinds: Sequence[str], attentions: int
) -> Dict[str, Target]:
    """The rows of a backbone.

    Args:
        stem: Start of the names of the first convolution.
        residual: Start of the names of the residual convolutions of the stem.
        stages: Starts of the names of the blocks of each stage, the first of which halves the map.
        kinds: Of the convolutions of the stem, and of each stage.
        attentions: How many of the last stages have attentions.
    """
    first = 'stages.0.patch_embed.'
    rows = {stem: f'{first}stem.', **_layers(f'{first}residual.', residual, kinds[0])}
    for i, (theirs, kind) in enumerate(zip(stages, kinds[1:])):
        rows.update(_layers(f'stages.{i}.patch_embed.layers.', f'{theirs}0.', kind))
        block = f'stages.{i}.blocks.{{j-1}}.'
        if i < len(stages) - attentions:
            rows.update(_layers(f'{block}ffn.layers.', f'{theirs}{{j}}.', kind))
        else:
            rows.update(within(block, f'{theirs}{{j}}.', BLOCK))
    return rows


def _authors(large: bool, kinds: Sequence[str]) -> Names:
    start = 'backbone.stages.0.op_list' if large else 'backbone.input_stem.op_list'
    stages = [f'backbone.stages.{i + large}.op_list.' for i in range(4)]
    rows = _rows(f'{start}.0.', f'{start}.1.', stages, kinds, 1 if large else 2)
    head: Rows = {
        'head.op_list.0.conv.': 'neck.projection.',
        'head.op_list.0.norm.': 'neck.norm.',
        'head.op_list.2.linear.': 'neck.linear.',
        'head.op_list.2.norm.': 'neck.linear_norm.',
        'head.op_list.3.linear.': 'head.fc.',
    }
    mark = f'{stages[3]}1.context_module.main.qkv.conv.weight'
    return Names({**rows, **head}, marks=(f'{start}.0.conv.weight', mark))


def _timm(large: bool, kinds: Sequence[str]) -> Names:
    stages = [f'stages.{i}.blocks.' for i in range(4)]
    rows = _rows('stem.in_conv.', 'stem.res0.', stages, kinds, 1 if large else 2)
    head: Rows = {
        'head.in_conv.conv.': 'neck.projection.',
        'head.in_conv.norm.': 'neck.norm.',
        'head.classifier.0.': 'neck.linear.',
        'head.classifier.1.': 'neck.linear_norm.',
        'head.classifier.4.': 'head.fc.',
    }
    mark = f'stem.res0.main.{LAYERS[kinds[0]][0]}.conv.weight'
    return Names(
        {**rows, **head}, marks=(mark, 'stages.3.blocks.1.context_module.main.qkv.conv.weight')
    )


SMALL = ('depthwise', *('inverted',) * 4)
LARGE = ('plain', 'fused', 'fused', 'inverted', 'inverted')
NAMES = {large: (_authors(large, kinds), _timm(large, kinds))
         for large, kinds in ((False, SMALL), (True, LARGE))}  # fmt: skip


HUB = 'https://huggingface.co'
SIZES: Dict[str, Tuple[int, int, int, Tuple[int, ...]]] = {
    # channels of the last map, of the neck, of the head, and sides of the images
    'b0': (128, 1024, 1280, (224,)),
    'b1': (256, 1536, 1600, (224, 256, 288)),
    'b2': (384, 2304, 2560, (224, 256, 288)),
    'b3': (512, 2304, 2560, (224, 256, 288)),
    'l1': (512, 3072, 3200, (224,)),
    'l2': (512, 3072, 3200, (224, 256, 288, 320, 384)),
}


def _family(size: str, side: int) -> Family:
    """The family of a size, whose weights are for images of this side."""
    large = size.startswith('l')
    backbone: Dict[str, Any] = dict(
        type='EfficientViTLarge' if large else 'EfficientViT', arch=size
    )
    if side != 224:
        backbone.update(img_size=side)
    dims, hidden, out, _ = SIZES[size]
    neck: Dict[str, Any] = dict(
        type='EfficientViTNeck', in_channels=dims, hidden_channels=hidden, out_channels=out
    )
    if large:
        neck.update(eps=1e-7, act_cfg=dict(type='GELU', approximate='tanh'))
    weights = f'{HUB}/han-cai/efficientvit-cls/resolve/main/efficientvit_{size}_r{side}.pt'
    if size == 'b0':  # which the authors' page does not have
        weights = f'{HUB}/timm/efficientvit_b0.r224_in1k/resolve/main/model.safetensors'
    return Family(NAMES[large], backbone, weights, neck)


FAMILIES = {
    f'efficientvit_{size}' + (f'_{side}' if side != 224 else ''): _family(size, side)
    for size, (*_, sides) in SIZES.items()
    for side in sides
}
