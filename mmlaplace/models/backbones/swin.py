"""Swin and SwinV2."""

from dataclasses import replace
from functools import partial
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch.nn as nn
from mmengine.registry import MODELS

from ...checkpoints.conversion import NameTable, Rows, Target, within
from ...checkpoints.dense import DenseModel
from ...checkpoints.published import PublishedModel
from ...checkpoints.rows import ATTENTION, BLOCK, MAP_NORMS, offset_map, unchanged, zeros
from ..attentions.window import WindowAttention
from ..layers import PatchEmbed, PatchMerging, TransformerBlock
from ..pyramid import STRIDES, Family, PyramidBackbone, Stage, arch
from ..pyramid.options import attention_class
from ..pyramid.stage import in_every_block


def shifted_by_turns(attn: dict, depth: int) -> List[Optional[dict]]:
    """Windows are shifted in every second block, unless the config says otherwise."""
    if attention_class(attn['type']) is not WindowAttention or 'shifted' in attn:
        return in_every_block(attn, depth)
    return [dict(attn, shifted=True) if j % 2 else attn for j in range(depth)]


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
        partial(PatchEmbed, patch_size=4),
        *[PatchMerging] * 3,
    ]
    return [
        Stage(embed, stride, attn, attn_in_blocks=shifted_by_turns, norm=norm, out_norm=norm)
        for embed, stride in zip(embeds, STRIDES)
    ]


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

    host = staticmethod(swin)
    arch_zoo = {
        'micro': arch((32, 64, 128, 256), (1, 1, 2, 1)),
        'tiny': arch((96, 192, 384, 768), (2, 2, 6, 2)),
        'small': arch((96, 192, 384, 768), (2, 2, 18, 2)),
        'base': arch((128, 256, 512, 1024), (2, 2, 18, 2)),
        'large': arch((192, 384, 768, 1536), (2, 2, 18, 2)),
    }


