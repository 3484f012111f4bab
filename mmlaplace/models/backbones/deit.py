"""ViT and DeiT, which have the same names."""

from functools import partial
from typing import List

from mmengine.registry import MODELS

from ...checkpoints.conversion import NameTable, Rows, within
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import ATTENTION, BLOCK, HEAD, class_position, map_positions
from ..layers import PatchEmbed
from ..pyramid import Family, PyramidBackbone, Stage, arch


def vit(
    patch_size: int = 16,
    with_cls_token: bool = True,
    norm_first: bool = True,
    cpe_kernel: int = 0,
) -> List[Stage]:
    """ViT and DeiT: one stage of patches, with learned positions and a class token.

    Args:
        patch_size: Side of a patch, in pixels. Default: 16.
        with_cls_token: Whether there is a class token. Default: True.
        norm_first: Whether blocks are pre-norm. SOFT's are post-norm. Default: True.
        cpe_kernel: Odd kernel size of a depthwise convolution before each attention, whose output
            is added to the tokens in the place of learned positions, as in ViT³ and CA-DeiT. It
            needs ``with_cls_token=False``. Default: 0, learned positions.

    Raises:
        ValueError: For ``cpe_kernel`` with a class token.
    """
    if cpe_kernel and with_cls_token:
        raise ValueError(
            f'cpe_kernel={cpe_kernel} convolves a map, where a class token has no place; set '
            'with_cls_token=False'
        )
    return [
        Stage(
            partial(PatchEmbed, patch_size=patch_size, norm=False),
            patch_size,
            dict(type='SoftmaxAttention'),
            position=None if cpe_kernel else dict(cls_token=with_cls_token, decay=False),
            embed_norm=False,
            block=dict(norm_first=norm_first, cpe_kernels=(cpe_kernel, 0)),
        )
    ]


@MODELS.register_module()
class ViT(PyramidBackbone):
    """ViT and DeiT: one stage of stride 16, with a class token.

    Patches have a side of 16 pixels. Learned positions are resized to the input. Blocks are
    pre-norm. Arguments are those of :class:`PyramidBackbone` and of the host
    :func:`~mmlaplace.models.backbones.deit.vit`. Attentions that take no class token need
    ``with_cls_token=False``. Each value of an arch given as a dict has one entry.

    Source: ViT (arXiv 2010.11929), DeiT (arXiv 2012.12877). The sizes are DeiT's.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import ViT
        >>> arch = dict(embed_dims=[64], depths=[2], num_heads=[2], ffn_ratios=[4])
        >>> ViT(arch, out_type='cls_token')(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 64])
        >>> xca = ViT(arch, attn_cfg=dict(type='XCAttention'), with_cls_token=False)
        >>> xca(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 64, 4, 6])
    """

    host = staticmethod(vit)
    arch_zoo = {
        'micro': arch((128,), (4,)),
        'tiny': arch((192,), (12,), (3,)),
        'small': arch((384,), (12,), (6,)),
        'base': arch((768,), (12,), (12,)),
    }


def vit_rows(attention: Rows = ATTENTION) -> Rows:
    """The rows of a ViT with a class token, and with an attention."""
    block = {**BLOCK, **within('attn.', 'attn.', attention)}
    return {
        'patch_embed.proj.': 'stages.0.patch_embed.projection.',
        'cls_token': 'stages.0.position.cls_token',
        'pos_embed': [
            ('stages.0.position.cls_position', class_position),
            ('stages.0.position.map', map_positions),
        ],
        **within('stages.0.blocks.{i}.', 'blocks.{i}.', block),
        'norm.': 'norm0.',
        **HEAD,
    }


def convolved_vit_rows(attention: Rows) -> Rows:
    """The rows of a ViT with a convolution before each attention in the place of positions."""
    rows = {k: v for k, v in vit_rows(attention).items() if k not in ('cls_token', 'pos_embed')}
    return {**rows, 'blocks.{i}.cpe.': 'stages.0.blocks.{i}.cpe1.conv.'}


IDENTIFYING = ('cls_token', 'pos_embed', 'blocks.0.attn.qkv.weight')
VIT_NAMES = NameTable(vit_rows(), IDENTIFYING)

DOWNLOADS = 'https://dl.fbaipublicfiles.com/deit'
PUBLISHED = {
    f'deit_{size}': PublishedModel(
        (VIT_NAMES,),
        dict(type='ViT', arch=size),
        f'{DOWNLOADS}/deit_{size}_patch16_224-{digits}.pth',
    )
    for size, digits in dict(tiny='a1311bcf', small='cd65a155', base='b5f2ef4d').items()
}
FAMILY = Family({ViT: 'deit'}, PUBLISHED)
