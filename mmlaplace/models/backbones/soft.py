"""SOFT and SOFT++, whose weights have the same names.

The authors' SOFT-Norm has the sizes of SOFT and the attention of SOFT++.
"""

from ..conversion import Names, Rows, position_map, within
from .family import BLOCK, HEAD, Family
from .pvt import CLASS_TOKEN

ATTENTION: Rows = {
    'W_q.': 'qkv.',
    'W_v.': 'qkv.',
    'attn.Qlandmark_op.': 'landmarks.conv.',
    'attn.Qnorm_act.0.': 'landmark_norm.0.',
    'attn.conv.': 'lepe.conv.',
    'ff.': 'proj.',
}
SOFTMAX: Rows = {'q.': 'qkv.', 'kv.': 'kv.', 'proj.': 'proj.'}
SOFT = Names(
    {
        'patch_embed{i}.proj.{j}.': 'stages.{i-1}.patch_embed.layers.{j}.',
        'pos_embed{i}': ('stages.{i-1}.position.map', position_map),
        **within(
            'stages.{i-1}.blocks.{j}.',
            'block{i}.{j}.att.',
            {
                **within('attn.', 'mha.', ATTENTION),
                'norm1.': 'norm1.',
                'norm2.': 'norm2.',
                'ff1.': 'ffn.layers.0.',
                'ff2.': 'ffn.layers.3.',
            },
        ),
        **within(
            'stages.{i-1}.blocks.{j}.',
            'block{i}.{j}.',
            {**BLOCK, **within('attn.', 'attn.', SOFTMAX)},
        ),
        **CLASS_TOKEN,
        **HEAD,
    },
    marks=('block1.0.att.mha.W_q.weight',),
    averaged=True,
)

# The authors' README counts the parameters of small, and their code builds small-deep.
SIZES = ('tiny', 'small', 'small-deep', 'medium', 'large', 'huge')
NORM = dict(normalized=True, newton_start_per='batch')

PAGE = 'https://github.com/fudan-zvg/SOFT#main-results'
# Sizes with a link on that page. Of SOFT++ it has none.
LINKED, LINKED_NORM = ('tiny',), ('tiny', 'small-deep', 'medium', 'large')

FAMILIES = {
    **{
        f'soft_{size}'.replace('-', '_'): Family(
            (SOFT,), dict(type='SOFT', arch=size), page=PAGE * (size in LINKED)
        )
        for size in SIZES
    },
    **{
        f'soft_norm_{size}'.replace('-', '_'): Family(
            (SOFT,),
            dict(type='SOFT', arch=size, attn_cfg=NORM),
            page=PAGE * (size in LINKED_NORM),
        )
        for size in SIZES
    },
    **{
        f'softpp_{size}': Family((SOFT,), dict(type='SOFTPlusPlus', arch=size))
        for size in ('tiny', 'small', 'medium', 'large')
    },
}