class ResPostNormBlock(TransformerBlock):
    """``x + norm(attention(x))``, then ``x + norm(ffn(x))``.

    At the start the norms multiply by zero, and the block is the identity. Arguments are those of
    :class:`TransformerBlock`, without ``layer_scale``.

    Source: Swin Transformer V2 (arXiv 2111.09883).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.backbones.swin import ResPostNormBlock
        >>> attn_cfg = dict(
        ...     type='PolaAttention', embed_dims=64, num_heads=2, input_resolution=(14, 14))
        >>> ResPostNormBlock(64, attn_cfg)(torch.randn(1, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([1, 45, 64])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.before = nn.Identity()

    def branches(self) -> List[Tuple[Any, nn.Module, Callable, Any]]:
        return [(cpe, self.before, branch, norm) for cpe, norm, branch, _ in super().branches()]

    def init_weights(self) -> None:
        """As in mmengine, and the norms at zero."""
        super().init_weights()
        for parameter in (*self.norm1.parameters(), *self.norm2.parameters()):
            nn.init.zeros_(parameter)


def swin_v2(window_size: int = 8, pretrained_windows: Sequence[int] = (0, 0, 0, 0)) -> List[Stage]:
    """SwinV2: Swin with scaled cosines, biases that a network computes, and norms at the ends.

    Args:
        window_size: Side of a window, in tokens. Default: 8.
        pretrained_windows: Side of the windows of an earlier training in each stage, whose offsets
            the biases keep, or 0 for that of the training here. Default: (0, 0, 0, 0).

    Raises:
        ValueError: For another number of ``pretrained_windows`` than stages.
    """
    if not isinstance(pretrained_windows, (list, tuple)) or len(pretrained_windows) != 4:
        raise ValueError(
            'pretrained_windows must have a side for each of the four stages, such as '
            f'(12, 12, 12, 6), got {pretrained_windows!r}'
        )
    merge = partial(PatchMerging, norm_last=True)
    stages = []
    for stage, window in zip(swin(window_size), pretrained_windows):
        embed = stage.embed if stage.stride == 4 else merge
        cosine: Dict[str, Any] = dict(type='ScaledCosineAttention')
        if window:
            cosine['pretrained_window'] = window
        attn = dict(type='WindowAttention', window_size=window_size, attn_cfg=cosine)
        stages.append(replace(stage, embed=embed, attn=attn, block=dict(type=ResPostNormBlock)))
    return stages


@MODELS.register_module()
class SwinV2(PyramidBackbone):
    """SwinV2: windows as in :class:`Swin`, with :class:`ScaledCosineAttention` inside.

    Each branch of a block ends with a norm, and so does the merging of 2 x 2 tokens. Arguments are
    those of :class:`PyramidBackbone`, ``window_size`` and ``pretrained_windows``. Build it with the
    ``img_size`` of its weights, as this gives the windows of small maps. For another ``img_size``,
    set the windows of the weights: ``pretrained_windows=(8, 8, 8, 8)``. Released weights of other
    windows are refused.

    Source: Swin Transformer V2 (arXiv 2111.09883).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SwinV2
        >>> maps = SwinV2(arch='micro')(torch.randn(1, 3, 64, 96))
        >>> [tuple(x.shape) for x in maps]
        [(1, 32, 16, 24), (1, 64, 8, 12), (1, 128, 4, 6), (1, 256, 2, 3)]
    """

    host = staticmethod(swin_v2)
    arch_zoo = Swin.arch_zoo


WINDOWS: Rows = {
    **ATTENTION,
    'relative_position_bias_table': ('relative_bias', offset_map),
    'relative_position_index': None,
}


def swin_rows(merging: str, attention: Rows = WINDOWS) -> Dict[str, Target]:
    """The rows of a Swin, whose stage ``{i}`` has the merging of the stage ``merging`` here."""
    merged = {'downsample.norm.': 'norm.', 'downsample.reduction.': 'reduction.'}
    block = {**BLOCK, **within('attn.attn.', 'attn.', attention), 'attn_mask': None}
    return {
        'patch_embed.proj.': 'stages.0.patch_embed.projection.',
        'patch_embed.norm.': 'stages.0.patch_embed.norm.',
        **within(f'stages.{merging}.patch_embed.', 'layers.{i}.', merged),
        **within('stages.{i}.blocks.{j}.', 'layers.{i}.blocks.{j}.', block),
        'norm.': 'norm3.',
        'head.': 'head.fc.',
        'head.fc.': 'head.fc.',
    }


def linear_window(side: int, **attn_cfg: Any) -> Dict[str, Any]:
    """The ``attn_cfg`` of a stage of Swin with another attention in windows of ``side`` tokens."""
    return dict(window_size=side, even_windows=True, attn_cfg=attn_cfg)


TABLE = 'layers.0.blocks.0.attn.relative_position_bias_table'
# In the authors' code, a merging belongs to the stage before it.
SWIN_NAMES = NameTable(
    swin_rows('{i+1}'), identifying=(TABLE, 'layers.0.downsample.reduction.weight')
)
SWIN_TIMM_NAMES = NameTable(
    swin_rows('{i}'), identifying=(TABLE, 'layers.3.downsample.reduction.weight')
)

V2_NETWORK = 'layers.0.blocks.0.attn.cpb_mlp.0.weight'
V2_WINDOWS: Rows = {
    **ATTENTION,
    'cpb_mlp.': 'offset_bias.',
    'logit_scale': 'logit_scale',
    # In one bias, with zeros for the keys.
    'q_bias': [('qkv.bias', unchanged), ('qkv.bias', zeros)],
    'v_bias': 'qkv.bias',
    'relative_coords_table': None,
    'relative_position_index': None,
}
V2_NAMES = NameTable(
    swin_rows('{i+1}', V2_WINDOWS),
    identifying=(V2_NETWORK, 'layers.0.downsample.reduction.weight'),
)
V2_TIMM_NAMES = NameTable(
    swin_rows('{i}', V2_WINDOWS),
    identifying=(V2_NETWORK, 'layers.3.downsample.reduction.weight'),
)

DOWNLOADS = 'https://github.com/SwinTransformer/storage/releases/download'


def _swin(size: str, file: str, **options: Any) -> PublishedModel:
    """The classifier of a size, whose weights are in a file of a release."""
    backbone = dict(type='Swin', arch=size, **options)
    return PublishedModel((SWIN_NAMES, SWIN_TIMM_NAMES), backbone, f'{DOWNLOADS}/{file}.pth')


def _swin_v2(
    size: str, file: str, window_size: int, img_size: int, **options: Any
) -> PublishedModel:
    backbone = dict(type='SwinV2', arch=size, window_size=window_size, img_size=img_size, **options)
    return PublishedModel((V2_NAMES, V2_TIMM_NAMES), backbone, f'{DOWNLOADS}/v2.0.0/{file}.pth')


AT_384: Dict[str, Any] = dict(window_size=12, img_size=384)
# First trained on ImageNet-22k, with these windows.
V2_22K: Dict[str, Any] = dict(pretrained_windows=(12, 12, 12, 6))
PUBLISHED = {
    'swin_tiny': _swin('tiny', 'v1.0.0/swin_tiny_patch4_window7_224'),
    'swin_small': _swin('small', 'v1.0.0/swin_small_patch4_window7_224'),
    'swin_base': _swin('base', 'v1.0.0/swin_base_patch4_window7_224'),
    # Of large there are only weights that were first trained on ImageNet-22k.
    'swin_large': _swin('large', 'v1.0.0/swin_large_patch4_window7_224_22kto1k'),
    'swin_base_384': _swin('base', 'v1.0.0/swin_base_patch4_window12_384', **AT_384),
    'swin_large_384': _swin('large', 'v1.0.0/swin_large_patch4_window12_384_22kto1k', **AT_384),
    'swin_tiny_22kto1k': _swin('tiny', 'v1.0.8/swin_tiny_patch4_window7_224_22kto1k_finetune'),
    'swin_small_22kto1k': _swin('small', 'v1.0.8/swin_small_patch4_window7_224_22kto1k_finetune'),
    'swin_base_22kto1k': _swin('base', 'v1.0.0/swin_base_patch4_window7_224_22kto1k'),
    'swin_base_384_22kto1k': _swin(
        'base', 'v1.0.0/swin_base_patch4_window12_384_22kto1k', **AT_384
    ),
    'swinv2_tiny_window8_256': _swin_v2('tiny', 'swinv2_tiny_patch4_window8_256', 8, 256),
    'swinv2_small_window8_256': _swin_v2('small', 'swinv2_small_patch4_window8_256', 8, 256),
    'swinv2_base_window8_256': _swin_v2('base', 'swinv2_base_patch4_window8_256', 8, 256),
    'swinv2_tiny_window16_256': _swin_v2('tiny', 'swinv2_tiny_patch4_window16_256', 16, 256),
    'swinv2_small_window16_256': _swin_v2('small', 'swinv2_small_patch4_window16_256', 16, 256),
    'swinv2_base_window16_256': _swin_v2('base', 'swinv2_base_patch4_window16_256', 16, 256),
    'swinv2_base_window12to16_192to256': _swin_v2(
        'base', 'swinv2_base_patch4_window12to16_192to256_22kto1k_ft', 16, 256, **V2_22K
    ),
    'swinv2_large_window12to16_192to256': _swin_v2(
        'large', 'swinv2_large_patch4_window12to16_192to256_22kto1k_ft', 16, 256, **V2_22K
    ),
    'swinv2_base_window12to24_192to384': _swin_v2(
        'base', 'swinv2_base_patch4_window12to24_192to384_22kto1k_ft', 24, 384, **V2_22K
    ),
    'swinv2_large_window12to24_192to384': _swin_v2(
        'large', 'swinv2_large_patch4_window12to24_192to384_22kto1k_ft', 24, 384, **V2_22K
    ),
}

MAP_NAMES = SWIN_NAMES.of_maps(MAP_NORMS)


def _dense(size: str, file: str, **others: Any) -> DenseModel:
    """A detector or segmentor, whose weights are in a file of a release."""
    weights = f'{DOWNLOADS}/{file}.pth'
    return DenseModel(f'swin_{size}', MAP_NAMES, weights, licence='Apache-2.0', **others)


DENSE = {
    'mask-rcnn_swin-tiny_fpn_ms-1x_coco': _dense(
        'tiny', 'v1.0.3/mask_rcnn_swin_tiny_patch4_window7_1x'
    ),
    'mask-rcnn_swin-tiny_fpn_ms-3x_coco': _dense(
        'tiny', 'v1.0.2/mask_rcnn_swin_tiny_patch4_window7'
    ),
    'mask-rcnn_swin-small_fpn_ms-3x_coco': _dense(
        'small', 'v1.0.2/mask_rcnn_swin_small_patch4_window7'
    ),
    'swin-tiny_upernet_8xb2-160k_ade20k-512x512': _dense(
        'tiny', 'v1.0.1/upernet_swin_tiny_patch4_window7_512x512'
    ),
    'swin-small_upernet_8xb2-160k_ade20k-512x512': _dense(
        'small', 'v1.0.1/upernet_swin_small_patch4_window7_512x512'
    ),
    'swin-base_upernet_8xb2-160k_ade20k-512x512': _dense(
        'base', 'v1.0.1/upernet_swin_base_patch4_window7_512x512'
    ),
    # Pretrained by MoBY, without labels.
    'mask-rcnn_swin-tiny_fpn_ms-1x_coco-moby': _dense(
        'tiny',
        'v1.0.3/moby_mask_rcnn_swin_tiny_patch4_window7_1x',
        config='mask-rcnn_swin-tiny_fpn_ms-1x_coco',
        scores={'box AP': 43.6, 'mask AP': 39.6},
    ),
    'mask-rcnn_swin-tiny_fpn_ms-3x_coco-moby': _dense(
        'tiny',
        'v1.0.3/moby_mask_rcnn_swin_tiny_patch4_window7_3x',
        config='mask-rcnn_swin-tiny_fpn_ms-3x_coco',
        scores={'box AP': 46.0, 'mask AP': 41.7},
    ),
    'swin-tiny_upernet_8xb2-160k_ade20k-512x512-moby': _dense(
        'tiny',
        'v1.0.3/moby_upernet_swin_tiny_patch4_window7_512x512',
        config='swin-tiny_upernet_8xb2-160k_ade20k-512x512',
        scores={'mIoU': 44.06},
    ),
}
FAMILY = Family({Swin: 'swin', SwinV2: 'swinv2'}, PUBLISHED, dense=DENSE, licence='MIT')
