from mmengine.registry import MODELS

from .base import PyramidBackbone


def _arch(embed_dims: tuple, depths: tuple, ffn_ratios: tuple = (8, 8, 4, 4)) -> dict:
    """An arch with heads of 32 channels."""
    return dict(
        embed_dims=embed_dims,
        depths=depths,
        num_heads=tuple(dims // 32 for dims in embed_dims),
        ffn_ratios=ffn_ratios,
    )


@MODELS.register_module()
class LaplacianFormer(PyramidBackbone):
    """A pyramid vision transformer with Laplacian-kernel linear attention.

    Overlapping patch embeddings (kernel 7, stride 4, then kernel 3, stride 2), pre-norm blocks of
    :class:`LaplacianAttention` and an FFN, heads of 32 channels, rotary positions and no absolute
    ones. Arguments as in :class:`PyramidBackbone`.

    The default attention has 49 landmarks in every stage, so that cost is linear in the pixels at
    any image size. At 224 x 224 that is what the paper's pool ratios give,
    ``attn_cfg=dict(type='LaplacianAttention', pool_ratio=(8, 4, 2, 1))``, under which the number
    grows with the image.

    The archs ``tiny`` to ``huge`` match the published parameters and MACs; the paper's table of
    widths and depths was not at hand. ``micro`` is for small images and tests.

    Source: LaplacianFormer (arXiv 2604.20368).
    """

    arch_zoo = {
        'micro': _arch((32, 64, 96, 128), (1, 1, 2, 1), (4, 4, 4, 4)),
        'tiny': _arch((64, 128, 320, 512), (2, 2, 2, 2)),
        'small': _arch((64, 128, 352, 512), (3, 4, 8, 3)),
        'medium': _arch((64, 128, 384, 512), (3, 4, 13, 6)),
        'large': _arch((64, 128, 384, 512), (3, 4, 24, 5)),
        'huge': _arch((96, 192, 384, 640), (3, 4, 29, 4)),
    }
    default_attn_cfg = dict(type='LaplacianAttention', landmarks=49)
