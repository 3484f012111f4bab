"""Convert a checkpoint of SOFT or SOFT++ as its authors release it.

The result is a classifier's checkpoint. Load it into mmpretrain's ImageClassifier with
backbone=dict(type='SOFT', out_type='cls_token', out_indices=(3,), …), or into a backbone alone by
init_cfg=dict(type='Pretrained', checkpoint=…). For SOFT++ the type is 'SOFTPlusPlus'. The weights
of SOFT and SOFT++ look the same, so the tool cannot tell which of the two a file is.

Example:
  python tools/model_converters/soft_to_mmlaplace.py SOFT_tiny.pth checkpoints/soft-tiny.pth
"""

import argparse
from typing import Dict

from torch import Tensor

from mmlaplace.checkpoints import Conversion, position_map
from mmlaplace.commands.converters import parser_for, run


def convert_attention(conversion: Conversion, ours: str, theirs: str) -> None:
    """One SOFT attention; names end with a dot, or are empty."""
    conversion.layer(f'{ours}qkv', f'{theirs}W_q', f'{theirs}W_v')
    conversion.layer(f'{ours}landmarks.conv', f'{theirs}attn.Qlandmark_op')
    conversion.layer(f'{ours}landmark_norm.0', f'{theirs}attn.Qnorm_act.0')
    conversion.layer(f'{ours}lepe.conv', f'{theirs}attn.conv')
    conversion.layer(f'{ours}proj', f'{theirs}ff')


def convert(theirs: Dict[str, Tensor], args: argparse.Namespace) -> Conversion:
    """A whole model."""
    if 'block1.0.att.mha.W_q.weight' not in theirs:
        raise ValueError(
            'this is not a checkpoint of SOFT, which has names such as '
            f'block1.0.att.mha.W_q.weight; its names are {list(theirs)[:3]} …. For PolaFormer, '
            'run polaformer_to_mmlaplace.py'
        )
    conversion = Conversion(theirs)
    for i in range(4):
        stage = f'stages.{i}'
        for j in range(0, 9, 3):
            if conversion.has(f'patch_embed{i + 1}.proj.{j}.weight'):
                for k in (j, j + 1):  # a convolution and its BatchNorm
                    conversion.layer(
                        f'{stage}.patch_embed.layers.{k}', f'patch_embed{i + 1}.proj.{k}'
                    )
        positions = f'pos_embed{i + 1}'
        if i < 3:
            conversion.move(f'{stage}.position.map', positions, by=position_map)
        else:
            tokens = conversion.take(positions, f'{stage}.position.cls_position and map')
            conversion.put(f'{stage}.position.cls_position', tokens[:, :1])
            conversion.put(f'{stage}.position.map', position_map(tokens[:, 1:]))
            conversion.move(f'{stage}.position.cls_token', 'cls_token')
        j = 0
        while any(name.startswith(f'block{i + 1}.{j}.') for name in conversion.theirs):
            ours, block = f'{stage}.blocks.{j}', f'block{i + 1}.{j}'
            if i == 3:
                conversion.layer(f'{ours}.norm1', f'{block}.norm1')
                conversion.layer(f'{ours}.attn.qkv', f'{block}.attn.q', f'{block}.attn.kv')
                conversion.layer(f'{ours}.attn.proj', f'{block}.attn.proj')
                conversion.layer(f'{ours}.norm2', f'{block}.norm2')
                conversion.layer(f'{ours}.ffn.layers.0', f'{block}.mlp.fc1')
                conversion.layer(f'{ours}.ffn.layers.3', f'{block}.mlp.fc2')
            else:
                convert_attention(conversion, f'{ours}.attn.', f'{block}.att.mha.')
                conversion.layer(f'{ours}.norm1', f'{block}.att.norm1')
                conversion.layer(f'{ours}.ffn.layers.0', f'{block}.att.ff1')
                conversion.layer(f'{ours}.ffn.layers.3', f'{block}.att.ff2')
                conversion.layer(f'{ours}.norm2', f'{block}.att.norm2')
            j += 1
    conversion.layer('norm3', 'norm')
    conversion.head()
    return conversion


if __name__ == '__main__':
    run(parser_for(__doc__), convert)
