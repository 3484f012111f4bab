"""Hosts: the parts of backbones around the attentions. Each is a function that returns stages."""

from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch.nn as nn

from ..layers import ConvPatchEmbed, OverlapPatchEmbed, PatchEmbed, PatchMerging
from .stage import Stage

STRIDES = (4, 2, 2, 2)


def arch(
    embed_dims: Tuple[int, ...],
    depths: Tuple[int, ...],
    num_heads: Optional[Tuple[int, ...]] = None,
    ffn_ratios: Optional[Tuple[float, ...]] = None,
) -> dict:
    """A size. By default, heads have 32 channels and FFNs have four times the channels."""
    return dict(
        embed_dims=embed_dims,
        depths=depths,
        num_heads=num_heads or tuple(dims // 32 for dims in embed_dims),
        ffn_ratios=ffn_ratios or (4,) * len(depths),
    )


# Sizes that several families share. ``micro`` is for small images and tests.
MICRO = arch((32, 64, 96, 128), (1, 1, 2, 1))
_pvt_arch = partial(arch, num_heads=(1, 2, 5, 8), ffn_ratios=(8, 8, 4, 4))
PVT_ARCHS = {
    'micro': MICRO,
    'tiny': _pvt_arch((64, 128, 320, 512), (2, 2, 2, 2)),
    'small': _pvt_arch((64, 128, 320, 512), (3, 4, 6, 3)),
    'medium': _pvt_arch((64, 128, 320, 512), (3, 4, 18, 3)),
    'large': _pvt_arch((64, 128, 320, 512), (3, 8, 27, 3)),
}
PVTV2_ARCHS = {
    'b0': _pvt_arch((32, 64, 160, 256), (2, 2, 2, 2)),
    'b1': _pvt_arch((64, 128, 320, 512), (2, 2, 2, 2)),
    'b2': _pvt_arch((64, 128, 320, 512), (3, 4, 6, 3)),
}
PVTV2_LARGER_ARCHS = {
    'b3': _pvt_arch((64, 128, 320, 512), (3, 4, 18, 3)),
    'b4': _pvt_arch((64, 128, 320, 512), (3, 8, 27, 3)),
    'b5': _pvt_arch((64, 128, 320, 512), (3, 6, 40, 3), ffn_ratios=(4, 4, 4, 4)),
}
SWIN_ARCHS = {
    'micro': arch((32, 64, 128, 256), (1, 1, 2, 1)),
    'tiny': arch((96, 192, 384, 768), (2, 2, 6, 2)),
    'small': arch((96, 192, 384, 768), (2, 2, 18, 2)),
    'base': arch((128, 256, 512, 1024), (2, 2, 18, 2)),
}
SWIN_LARGER_ARCHS = {'large': arch((192, 384, 768, 1536), (2, 2, 18, 2))}
VIT_ARCHS = {
    'micro': arch((128,), (4,)),
    'tiny': arch((192,), (12,), (3,)),
    'small': arch((384,), (12,), (6,)),
    'base': arch((768,), (12,), (12,)),
}


def _overlapping(stride: int) -> partial:
    """Kernel 7 for stride 4, kernel 3 for stride 2."""
    return partial(OverlapPatchEmbed, kernel_size=2 * stride - 1, stride=stride)


def _beside_each_other(stride: int) -> partial:
    """Patches of PVT, which do not overlap."""
    return partial(PatchEmbed, patch_size=stride)


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
    embed = _overlapping if overlapping_patches else _beside_each_other
    frame = dict(rope=True, lepe_kernel=3)
    attn = dict(type='LaplacianAttention')
    return [Stage(embed(stride), stride, attn, frame) for stride in strides]


def pvt(with_cls_token: bool = False) -> List[Stage]:
    """PVT: patches, learned positions, softmax on reduced keys, maps without a norm.

    Args:
        with_cls_token: Whether the last stage has a class token, and a norm after it, as the
            authors' classifiers have. Default: False.
    """
    stages = [
        Stage(
            _beside_each_other(stride),
            stride,
            dict(type='SoftmaxAttention', sr_ratio=sr_ratio),
            position={},
            out_norm=None,
        )
        for stride, sr_ratio in zip(STRIDES, (8, 4, 2, 1))
    ]
    if with_cls_token:
        stages[-1] = replace(stages[-1], cls_token=True, out_norm=stages[-1].norm)
    return stages


def pvt_v2(stage_norms: bool = False, linear_attention: bool = False) -> List[Stage]:
    """PVTv2: overlapping patch embeddings, no positions, a convolution in the FFN.

    Args:
        stage_norms: Whether each stage ends with a norm, whose output the next stage takes, as in
            the authors' code. The norms of patch embeddings then have its eps, 1e-5. Otherwise
            only the returned maps have a norm. Default: False.
        linear_attention: Whether keys and values are pooled to 7 x 7 tokens in every stage, and
            FFNs have a ReLU before the convolution, as in the authors' PVTv2 of linear time.
            Default: False.
    """
    own: Dict[str, Any] = dict(end_norm=True, out_norm=None) if stage_norms else {}
    embed_norm = dict(norm_cfg=dict(type='LN', eps=1e-5)) if stage_norms else {}
    ffn_cfg: Dict[str, Any] = dict(dwconv_kernel=3)
    if linear_attention:
        ffn_cfg['dwconv_act_cfg'] = dict(type='ReLU')
    return [
        Stage(
            partial(_overlapping(stride), **embed_norm),
            stride,
            dict(
                type='SoftmaxAttention',
                **(dict(pool_size=7) if linear_attention else dict(sr_ratio=sr_ratio)),
            ),
            block=dict(ffn_cfg=ffn_cfg),
            **own,
        )
        for stride, sr_ratio in zip(STRIDES, (8, 4, 2, 1))
    ]


def swin(
    window_size: int = 7, pad_small_maps: bool = False, resize_windows: bool = False
) -> List[Stage]:
    """Swin: patches that are merged 2 x 2, attention in windows, shifted in every second block.

    Args:
        window_size: Side of a window, in tokens. Default: 7.
        resize_windows: Whether tables of other windows in a checkpoint are resized, as in
            :class:`WindowAttention`. Default: False.
        pad_small_maps: Whether maps that are not longer than a window are padded and shifted, as in
            the authors' detectors. Otherwise the window shrinks, as in their classifiers.
            Default: False.
    """
    attn = dict(
        type='WindowAttention',
        window_size=window_size,
        attn_cfg=dict(type='SoftmaxAttention', relative_bias=True),
    )
    if pad_small_maps:
        attn['pad_small_maps'] = True
    if resize_windows:
        attn['resize_windows'] = True
    norm = dict(type='LN', eps=1e-5)
    embeds: List[Callable[..., nn.Module]] = [
        partial(PatchEmbed, patch_size=4), *[PatchMerging] * 3
    ]  # fmt: skip
    return [
        Stage(embed, stride, attn, alternate=dict(shifted=True), norm=norm, out_norm=norm)
        for embed, stride in zip(embeds, STRIDES)
    ]


def vit(patch_size: int = 16, with_cls_token: bool = True, norm_first: bool = True) -> List[Stage]:
    """ViT and DeiT: one stage of patches, with learned positions and a class token.

    Args:
        patch_size: Side of a patch, in pixels. Default: 16.
        with_cls_token: Whether there is a class token. Default: True.
        norm_first: Whether blocks are pre-norm. SOFT's are post-norm. Default: True.
    """
    return [
        Stage(
            partial(PatchEmbed, patch_size=patch_size, norm=False),
            patch_size,
            dict(type='SoftmaxAttention'),
            position=dict(decay=False),
            cls_token=with_cls_token,
            embed_norm=False,
            block=dict(norm_first=norm_first),
        )
    ]


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
        stem, down = (
            partial(ConvPatchEmbed, strides=strides, norm_cfg=stem_norm_cfg)
            for strides in ((2, 1, 2), (2,))
        )
    elif stem_norm_cfg is not None:
        raise ValueError(
            f'stem_norm_cfg={stem_norm_cfg!r} has no effect with overlapping_patches=False, where '
            'norm_cfg sets the norms; leave it out'
        )
    else:
        stem, down = _beside_each_other(4), _beside_each_other(2)
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
        position={},
        cls_token=with_cls_token,
        embed_norm=not overlapping_patches,
    )
    return [*first, last]
