"""Circulant attention on DeiT."""

from ...checkpoints.conversion import NameTable, Rows
from ...checkpoints.published import PublishedModel
from ..pyramid import Family
from .deit import convolved_vit_rows
from .flatten import CLOUD

CIRCULANT: Rows = {
    'qkv.': 'qkv.',
    'gate.0.weight': 'qkv.weight',
    'gate.0.bias': 'gate_bias',
    'proj.': 'proj.',
}
NAMES = NameTable(
    convolved_vit_rows(CIRCULANT),
    identifying=('blocks.0.cpe.weight', 'blocks.0.attn.gate.0.weight'),
)
PUBLISHED = {
    f'circulant_deit_{size}': PublishedModel(
        (NAMES,),
        dict(
            type='ViT',
            arch=size,
            with_cls_token=False,
            cpe_kernel=3,
            attn_cfg=dict(type='CirculantAttention'),
        ),
        f'{CLOUD}/{digits}/?dl=1',
    )
    for size, digits in dict(
        tiny='51b342f641b440a9ad53', small='02d8767a0981445b9606', base='0dee573498554f11a6c7'
    ).items()
}
FAMILY = Family(
    published=PUBLISHED,
    # Evaluated as data/build.py does: the centre of the shorter side, by timm's defaults.
    timm=dict(circulant=dict(paper_ids='arXiv:2512.21542')),
    licence='MIT',
)
