"""MobileViTv2, by the names of its authors and of timm."""

from typing import Any, Dict, Sequence

from ..conversion import Names, Rows, Target, within
from .family import Family, linear

# By the names of their tables: of the norm of a convolution, of the three convolutions of an
# inverted residual, and of the parts of a block, a stage's start and a stage's end.
TIMM_CONV: Rows = {'conv.': 'conv.', 'bn.': 'norm.'}
AUTHORS_CONV: Rows = {'block.conv.': 'conv.', 'block.norm.': 'norm.'}
TIMM_BLOCK: Dict[str, Target] = {
    'norm1.': 'norm1.norm.',
    'attn.qkv_proj.': ('attn.qkv.', linear),
    'attn.out_proj.': ('attn.proj.', linear),
    'norm2.': 'norm2.norm.',
    'mlp.fc1.': ('ffn.layers.0.', linear),
    'mlp.fc2.': ('ffn.layers.3.', linear),
}
AUTHORS_BLOCK: Dict[str, Target] = {
    'pre_norm_attn.0.': 'norm1.norm.',
    'pre_norm_attn.1.qkv_proj.block.conv.': ('attn.qkv.', linear),
    'pre_norm_attn.1.out_proj.block.conv.': ('attn.proj.', linear),
    'pre_norm_ffn.0.': 'norm2.norm.',
    'pre_norm_ffn.1.block.conv.': ('ffn.layers.0.', linear),
    'pre_norm_ffn.3.block.conv.': ('ffn.layers.3.', linear),
}
DEPTHS = (2, 4, 3)  # of the stages with attentions


def _inverted(ours: str, theirs: str, names: Sequence[str], conv: Rows) -> Dict[str, Target]:
    """The rows of an inverted residual, whose three convolutions have these names."""
    rows: Dict[str, Target] = {}
    for i, name in enumerate(names):
        rows.update(within(f'{ours}{i}.', f'{theirs}{name}.', conv))
    return rows


def _rows(stem: str, stage: str, first: int, names: Sequence[str], conv: Rows) -> Dict[str, Target]:
    """The rows of the stem and of the inverted residuals.

    Args:
        stem: Start of the names of the first convolution.
        stage: Start of the names of a stage, whose number is ``{}``.
        first: Number of the authors' first stage, whose one residual belongs to the stem here.
        names: Of the three convolutions of an inverted residual.
        conv: Rows of a convolution and its norm.
    """
    embed = 'stages.{}.patch_embed.'
    rows = within(f'{embed.format(0)}stem.0.', stem, conv)
    residual = stage.format(first) + '0.'
    rows.update(_inverted(f'{embed.format(0)}stem.1.', residual, names, conv))
    for i in range(4):
        residual = stage.format(first + 1 + i) + '0.'
        rows.update(_inverted(f'{embed.format(i)}layers.', residual, names, conv))
    block = 'stages.0.blocks.0.ffn.layers.'
    rows.update(_inverted(block, stage.format(first + 1) + '1.', names, conv))
    return rows


TIMM_ROWS = _rows(
    'stem.', 'stages.{}.', 0, ('conv1_1x1', 'conv2_kxk', 'conv3_1x1'), TIMM_CONV
)  # fmt: skip
AUTHORS_ROWS = _rows(
    'conv_1.', 'layer_{}.', 1, [f'block.{name}' for name in ('exp_1x1', 'conv_3x3', 'red_1x1')],
    AUTHORS_CONV,
)  # fmt: skip
for i, depth in enumerate(DEPTHS, 1):
    ours = f'stages.{i}.'
    timm, authors = f'stages.{i + 1}.1.', f'layer_{i + 2}.1.'
    TIMM_ROWS.update(
        {
            **within(f'{ours}patch_embed.local.', f'{timm}conv_kxk.', TIMM_CONV),
            f'{timm}conv_1x1.': (f'{ours}patch_embed.proj.', linear),
            **within(f'{ours}blocks.{{j}}.', f'{timm}transformer.{{j}}.', TIMM_BLOCK),
            f'{timm}norm.': f'{ours}norm.norm1.norm.',
            f'{timm}conv_proj.conv.': (f'{ours}norm.proj.', linear),
            f'{timm}conv_proj.bn.': f'{ours}norm.norm2.norm.',
        }
    )
    AUTHORS_ROWS.update(
        {
            **within(f'{ours}patch_embed.local.', f'{authors}local_rep.0.', AUTHORS_CONV),
            f'{authors}local_rep.1.block.conv.': (f'{ours}patch_embed.proj.', linear),
            **within(f'{ours}blocks.{{j}}.', f'{authors}global_rep.{{j}}.', AUTHORS_BLOCK),
            f'{authors}global_rep.{depth}.': f'{ours}norm.norm1.norm.',
            f'{authors}conv_proj.block.conv.': (f'{ours}norm.proj.', linear),
            f'{authors}conv_proj.block.norm.': f'{ours}norm.norm2.norm.',
        }
    )
TIMM = Names(
    {**TIMM_ROWS, 'head.fc.': 'head.fc.'},
    marks=('stem.conv.weight', 'stages.2.1.transformer.0.attn.qkv_proj.weight'),
)
AUTHORS = Names(
    {**AUTHORS_ROWS, 'classifier.1.': 'head.fc.'},
    marks=(
        'conv_1.block.conv.weight',
        'layer_3.1.global_rep.0.pre_norm_attn.1.qkv_proj.block.conv.weight',
    ),
)

DOWNLOADS = (
    'https://docs-assets.developer.apple.com/ml-research/models/cvnets-v2/classification/'
    'mobilevitv2/imagenet1k'
)


def _family(width: int, side: int) -> Family:
    """The family of a width in %, whose weights are for images of this side."""
    backbone: Dict[str, Any] = dict(type='MobileViTv2', arch=f'{width:03}', img_size=side)
    address = f'{DOWNLOADS}/{side}x{side}/mobilevitv2-{width / 100}.pt'
    return Family((AUTHORS, TIMM), backbone, address)


FAMILIES = {
    f'mobilevitv2_{width:03}' + ('_384' if side == 384 else ''): _family(width, side)
    for width in range(50, 201, 25)
    for side in (256, 384)
}
