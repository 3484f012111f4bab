"""MLLA."""

from ..conversion import Names, Rows, within
from .family import BLOCK, HEAD, Family
from .flatten import CLOUD

CONVOLUTION: Rows = {'conv.': '0.', 'norm.': '1.'}
AFTER_RELU: Rows = {'conv.': '3.', 'norm.': '4.'}
STEM: Rows = {
    **within('first.', 'conv1.', CONVOLUTION),
    **within('residual.', 'conv2.0.', CONVOLUTION),
    **within('residual.', 'conv2.1.', AFTER_RELU),
    **within('last.', 'conv3.0.', CONVOLUTION),
    **within('last.', 'conv3.1.', AFTER_RELU),
}
MLLA_BLOCK: Rows = {
    **BLOCK,
    'cpe1.': 'cpe1.conv.',
    'cpe2.': 'cpe2.conv.',
    'in_proj.': 'in_proj.',
    'act_proj.': 'gate.',
    'dwc.': 'conv.conv.',
    'out_proj.': 'out_proj.',
    'attn.qk.': 'attn.qkv.',
    'attn.lepe.': 'attn.lepe.conv.',
    'attn.rope.rotations': None,
}
NAMES = Names(
    {
        **within('stages.0.patch_embed.', 'patch_embed.', STEM),
        # In the authors' code, it belongs to the stage before it.
        **within(
            'stages.{i+1}.patch_embed.layers.',
            'layers.{i}.downsample.conv.',
            {'0.conv.': '0.', '1.conv.': '2.', '2.conv.': '4.', '2.norm.': '5.'},
        ),
        **within('stages.{i}.blocks.{j}.', 'layers.{i}.blocks.{j}.', MLLA_BLOCK),
        'norm.': 'norm3.',
        **HEAD,
    },
    marks=('layers.0.blocks.0.attn.qk.weight', 'layers.0.blocks.0.act_proj.weight'),
)
FAMILIES = {
    f'mlla_{size}': Family((NAMES,), dict(type='MLLA', arch=size), f'{CLOUD}/{digits}/?dl=1')
    for size, digits in dict(
        tiny='7a19712877cb4242889c', small='0e5d0b1409d540aaa80c', base='91c85c5a1061496d8796'
    ).items()
}
