from typing import Optional, Sequence, Tuple, Union

import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from ..attentions import SoftmaxAttention
from ..layers import ConvPatchEmbed, PositionEmbedding
from .base import PyramidBackbone

OUT_TYPES = ('featmap', 'class_token')


def _arch(embed_dims: tuple, depths: tuple) -> dict:
    """An arch with heads of 32 channels and FFNs four times as wide."""
    return dict(
        embed_dims=embed_dims,
        depths=depths,
        num_heads=tuple(dims // 32 for dims in embed_dims),
        ffn_ratios=(4, 4, 4, 4),
    )


@MODELS.register_module()
class SOFT(PyramidBackbone):
    """The pyramid of SOFT and SOFT++: softmax-free linear attention, then a stage with softmax.

    A stem of three 3 x 3 convolutions and one in front of each later stage, each with BatchNorm
    and ReLU; learned positions in front of each stage, resized to the input; three stages of
    post-norm blocks of :class:`SOFTAttention` with a tanh GELU in the FFN; a last stage of
    pre-norm blocks of :class:`SoftmaxAttention`, with a class token.

    The default is SOFT++ with 49 landmarks at any image size, linear in the pixels.
    ``attn_cfg=dict(normalized=False)`` makes it SOFT, ``attn_cfg=dict(landmarks=None)`` lets their
    number grow with the image, as it does in the papers.

    The archs ``tiny`` to ``huge`` are SOFT's, ``softpp-small`` to ``softpp-large`` those of
    SOFT++'s Table 1, whose Tiny has the parameters of ``tiny``. ``small`` has 7 blocks in its third
    stage, which gives the published 24 M parameters and 3.3 G MACs; ``small-deep`` has 20, as the
    authors' code, which gives 38.9 M. ``micro`` is for small images and tests.

    Args:
        arch: As in :class:`PyramidBackbone`.
        **kwargs: As there.
        stem_norm_cfg: Config of the norms behind the convolutions that embed patches, in every
            stage, such as ``dict(type='SyncBN')``. Default: ``dict(type='BN')``.
        class_token: Whether the last stage has a class token. Default: True.
        out_type: ``'featmap'`` (default) returns maps, without the class token; ``'class_token'``
            returns the class token ``(B, C)`` of the last stage, for a classifier.

    Raises:
        ValueError: For another ``out_type``, the class token of a backbone that has none or returns
            other stages too, or an attention in the last stage that takes no class token.

    Source: SOFT (arXiv 2110.11945) and SOFT++ (arXiv 2207.03341).
    """

    arch_zoo = {
        'micro': _arch((32, 64, 96, 128), (1, 1, 2, 1)),
        'tiny': _arch((64, 128, 320, 512), (1, 2, 3, 2)),
        'small': _arch((64, 128, 320, 512), (1, 3, 7, 4)),
        'small-deep': _arch((64, 128, 320, 512), (1, 3, 20, 4)),
        'medium': _arch((64, 128, 288, 512), (1, 3, 29, 5)),
        'large': _arch((64, 128, 320, 512), (1, 3, 40, 5)),
        'huge': _arch((64, 128, 352, 512), (1, 5, 49, 5)),
        'softpp-small': _arch((96, 192, 384, 768), (2, 2, 5, 2)),
        'softpp-medium': _arch((96, 192, 384, 768), (2, 2, 18, 2)),
        'softpp-large': _arch((128, 256, 512, 1024), (2, 2, 18, 2)),
    }
    default_attn_cfg = [
        dict(type='SOFTAttention', pool_ratio=8, dw_kernel_size=9),
        dict(type='SOFTAttention', pool_ratio=4, dw_kernel_size=5),
        dict(type='SOFTAttention', pool_ratio=2, dw_kernel_size=3),
        dict(type='SoftmaxAttention', rope=False, dw_kernel_size=0),
    ]
    absolute_positions = True
    last_stage = 3

    def __init__(
        self,
        arch: Union[str, dict, None] = None,
        stem_norm_cfg: Optional[dict] = None,
        class_token: bool = True,
        out_type: str = 'featmap',
        **kwargs,
    ) -> None:
        self.stem_norm_cfg = stem_norm_cfg
        self.has_class_token = class_token
        super().__init__(arch, **kwargs)
        if out_type not in OUT_TYPES:
            raise ValueError(f'out_type must be one of {OUT_TYPES}, got {out_type!r}')
        if out_type == 'class_token' and not (
            class_token and self.out_indices == (self.last_stage,)
        ):
            raise ValueError(
                f"out_type='class_token' needs class_token=True (got {class_token}) and "
                f'out_indices=({self.last_stage},) (got {self.out_indices}); dense heads take '
                "out_type='featmap'"
            )
        self.out_type = out_type

    def _attn_cfg_per_stage(self, attn_cfg: Union[dict, Sequence[dict], None]) -> list:
        configs = super()._attn_cfg_per_stage(attn_cfg)
        if self.has_class_token:
            last = configs[self.last_stage]
            if not issubclass(MODELS.get(last['type']), SoftmaxAttention):
                raise ValueError(
                    f'the class token needs SoftmaxAttention in the last stage, got {last}; set '
                    'class_token=False'
                )
            configs[self.last_stage] = dict(last, num_prefix_tokens=1)
        return configs

    def build_patch_embed(self, stage: int, in_channels: int) -> nn.Module:
        channels = self.embed_dims[stage]
        channels, strides = ((32, 32, channels), (2, 1, 2)) if stage == 0 else ((channels,), (2,))
        return ConvPatchEmbed(in_channels, channels, strides, self.stem_norm_cfg)

    def build_position(
        self, stage: int, resolution: Tuple[int, int], drop_rate: float
    ) -> nn.Module:
        class_token = self.has_class_token and stage == self.last_stage
        return PositionEmbedding(self.embed_dims[stage], resolution, class_token, drop_rate)

    def build_block(self, stage: int, block: int, **kwargs) -> nn.Module:
        if stage == self.last_stage:
            return super().build_block(stage, block, **kwargs)
        return super().build_block(
            stage,
            block,
            norm_first=False,
            norm_cfg=dict(type='LN', eps=1e-5),
            ffn_cfg=dict(act_cfg=dict(type='GELU', approximate='tanh')),
            **kwargs,
        )

    def output(self, stage: int, tokens: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        if stage == self.last_stage and self.has_class_token:
            if self.out_type == 'class_token':
                return tokens[:, 0]
            tokens = tokens[:, 1:]
        return super().output(stage, tokens, hw_shape)
