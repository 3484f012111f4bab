"""Convert a checkpoint of PolaFormer, on PVT or Swin, as its authors release it.

The result is a classifier's checkpoint. Load it into mmpretrain's ImageClassifier with
backbone=dict(type='PolaFormerPVT' or 'PolaFormerSwin', out_indices=(3,), …), or into a backbone
alone by init_cfg=dict(type='Pretrained', checkpoint=…).

Example:
  python tools/model_converters/polaformer_to_mmlaplace.py pola_swin_t.pth pola-swin-tiny.pth
"""

import argparse
from functools import partial
from typing import Dict

import torch
from torch import Tensor

from mmlaplace.checkpoints import Conversion, position_map
from mmlaplace.commands.converters import parser_for, run


def convert_attention(conversion: Conversion, ours: str, theirs: str, image_size=(1, 1)) -> None:
    """One linear or softmax attention of PVT or Swin; names end with a dot, or are empty."""
    if conversion.has(f'{theirs}power'):
        conversion.move(f'{ours}power', f'{theirs}power', by=lambda value: value.squeeze(0))
        conversion.move(f'{ours}scale', f'{theirs}scale', by=torch.flatten)
        conversion.move(
            f'{ours}key_positions',
            f'{theirs}positional_encoding',
            by=partial(position_map, image_size=image_size),
        )
        if conversion.has(f'{theirs}qkvg.weight'):
            split_projection(conversion, ours, theirs)
        else:
            conversion.layer(f'{ours}qkv', f'{theirs}qg')
            conversion.layer(f'{ours}kv', f'{theirs}kv')
        conversion.layer(f'{ours}lepe.conv', f'{theirs}dwc')
    elif conversion.has(f'{theirs}qkv.weight'):
        conversion.layer(f'{ours}qkv', f'{theirs}qkv')
        conversion.move(
            f'{ours}relative_bias', f'{theirs}relative_position_bias_table', by=bias_map
        )
        conversion.drop(f'{theirs}relative_position_index', 'computed in the forward')
    elif conversion.has(f'{theirs}sr.weight'):
        conversion.layer(f'{ours}qkv', f'{theirs}q')
        conversion.layer(f'{ours}kv', f'{theirs}kv')
    else:
        conversion.layer(f'{ours}qkv', f'{theirs}q', f'{theirs}kv')
    if conversion.has(f'{theirs}sr.weight'):
        conversion.layer(f'{ours}sr.projection', f'{theirs}sr')
        conversion.layer(f'{ours}sr.norm', f'{theirs}norm')
    conversion.layer(f'{ours}proj', f'{theirs}proj')


def split_projection(conversion: Conversion, ours: str, theirs: str) -> None:
    """Swin's one linear for q, k, v and g becomes two, for q and g and for k and v."""
    for suffix in ('weight', 'bias'):
        name = f'{theirs}qkvg.{suffix}'
        if not conversion.has(name):
            continue
        query, key, value, gate = conversion.take(name, f'{ours}qkv and kv').chunk(4)
        conversion.put(f'{ours}qkv.{suffix}', torch.cat([query, gate]))
        conversion.put(f'{ours}kv.{suffix}', torch.cat([key, value]))


def bias_map(table: Tensor) -> Tensor:
    """Swin's biases ``(offsets², heads)`` as a map ``(1, heads, offsets, offsets)``."""
    return position_map(table.unsqueeze(0))


def convert_block(conversion: Conversion, ours: str, theirs: str) -> None:
    """Everything of a block but its attention."""
    for layer, name in (
        ('norm1', 'norm1'),
        ('norm2', 'norm2'),
        ('ffn.layers.0', 'mlp.fc1'),
        ('ffn.layers.3', 'mlp.fc2'),
    ):
        conversion.layer(f'{ours}.{layer}', f'{theirs}.{name}')


def blocks(conversion: Conversion, prefix: str) -> int:
    """How many blocks there are under names such as ``prefix.0.``."""
    numbers = {name[len(prefix) + 1 :].split('.')[0] for name in conversion.theirs
               if name.startswith(f'{prefix}.')}  # fmt: skip
    return len(numbers)


def convert_pvt(conversion: Conversion, image_size: tuple) -> None:
    for i in range(4):
        stage = f'stages.{i}'
        conversion.layer(f'{stage}.patch_embed.projection', f'patch_embed{i + 1}.proj')
        conversion.layer(f'{stage}.patch_embed.norm', f'patch_embed{i + 1}.norm')
        to_map = partial(position_map, image_size=image_size)
        conversion.move(f'{stage}.position.map', f'pos_embed{i + 1}', by=to_map)
        for j in range(blocks(conversion, f'block{i + 1}')):
            ours, theirs = f'{stage}.blocks.{j}', f'block{i + 1}.{j}'
            convert_block(conversion, ours, theirs)
            convert_attention(conversion, f'{ours}.attn.', f'{theirs}.attn.', image_size)
    for name in ('norm.weight', 'norm.bias'):
        conversion.drop(name, "the authors' forward does not use it")


def convert_swin(conversion: Conversion) -> None:
    conversion.layer('stages.0.patch_embed.projection', 'patch_embed.proj')
    conversion.layer('stages.0.patch_embed.norm', 'patch_embed.norm')
    for i in range(4):
        for j in range(blocks(conversion, f'layers.{i}.blocks')):
            ours, theirs = f'stages.{i}.blocks.{j}', f'layers.{i}.blocks.{j}'
            conversion.drop(f'{theirs}.attn_mask', 'computed in the forward')
            convert_block(conversion, ours, theirs)
            convert_attention(conversion, f'{ours}.attn.attn.', f'{theirs}.attn.')  # in windows
        if i < 3:
            merging = f'stages.{i + 1}.patch_embed'
            conversion.layer(f'{merging}.norm', f'layers.{i}.downsample.norm')
            conversion.layer(f'{merging}.reduction', f'layers.{i}.downsample.reduction')
    conversion.layer('norm3', 'norm')


def convert(theirs: Dict[str, Tensor], args: argparse.Namespace) -> Conversion:
    """A whole model."""
    conversion = Conversion(theirs)
    if not any(name.endswith('attn.positional_encoding') for name in theirs):
        raise ValueError(
            'this is not a checkpoint of PolaFormer, which has names such as '
            'block1.0.attn.positional_encoding or layers.0.blocks.0.attn.positional_encoding; '
            f'its names are {list(theirs)[:3]} …. For SOFT, run soft_to_mmlaplace.py'
        )
    if any(name.startswith('layers.') for name in theirs):
        convert_swin(conversion)
    else:
        convert_pvt(conversion, tuple(args.image_size))
    conversion.head()
    return conversion


if __name__ == '__main__':
    parser = parser_for(__doc__)
    parser.add_argument(
        '--image-size',
        nargs=2,
        type=int,
        default=(1, 1),
        metavar=('H', 'W'),
        help="the training images' size, if they were not square",
    )
    run(parser, convert)
