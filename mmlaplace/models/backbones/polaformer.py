from typing import Tuple

import torch.nn as nn
from mmengine.registry import MODELS

from ..attentions.window import SWIN_ATTENTION
from ..layers import PatchEmbed, PatchMerging, PositionEmbedding
from .base import PyramidBackbone


def _arch(
    embed_dims: tuple,
    depths: tuple,
    num_heads: tuple = (1, 2, 5, 8),
    ffn_ratios: tuple = (8, 8, 4, 4),
) -> dict:
    return dict(embed_dims=embed_dims, depths=depths, num_heads=num_heads, ffn_ratios=ffn_ratios)


MICRO = _arch((32, 64, 96, 128), (1, 1, 2, 1), (1, 2, 3, 4), (4, 4, 4, 4))


@MODELS.register_module()
class PolaFormerPVT(PyramidBackbone):
    """PVT with polarity-aware linear attention.

    Patches of 4, then 2 tokens a side; learned positions in front of each stage, resized to the
    input; pre-norm blocks of :class:`PolaAttention` on all tokens in every stage. Maps have no
    norm behind the last block, as in PVT, and classifiers average them. Arguments as in
    :class:`PyramidBackbone`. Softmax stages are had by a list of configs, such as
    ``dict(type='SoftmaxAttention', rope=False, dw_kernel_size=0, sr_ratio=2)`` for one.

    Source: PolaFormer (arXiv 2501.15061), PVT (arXiv 2102.12122).
    """

    arch_zoo = {
        'micro': MICRO,
        'tiny': _arch((64, 128, 320, 512), (2, 2, 2, 2)),
        'small': _arch((64, 128, 320, 512), (3, 4, 6, 3)),
        'medium': _arch((64, 128, 320, 512), (3, 4, 18, 3)),
        'large': _arch((64, 128, 320, 512), (3, 8, 27, 3)),
    }
    default_attn_cfg = dict(type='PolaAttention')
    default_out_norms = False
    absolute_positions = True

    def build_patch_embed(self, stage: int, in_channels: int) -> nn.Module:
        return PatchEmbed(
            in_channels, self.embed_dims[stage], self.stage_strides[stage], **self.norm_options
        )


@MODELS.register_module()
class PolaFormerPVTv2(PyramidBackbone):
    """PVTv2 with polarity-aware linear attention.

    Overlapping patch embeddings (kernel 7, stride 4, then kernel 3, stride 2), pre-norm blocks of
    :class:`PolaAttention` on all tokens and an FFN with a depthwise convolution, no absolute
    positions. Arguments as in :class:`PyramidBackbone`.

    Source: PolaFormer (arXiv 2501.15061), PVTv2 (arXiv 2106.13797).
    """

    arch_zoo = {
        'b0': _arch((32, 64, 160, 256), (2, 2, 2, 2)),
        'b1': _arch((64, 128, 320, 512), (2, 2, 2, 2)),
        'b2': _arch((64, 128, 320, 512), (3, 4, 6, 3)),
    }
    default_arch = 'b1'
    default_attn_cfg = dict(type='PolaAttention')

    def build_block(self, stage: int, block: int, **kwargs) -> nn.Module:
        return super().build_block(stage, block, ffn_cfg=dict(dw_kernel_size=3), **kwargs)


@MODELS.register_module()
class PolaFormerSwin(PyramidBackbone):
    """Swin with polarity-aware linear attention in the first two stages.

    Patches of 4 tokens a side, then merged 2 x 2; pre-norm blocks of :class:`WindowAttention`, the
    windows of every second block shifted: windows of 56 with :class:`PolaAttention` inside, which
    at 224 x 224 are the whole map, then Swin's windows of 7 with softmax and a relative bias.
    Arguments as in :class:`PyramidBackbone`; at 384 x 384 the authors' windows are 96 and 12,
    ``attn_cfg=dict(window_size=(96, 96, 12, 12))``.

    Source: PolaFormer (arXiv 2501.15061), Swin Transformer (arXiv 2103.14030).
    """

    arch_zoo = {
        'micro': _arch((32, 64, 128, 256), (1, 1, 2, 1), (1, 2, 4, 8), (4, 4, 4, 4)),
        'tiny': _arch((96, 192, 384, 768), (2, 2, 6, 2), (3, 6, 12, 24), (4, 4, 4, 4)),
        'small': _arch((96, 192, 384, 768), (2, 2, 18, 2), (3, 6, 12, 24), (4, 4, 4, 4)),
        'base': _arch((128, 256, 512, 1024), (2, 2, 18, 2), (4, 8, 16, 32), (4, 4, 4, 4)),
    }
    default_norm_cfg = dict(type='LN', eps=1e-5)
    default_attn_cfg = dict(
        type='WindowAttention',
        window_size=(56, 56, 7, 7),
        attn_cfg=[dict(type='PolaAttention')] * 2 + [SWIN_ATTENTION] * 2,
    )

    def build_patch_embed(self, stage: int, in_channels: int) -> nn.Module:
        if stage == 0:
            return PatchEmbed(
                in_channels, self.embed_dims[0], self.stage_strides[0], **self.norm_options
            )
        return PatchMerging(in_channels, self.embed_dims[stage], **self.norm_options)

    def build_block(self, stage: int, block: int, attn_cfg: dict, **kwargs) -> nn.Module:
        if attn_cfg['type'] == 'WindowAttention':
            attn_cfg = dict(attn_cfg, shifted=block % 2 == 1)
        return super().build_block(stage, block, attn_cfg=attn_cfg, **kwargs)


@MODELS.register_module()
class PolaFormerDeiT(PyramidBackbone):
    """DeiT with polarity-aware linear attention: one stage of stride 16.

    Patches of 16 pixels, learned positions, resized to the input, and pre-norm blocks of
    :class:`PolaAttention`. There is no class token, which would have no place in the attention's
    convolution: classifiers average the map. Arguments as in :class:`PyramidBackbone`, each value
    of a dict arch with one entry.

    Source: PolaFormer (arXiv 2501.15061), DeiT (arXiv 2012.12877). The authors have released no
    code for this host; the size is the paper's.
    """

    arch_zoo = {'tiny': _arch((192,), (12,), (3,), (4,))}
    default_attn_cfg = dict(type='PolaAttention')
    stage_strides = (16,)
    absolute_positions = True

    def build_patch_embed(self, stage: int, in_channels: int) -> nn.Module:
        return PatchEmbed(
            in_channels, self.embed_dims[stage], self.stage_strides[stage], norm=False
        )

    def build_position(
        self, stage: int, resolution: Tuple[int, int], drop_rate: float
    ) -> nn.Module:
        return PositionEmbedding(
            self.embed_dims[stage], resolution, drop_rate=drop_rate, decay=False
        )
