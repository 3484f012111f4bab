from typing import Optional, Set, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from ..layers import PatchEmbed, resize_map, tokens_to_map
from .base import QKVAttention


@MODELS.register_module()
class SoftmaxAttention(QKVAttention):
    r"""Scaled dot-product attention, the baseline on the same host.

    .. math:: \mathrm{softmax}(Q K^T / \sqrt{d} + b)\, V

    Runs PyTorch's ``scaled_dot_product_attention``: quadratic in the tokens, with no N x N matrix
    in memory where that has a fused kernel.

    Args:
        relative_bias: Whether each head adds a learned b for each offset of rows and columns, as
            Swin has it. Kept for the offsets of ``input_resolution``, resized bicubically for
            other maps. Default: False.
        sr_ratio: Keys and values are taken from the map reduced by a convolution r x r of stride r
            and a LayerNorm, as in PVT. A map that r does not divide gets zeros. Default: 1, no
            reduction.
        num_prefix_tokens: Tokens in front of those of the map, such as a class token. Default: 0.
        **kwargs: As in :class:`QKVAttention`.
        embed_dims, num_heads, input_resolution: As there.

    Raises:
        ValueError: If ``sr_ratio`` or ``num_prefix_tokens`` is combined with each other, or with
            what needs queries and keys to be one map: ``rope``, ``dw_kernel_size``,
            ``relative_bias`` and ``share_qk``.
    """

    accepts_mask = True

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        relative_bias: bool = False,
        sr_ratio: int = 1,
        num_prefix_tokens: int = 0,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if sr_ratio < 1:
            raise ValueError(f'sr_ratio must be at least 1, got {sr_ratio}')
        needs_map = dict(
            rope=self.rotary is not None,
            dw_kernel_size=self.local is not None,
            relative_bias=relative_bias,
            share_qk=self.share_qk,
        )
        in_the_way = [name for name, given in needs_map.items() if given]
        if (sr_ratio > 1 and num_prefix_tokens) or (
            (sr_ratio > 1 or num_prefix_tokens) and in_the_way
        ):
            raise ValueError(
                f'sr_ratio ({sr_ratio}) and num_prefix_tokens ({num_prefix_tokens}) go neither '
                f'together nor with {in_the_way}; set rope=False and dw_kernel_size=0'
            )
        self.num_prefix_tokens = num_prefix_tokens
        self.reduction = PatchEmbed(embed_dims, embed_dims, sr_ratio) if sr_ratio > 1 else None
        self.relative_bias = None
        if relative_bias:
            height, width = self.input_resolution
            table = torch.zeros(1, num_heads, 2 * height - 1, 2 * width - 1)
            self.relative_bias = nn.Parameter(nn.init.trunc_normal_(table, std=0.02))

    def project(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tuple[Tensor, ...]:
        if self.reduction is None:
            return super().project(x, hw_shape)
        reduced, _ = self.reduction(tokens_to_map(x, hw_shape))
        weights = self.qkv.weight.split((self.embed_dims, 2 * self.embed_dims))
        biases = (None, None)
        if self.qkv.bias is not None:
            biases = self.qkv.bias.split((self.embed_dims, 2 * self.embed_dims))
        query = F.linear(x, weights[0], biases[0])
        return (query, *F.linear(reduced, weights[1], biases[1]).chunk(2, dim=-1))

    def mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hw_shape: Tuple[int, int],
        mask: Optional[Tensor] = None,
    ) -> Tensor:
        if self.relative_bias is not None:
            bias = self._bias_of_pairs(hw_shape).to(q.dtype)
            mask = bias if mask is None else bias.masked_fill(~mask, float('-inf'))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def _bias_of_pairs(self, hw_shape: Tuple[int, int]) -> Tensor:
        """The learned bias of every pair of tokens, ``(1, heads, N, N)``."""
        height, width = hw_shape
        table = resize_map(self.relative_bias, (2 * height - 1, 2 * width - 1), mode='bicubic')
        rows = torch.arange(height, device=table.device).repeat_interleave(width)
        columns = torch.arange(width, device=table.device).repeat(height)
        return table[
            :,
            :,
            rows[:, None] - rows[None, :] + height - 1,
            columns[:, None] - columns[None, :] + width - 1,
        ]

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters that are not to decay, as Swin's authors have it."""
        return {'relative_bias'}

    def resize_weight(self, name: str, value: Tensor) -> Tensor:
        """The relative bias of a checkpoint for the offsets of this one."""
        if name != 'relative_bias':
            return value
        return resize_map(value, self.relative_bias.shape[2:], mode='bicubic')
