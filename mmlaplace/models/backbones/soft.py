"""SOFT and SOFT++, whose weights have the same names.

The authors' SOFT-Norm has the sizes of SOFT and the attention of SOFT++.
"""

from functools import partial
from typing import List, Optional

from mmengine.registry import MODELS

from ...checkpoints.conversion import NameTable, Rows, position_map, within
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import BLOCK, HEAD
from ..layers import ConvPatchEmbed
from ..pyramid import MICRO, STRIDES, Family, PyramidBackbone, Stage, arch
from .pvt import CLASS_TOKEN, patches


def soft_pyramid(
    stem_norm_cfg: Optional[dict] = None,
    with_cls_token: bool = True,
    overlapping_patches: bool = True,
    drop_path_per: str = 'sample',
) -> List[Stage]:
    """SOFT: convolutions with BatchNorm embed patches, and the last stage has softmax.

    Args:
        stem_norm_cfg: Config of the norms after the convolutions that embed patches, in every
            stage, such as ``dict(type='SyncBN')``. Default: ``dict(type='BN')``.
        with_cls_token: Whether the last stage has a class token. Default: True.
        overlapping_patches: Whether patches overlap. Otherwise they are PVT's, with a LayerNorm:
            4 x 4 pixels, then 2 x 2 tokens. Default: True.
        drop_path_per: How ``drop_path_rate`` drops in the stages before the last. ``'sample'``
            (default): whole residual branches of images, as in the last stage. ``'element'``:
            single elements of residual branches, as in the authors' code, which has plain dropout
            there.

    Raises:
        ValueError: For a ``stem_norm_cfg`` of patches that do not overlap.
    """
    if overlapping_patches:
        stem = partial(ConvPatchEmbed, strides=(2, 1, 2), norm_cfg=stem_norm_cfg)
        down = partial(ConvPatchEmbed, strides=(2,), norm_cfg=stem_norm_cfg)
    elif stem_norm_cfg is not None:
        raise ValueError(
            f'stem_norm_cfg={stem_norm_cfg!r} has no effect with overlapping_patches=False, where '
            'norm_cfg sets the norms; leave it out'
        )
    else:
        stem, down = patches(4), patches(2)
    post_norm = dict(
        norm_first=False,
        drop_path_per=drop_path_per,
        ffn_cfg=dict(act_cfg=dict(type='GELU', approximate='tanh')),
    )
    first = [
        Stage(
            embed,
            stride,
            dict(type='SOFTAttention', num_landmarks=49, pool_ratio=pool_ratio),
            frame=dict(lepe_kernel=kernel, lepe_filters='head', lepe_bias=False),
            position={},
            embed_norm=not overlapping_patches,
            norm=dict(type='LN', eps=1e-5),
            block=post_norm,
        )
        for embed, stride, pool_ratio, kernel in zip(
            (stem, down, down), STRIDES, (8, 4, 2), (9, 5, 3)
        )
    ]
    last = Stage(
        down,
        STRIDES[-1],
        dict(type='SoftmaxAttention'),
        position=dict(cls_token=with_cls_token),
        embed_norm=not overlapping_patches,
    )
    return [*first, last]


@MODELS.register_module()
class SOFTPlusPlus(PyramidBackbone):
    """SOFT++: the pyramid of SOFT with a normalised inverse.

    The stem has three 3 x 3 convolutions, and each later stage begins with one. Each has BatchNorm
    and ReLU. Learned positions come before each stage and are resized to the input. Three stages
    have post-norm blocks of :class:`SOFTAttention`, with a tanh GELU in the FFN. The last stage has
    pre-norm blocks of :class:`SoftmaxAttention`, and a class token.

    There are 49 landmarks at any image size, so cost is linear in the pixels.
    ``attn_cfg=dict(num_landmarks=None)`` lets their number grow with the image, as it does in the
    papers. Arguments are those of :class:`PyramidBackbone` and of the host
    :func:`~mmlaplace.models.backbones.soft.soft_pyramid`.

    The archs ``small`` to ``large`` are those of the paper's Table 1. The paper's ``tiny`` has as
    many parameters as the ``tiny`` of SOFT, which is used here.

    Source: SOFT++ (arXiv 2207.03341).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SOFTPlusPlus
        >>> backbone = SOFTPlusPlus(arch='micro', out_indices=-1, out_type='cls_token')
        >>> backbone(torch.randn(2, 3, 64, 64))[0].shape
        torch.Size([2, 128])
    """

    host = staticmethod(soft_pyramid)
    arch_zoo = {
        'micro': MICRO,
        'tiny': arch((64, 128, 320, 512), (1, 2, 3, 2)),
        'small': arch((96, 192, 384, 768), (2, 2, 5, 2)),
        'medium': arch((96, 192, 384, 768), (2, 2, 18, 2)),
        'large': arch((128, 256, 512, 1024), (2, 2, 18, 2)),
    }


