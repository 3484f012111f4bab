from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import DepthwiseConv, PatchEmbed, map_to_tokens, resize_map, tokens_to_map
from .base import BaseAttention


@MODELS.register_module()
class PolaAttention(BaseAttention):
    r"""Polarity-aware linear attention: same-signed and opposite-signed pairs, sharpened by powers.

    Per head, with learned scales s and powers :math:`p = 1 + \alpha\, \mathrm{sigmoid}(\cdot)` of
    each channel, and the features :math:`\phi(x) = [\mathrm{relu}(x)^p, \mathrm{relu}(-x)^p]`,
    :math:`\bar\phi(x) = [\mathrm{relu}(-x)^p, \mathrm{relu}(x)^p]`:

    .. math::
        Y_s = \frac{\phi(Q)\, \phi(K)^T V_1}{\phi(Q)\, \phi(K)^T 1 + n \epsilon}, \quad
        Y_o = \frac{\bar\phi(Q)\, \phi(K)^T V_2}{\bar\phi(Q)\, \phi(K)^T 1 + n \epsilon}

        \mathrm{out} = \mathrm{proj}\big( ([Y_s, Y_o] + \mathrm{DWConv}(V)) \odot G \big)

    Q = XW / s, K = (XW + P) / s with a learned position P per token, :math:`[V_1, V_2]` the halves
    of each head's channels and G = XW a gate. No N x N matrix exists: products are taken from the
    right. Features and normalisers are fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        sr_ratio: Keys and values are taken from the map reduced by a convolution r x r of stride r
            and a LayerNorm; a map that r does not divide gets zeros. The n values then are
            interpolated linearly along the tokens for the convolution, as the authors do. Default:
            1, no reduction.
        alpha: The largest power, less 1. Default: 4.
        dw_kernel_size: Odd kernel size of the depthwise convolution on V, whose filters all heads
            share. Default: 5.
        qkv_bias: Whether queries, keys, values and the gate have a bias. Default: True.
        key_positions: Whether there is P, kept for ``input_resolution`` and resized bilinearly for
            other maps. Default: True.
        proj_drop: Dropout rate behind the projection. Default: 0.

    Raises:
        ValueError: If ``sr_ratio < 1``, ``alpha <= 0`` or a kernel is even.

    Source: PolaFormer (arXiv 2501.15061).
    """

    eps = 1e-6  # keeps a query apart from zero that has no key of its signs

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        sr_ratio: int = 1,
        alpha: float = 4.0,
        dw_kernel_size: int = 5,
        qkv_bias: bool = True,
        key_positions: bool = True,
        proj_drop: float = 0.0,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        if sr_ratio < 1:
            raise ValueError(f'sr_ratio must be at least 1, got {sr_ratio}')
        if not 0 < alpha < float('inf'):
            raise ValueError(f'alpha must be positive and finite, got {alpha}')
        self.alpha = alpha
        self.query_gate = nn.Linear(embed_dims, 2 * embed_dims, bias=qkv_bias)
        self.key_value = nn.Linear(embed_dims, 2 * embed_dims, bias=qkv_bias)
        self.reduction = PatchEmbed(embed_dims, embed_dims, sr_ratio) if sr_ratio > 1 else None
        self.key_positions = None
        if key_positions:
            reduced = [-(-side // sr_ratio) for side in self.input_resolution]
            self.key_positions = nn.Parameter(torch.zeros(1, embed_dims, *reduced))
            nn.init.trunc_normal_(self.key_positions, std=0.02)
        self.scale = nn.Parameter(torch.zeros(embed_dims))
        self.power = nn.Parameter(torch.zeros(num_heads, 1, self.head_dims))
        self.local = DepthwiseConv(embed_dims, dw_kernel_size, num_heads, shared='heads')
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(proj_drop)

    def features(self, x: Tensor) -> Tensor:
        """Positive and negative parts to their powers: ``(B, heads, N, d) -> (.., 2d)``."""
        power = 1 + self.alpha * torch.sigmoid(self.power.to(x.dtype))
        return torch.cat([F.relu(x) ** power, F.relu(-x) ** power], dim=-1)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Mix values ``(B, heads, n, d)`` by queries ``(B, heads, N, d)`` and n keys."""
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            scale = F.softplus(self.scale.to(query.dtype)).unflatten(0, (self.num_heads, 1, -1))
            query, key = self.features(query / scale), self.features(key / scale)
            opposite = query.roll(self.head_dims, dims=-1)  # the halves in the other order
            mean_key = key.mean(-2).unsqueeze(-1)
            streams = []
            for signed, part in zip((query, opposite), value.chunk(2, dim=-1)):
                summed = key.transpose(-2, -1) @ part / key.shape[-2]
                streams.append(signed @ summed / (signed @ mean_key + self.eps))
            return torch.cat(streams, dim=-1).to(v.dtype)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        self.check_tokens(x, hw_shape)
        query, gate = self.query_gate(x).chunk(2, dim=-1)
        source, source_shape = x, hw_shape
        if self.reduction is not None:
            source, source_shape = self.reduction(tokens_to_map(x, hw_shape))
        key, value = self.key_value(source).chunk(2, dim=-1)
        if self.key_positions is not None:
            key = key + map_to_tokens(resize_map(self.key_positions, source_shape))
        out = self.merge_heads(self.mix(*map(self.split_heads, (query, key, value)), hw_shape))
        if self.reduction is not None:
            value = F.interpolate(value.transpose(1, 2), x.shape[1], mode='linear').transpose(1, 2)
        out = (out + self.local(value, hw_shape)) * gate
        return self.proj_drop(self.proj(out))

    def resize_weight(self, name: str, value: Tensor) -> Tensor:
        """The key positions of a checkpoint in the size of these."""
        if name != 'key_positions':
            return value
        return resize_map(value, self.key_positions.shape[2:])
