"""MAViT, whose weights have the names of RAVLT's."""

from mmengine.registry import MODELS

from ..pyramid import Family
from .ravlt import HUB, RAVLT, published


@MODELS.register_module()
class MAViT(RAVLT):
    """MAViT: :class:`RAVLT` with magnitude-aware linear attention in its first two stages.

    Source: MALA (arXiv 2507.00698).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import MAViT
        >>> backbone = MAViT(arch='micro', out_indices=-1)
        >>> backbone(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 128, 2, 3])
    """

    default_attn_cfg = [dict(type='MALAAttention')] * 2 + [None] * 2


PUBLISHED = {
    # The authors name the folder alone. Its history names two of the files.
    'mavit_tiny': published(MAViT, 'tiny', 2048, page=f'{HUB}/MAViT/tree/main'),
    **{
        f'mavit_{size}': published(
            MAViT, size, projection, f'{HUB}/MAViT/resolve/main/MAViT_{letter}.pth'
        )
        for size, projection, letter in (
            ('small', 2048, 'S'),
            ('base', 2048, 'B'),
            ('large', 2560, 'L'),
        )
    },
}
FAMILY = Family(
    {MAViT: 'mavit'},
    PUBLISHED,
    # Evaluated as classfication_release/datasets.py does: the centre, by timm's defaults.
    timm=dict(mavit=dict(paper_ids='arXiv:2507.00698', first_conv='layers.0')),
    licence='none',
)