@MODELS.register_module()
class SOFT(SOFTPlusPlus):
    """SOFT: softmax-free linear attention, then a stage with softmax.

    It is :class:`SOFTPlusPlus` with ``attn_cfg=dict(normalized=False)``, and has other sizes. The
    arch ``small`` has 7 blocks in its third stage. This gives the published 24 M parameters and
    3.3 G MACs. ``small-deep`` has 20 blocks there, as in the authors' code. This gives 38.9 M.

    Source: SOFT (arXiv 2110.11945).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SOFT
        >>> maps = SOFT(arch='micro')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 96, 4, 6), (1, 128, 2, 3)]
    """

    default_attn_cfg = dict(normalized=False)
    arch_zoo = {
        'micro': MICRO,
        'tiny': arch((64, 128, 320, 512), (1, 2, 3, 2)),
        'small': arch((64, 128, 320, 512), (1, 3, 7, 4)),
        'small-deep': arch((64, 128, 320, 512), (1, 3, 20, 4)),
        'medium': arch((64, 128, 288, 512), (1, 3, 29, 5)),
        'large': arch((64, 128, 320, 512), (1, 3, 40, 5)),
        'huge': arch((64, 128, 352, 512), (1, 5, 49, 5)),
    }


ATTENTION: Rows = {
    'W_q.': 'qkv.',
    'W_v.': 'qkv.',
    'attn.Qlandmark_op.': 'landmarks.conv.',
    'attn.Qnorm_act.0.': 'landmark_norm.0.',
    'attn.conv.': 'lepe.conv.',
    'ff.': 'proj.',
}
SOFTMAX: Rows = {'q.': 'qkv.', 'kv.': 'kv.', 'proj.': 'proj.'}
SOFT_NAMES = NameTable(
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
    identifying=('block1.0.att.mha.W_q.weight',),
    averaged=True,
)

NORM = dict(normalized=True, newton_start_per='batch')
# It links some weights of SOFT, and none of SOFT++.
PAGE = 'https://github.com/fudan-zvg/SOFT#main-results'


def _soft(size: str, page: str = '') -> PublishedModel:
    return PublishedModel((SOFT_NAMES,), dict(type='SOFT', arch=size), page=page)


def _soft_norm(size: str, page: str = '') -> PublishedModel:
    backbone = dict(type='SOFT', arch=size, attn_cfg=NORM)
    return PublishedModel((SOFT_NAMES,), backbone, page=page)


def _softpp(size: str) -> PublishedModel:
    return PublishedModel((SOFT_NAMES,), dict(type='SOFTPlusPlus', arch=size))


PUBLISHED = {
    # The authors' README counts the parameters of small, and their code builds small-deep.
    'soft_tiny': _soft('tiny', page=PAGE),
    'soft_small': _soft('small'),
    'soft_small_deep': _soft('small-deep'),
    'soft_medium': _soft('medium'),
    'soft_large': _soft('large'),
    'soft_huge': _soft('huge'),
    'soft_norm_tiny': _soft_norm('tiny', page=PAGE),
    'soft_norm_small': _soft_norm('small'),
    'soft_norm_small_deep': _soft_norm('small-deep', page=PAGE),
    'soft_norm_medium': _soft_norm('medium', page=PAGE),
    'soft_norm_large': _soft_norm('large', page=PAGE),
    'soft_norm_huge': _soft_norm('huge'),
    'softpp_tiny': _softpp('tiny'),
    'softpp_small': _softpp('small'),
    'softpp_medium': _softpp('medium'),
    'softpp_large': _softpp('large'),
}
FAMILY = Family(
    {SOFT: 'soft', SOFTPlusPlus: 'softpp'},
    PUBLISHED,
    timm=dict(
        soft=dict(paper_ids='arXiv:2110.11945', first_conv='layers.0', crop_pct=0.9),
        softpp=dict(paper_ids='arXiv:2207.03341', first_conv='layers.0'),
    ),
    licence='MIT',
)
