"""PolaFormer++, whose pyramid is RAVLT's."""

from mmengine.registry import MODELS

from ...checkpoints.conversion import NameTable, within
from ...checkpoints.rows import first
from ..pyramid import MICRO, Family
from .ravlt import NAMES, RAVLT, gated_arch, published


@MODELS.register_module()
class PolaFormerPP(RAVLT):
    """PolaFormer++: :class:`RAVLT` with :class:`PolaPPAttention` in its first two stages.

    ``b2`` to ``b5`` have the sizes of RAVLT, from ``tiny`` to ``large``.

    Source: PolaFormer (arXiv 2501.15061), whose authors call this version PolaFormer++
    (https://github.com/ZacharyMeng/PolaFormerPP).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PolaFormerPP
        >>> backbone = PolaFormerPP(arch='micro', out_indices=-1)
        >>> backbone(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 128, 2, 3])
    """

    arch_zoo = {
        'micro': MICRO,
        'b0': gated_arch((32, 64, 128, 384), (2, 2, 2, 2)),
        'b1': gated_arch((32, 64, 192, 384), (2, 2, 4, 2)),
        **dict(zip(('b2', 'b3', 'b4', 'b5'), list(RAVLT.arch_zoo.values())[1:])),
    }
    default_arch = 'b0'
    default_attn_cfg = [dict(type='PolaPPAttention')] * 2 + [None] * 2


POLA_NAMES = NameTable(
    {
        **NAMES.rows,
        **within(
            'stages.{i}.blocks.{j}.attn.',
            'layers.{i}.blocks.{j}.attn.',
            {
                'qkvg.': 'qkv.',
                's1': ('same_temperature', first),
                's2': ('opposite_temperature', first),
            },
        ),
        'layers.{i}.RoPE_linear.angle': None,
    },
    identifying=('layers.0.blocks.0.attn.qkvg.weight', 'layers.0.blocks.0.attn.s1', 'proj.weight'),
    averaged=True,
)
PAGE = 'https://pan.baidu.com/s/1tjG-Qq2zFwN_HZswAzxarQ?pwd=atba'
PUBLISHED = {
    f'polaformerpp_{size}': published(
        PolaFormerPP, size, 2560 if size == 'b5' else 2048, page=PAGE, names=POLA_NAMES
    )
    for size in ('b0', 'b1', 'b2', 'b3', 'b4', 'b5')
}
FAMILY = Family(
    {PolaFormerPP: 'polaformerpp'},
    PUBLISHED,
    # Evaluated as data/build.py does: the centre, by timm's defaults.
    timm=dict(polaformerpp=dict(paper_ids='arXiv:2501.15061', first_conv='layers.0')),
    licence='none',
)
