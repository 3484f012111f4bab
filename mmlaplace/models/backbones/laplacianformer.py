"""LaplacianFormer."""

from dataclasses import replace
from functools import partial
from typing import List, Sequence

from mmengine.registry import MODELS

from ..pyramid import MICRO, STRIDES, Family, PyramidBackbone, Stage, arch
from .pvt import overlapping_patches as overlapping
from .pvt import patches


def laplacian_pyramid(
    overlapping_patches: bool = True, strides: Sequence[int] = STRIDES
) -> List[Stage]:
    """LaplacianFormer: overlapping patches, rotary positions, a 3 x 3 convolution on V.

    Args:
        overlapping_patches: Whether patches overlap: those of stride s then have the side 2 s - 1.
            Otherwise they are PVT's, with the side s. Default: True.
        strides: By how much each stage divides a side. Small images, such as those of CIFAR, want
            ``(2, 2, 2, 2)``. Default: (4, 2, 2, 2).

    Raises:
        ValueError: If ``strides`` are not four positive integers.
    """
    four = isinstance(strides, (list, tuple)) and len(strides) == len(STRIDES)
    if not (four and all(isinstance(stride, int) and stride > 0 for stride in strides)):
        raise ValueError(
            f'strides must be {len(STRIDES)} positive integers, such as {STRIDES}, got {strides!r}'
        )
    embed = overlapping if overlapping_patches else patches
    frame = dict(rope=True, lepe_kernel=3)
    attn = dict(type='LaplacianAttention')
    return [Stage(embed(stride), stride, attn, frame) for stride in strides]


def rows_pyramid(overlapping_patches: bool = True, strides: Sequence[int] = STRIDES) -> List[Stage]:
    """LaplacianFormer whose attention has rows that add up to one, and landmarks of queries.

    Arguments and errors are those of :func:`laplacian_pyramid`.
    """
    rows = dict(normalization='rows', landmarks_from='queries')
    stages = laplacian_pyramid(overlapping_patches, strides)
    return [replace(stage, attn={**(stage.attn or {}), **rows}) for stage in stages]


_arch = partial(arch, ffn_ratios=(8, 8, 4, 4))


@MODELS.register_module()
class LaplacianFormer(PyramidBackbone):
    """A pyramid vision transformer with Laplacian-kernel linear attention.

    Patch embeddings overlap: they have kernel 7 and stride 4, then kernel 3 and stride 2. Blocks
    are pre-norm, with :class:`LaplacianAttention` and an FFN. Heads have 32 channels. Positions are
    rotary, and there are no absolute ones. Arguments are those of :class:`PyramidBackbone`.

    The attention has 49 landmarks in every stage, so cost is linear in the pixels at any image
    size. The paper's pool ratios, ``attn_cfg=dict(per_stage=dict(pool_ratio=(8, 4, 2, 1)))``, give
    the same number at 224 x 224. With these ratios, the number grows with the image.

    The archs ``tiny`` to ``huge`` match the published parameters and MACs. The paper's table of
    widths and depths was not at hand.

    Source: LaplacianFormer (arXiv 2604.20368).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LaplacianFormer
        >>> maps = LaplacianFormer(arch='micro')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 96, 4, 6), (1, 128, 2, 3)]
    """

    host = staticmethod(laplacian_pyramid)
    arch_zoo = {
        'micro': MICRO,
        'tiny': _arch((64, 128, 320, 512), (2, 2, 2, 2)),
        'small': _arch((64, 128, 352, 512), (3, 4, 8, 3)),
        'medium': _arch((64, 128, 384, 512), (3, 4, 13, 6)),
        'large': _arch((64, 128, 384, 512), (3, 4, 24, 5)),
        'huge': _arch((96, 192, 384, 640), (3, 4, 29, 4)),
    }


@MODELS.register_module()
class LaplacianFormerRows(LaplacianFormer):
    """:class:`LaplacianFormer` with another normalization of its attention. It is ours.

    It is not the paper's model: each row of the attention adds up to one, and landmarks are
    averages of the queries, ``LaplacianAttention(normalization='rows', landmarks_from='queries')``.
    All else is the same, but for the scale of each head, which this form does not have. In our
    studies it remembers single tokens, and takes over the weights of softmax attention, which the
    paper's form does not.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LaplacianFormerRows
        >>> maps = LaplacianFormerRows(arch='micro')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 96, 4, 6), (1, 128, 2, 3)]
    """

    host = staticmethod(rows_pyramid)


FAMILY = Family(
    {LaplacianFormer: 'laplacianformer', LaplacianFormerRows: 'laplacianformer-rows'},
    timm=dict(laplacianformer=dict(paper_ids='arXiv:2604.20368')),
)
