"""Backbone families: each has a host, sizes, and changes to the host's attentions."""

from functools import partial

from mmengine.registry import MODELS

from . import hosts
from .base import PyramidBackbone
from .hosts import MICRO, arch

_laplacian_arch = partial(arch, ffn_ratios=(8, 8, 4, 4))


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

    host = staticmethod(hosts.laplacian_pyramid)
    arch_zoo = {
        'micro': MICRO,
        'tiny': _laplacian_arch((64, 128, 320, 512), (2, 2, 2, 2)),
        'small': _laplacian_arch((64, 128, 352, 512), (3, 4, 8, 3)),
        'medium': _laplacian_arch((64, 128, 384, 512), (3, 4, 13, 6)),
        'large': _laplacian_arch((64, 128, 384, 512), (3, 4, 24, 5)),
        'huge': _laplacian_arch((96, 192, 384, 640), (3, 4, 29, 4)),
    }


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
    :func:`~mmlaplace.models.backbones.hosts.soft_pyramid`.

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

    host = staticmethod(hosts.soft_pyramid)
    renamed_options = dict(class_token='with_cls_token')
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
    renamed_archs = {
        f'softpp-{size}': f"type='SOFTPlusPlus', arch='{size}'"
        for size in ('small', 'medium', 'large')
    }


@MODELS.register_module()
class PVT(PyramidBackbone):
    """PVT: patches, learned positions, and softmax attention on spatially reduced keys and values.

    Patches have a side of 4 pixels, then of 2 tokens. Learned positions come before each stage and
    are resized to the input. Blocks are pre-norm. Returned maps have no norm, as in the authors'
    detectors. ``attn_cfg=dict(type='FLattenAttention')`` gives FLatten-PVT. Arguments are those of
    :class:`PyramidBackbone`, and ``with_cls_token``: the authors' classifiers have a class token,
    the others here average the last map.

    Source: PVT (arXiv 2102.12122).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PVT
        >>> backbone = PVT(arch='micro', attn_cfg=dict(type='FLattenAttention'), out_indices=-1)
        >>> backbone(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 128, 2, 3])
    """

    host = staticmethod(hosts.pvt)
    arch_zoo = hosts.PVT_ARCHS


@MODELS.register_module()
class PVTv2(PyramidBackbone):
    """PVTv2: overlapping patch embeddings, no positions, a depthwise convolution in the FFN.

    Patch embeddings have kernel 7 and stride 4, then kernel 3 and stride 2. Attention is softmax on
    spatially reduced keys and values. Arguments are those of :class:`PyramidBackbone`, and
    ``stage_norms``, which the authors' weights need, and ``linear_attention``.

    Source: PVTv2 (arXiv 2106.13797).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PVTv2
        >>> maps = PVTv2(arch='b0')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 160, 4, 6), (1, 256, 2, 3)]
    """

    host = staticmethod(hosts.pvt_v2)
    arch_zoo = {**hosts.PVTV2_ARCHS, **hosts.PVTV2_LARGER_ARCHS}
    default_arch = 'b1'


@MODELS.register_module()
class Swin(PyramidBackbone):
    """Swin: attention in windows of 7 x 7 tokens, shifted in every second block.

    Patches have 4 x 4 pixels, and each later stage merges 2 x 2 tokens. Blocks are pre-norm, with
    :class:`WindowAttention`. The attention in the windows has a config of its own,
    ``attn_cfg=dict(attn_cfg=...)``. Arguments are those of :class:`PyramidBackbone`,
    ``window_size``, and ``pad_small_maps=True`` for a detector or segmentor as the authors'. It
    matters for images below 256 pixels, whose last map has at most 7 tokens a side.

    Source: Swin Transformer (arXiv 2103.14030).

    Examples:
        A linear attention in the first two stages, on the whole map of a 224 x 224 image:

        >>> import torch
        >>> from mmlaplace.models import Swin
        >>> linear = dict(
        ...     window_size=56, even_windows=True, attn_cfg=dict(type='FLattenAttention'))
        >>> maps = Swin(arch='micro', attn_cfg=[linear] * 2 + [None] * 2)(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 128, 4, 6), (1, 256, 2, 3)]
    """

    host = staticmethod(hosts.swin)
    arch_zoo = {**hosts.SWIN_ARCHS, **hosts.SWIN_LARGER_ARCHS}


@MODELS.register_module()
class ViT(PyramidBackbone):
    """ViT and DeiT: one stage of stride 16, with a class token.

    Patches have a side of 16 pixels. Learned positions are resized to the input. Blocks are
    pre-norm. Arguments are those of :class:`PyramidBackbone`, ``patch_size`` and
    ``with_cls_token``. Attentions that take no class token need ``with_cls_token=False``. Each
    value of an arch given as a dict has one entry.

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

    host = staticmethod(hosts.vit)
    arch_zoo = hosts.VIT_ARCHS


@MODELS.register_module()
class PolaFormerPVT(PVT):
    """PVT with polarity-aware linear attention in every stage.

    It is :class:`PVT` with :class:`PolaAttention`.

    Source: PolaFormer (arXiv 2501.15061).

    Examples:
        With softmax in the last two stages:

        >>> import torch
        >>> from mmlaplace.models import PolaFormerPVT
        >>> softmax = [dict(type='SoftmaxAttention', sr_ratio=ratio) for ratio in (2, 1)]
        >>> backbone = PolaFormerPVT(arch='micro', attn_cfg=[None, None, *softmax])
        >>> [tuple(x.shape) for x in backbone(torch.randn(1, 3, 64, 96))]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 96, 4, 6), (1, 128, 2, 3)]
    """

    default_attn_cfg = dict(type='PolaAttention')


@MODELS.register_module()
class PolaFormerPVTv2(PVTv2):
    """PVTv2 with polarity-aware linear attention in every stage.

    It is :class:`PVTv2` with :class:`PolaAttention`.

    Source: PolaFormer (arXiv 2501.15061).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PolaFormerPVTv2
        >>> backbone = PolaFormerPVTv2(arch='b0', out_indices=-1)
        >>> backbone(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 256, 2, 3])
    """

    arch_zoo = hosts.PVTV2_ARCHS
    default_attn_cfg = dict(type='PolaAttention')


@MODELS.register_module()
class PolaFormerSwin(Swin):
    """Swin with polarity-aware linear attention in the first two stages.

    It is :class:`Swin` with :class:`PolaAttention` in the first two stages. The windows there have
    56 tokens a side, which at 224 x 224 is the whole map. If 56 does not divide the sides of a map,
    the windows shrink (``even_windows`` of :class:`WindowAttention`). At 512 x 512 there are 3 x 3
    windows of 43 tokens a side. Padding to windows of 56 would compute 1.7 times as much there. The
    authors' windows at 384 x 384 are in the example.

    Source: PolaFormer (arXiv 2501.15061).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PolaFormerSwin
        >>> windows = dict(per_stage=dict(window_size=(96, 96, 12, 12)))
        >>> backbone = PolaFormerSwin(arch='micro', attn_cfg=windows, img_size=384)
        >>> [tuple(x.shape) for x in backbone(torch.randn(1, 3, 64, 96))]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 128, 4, 6), (1, 256, 2, 3)]
    """

    arch_zoo = hosts.SWIN_ARCHS
    default_attn_cfg = [
        *[dict(window_size=56, even_windows=True, attn_cfg=dict(type='PolaAttention'))] * 2,
        *[None] * 2,
    ]


@MODELS.register_module()
class PolaFormerDeiT(ViT):
    """DeiT with polarity-aware linear attention.

    It is :class:`ViT` with :class:`PolaAttention` and without a class token, because the
    attention's convolution needs tokens of a map. Classifiers average the map.

    Source: PolaFormer (arXiv 2501.15061). The authors have released no code for this host. The size
    is the paper's.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PolaFormerDeiT
        >>> arch = dict(embed_dims=[64], depths=[2], num_heads=[2], ffn_ratios=[4])
        >>> PolaFormerDeiT(arch)(torch.randn(1, 3, 64, 96))[0].shape
        torch.Size([1, 64, 4, 6])
    """

    host = staticmethod(partial(hosts.vit, with_cls_token=False))
    arch_zoo = {'tiny': hosts.VIT_ARCHS['tiny']}
    default_attn_cfg = dict(type='PolaAttention')
