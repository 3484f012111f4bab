from typing import List, Optional, Tuple, Union

import torch
import torch.nn as nn
from mmengine.model import ModuleList
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.backend import ceil_div, split_at

from ..layers import DepthwiseConv, PatchEmbed, softmax_attention, tokens_to_map
from ..layers.checks import check_counts
from ..layers.tables import computed_once
from .base import BaseAttention

AVERAGES = ('places', 'runs')
SIDE = 7  # of a window, in places


def mirrored(size: int, padded: int, device: torch.device) -> Tensor:
    """Indices that pad a side of ``size`` tokens to ``padded`` tokens by reflection."""
    # A tensor, as the ONNX exporters know no remainder by a number that is dynamic.
    period = torch.full((), 2 * size - 2, dtype=torch.long, device=device).clamp(min=1)
    steps = torch.arange(padded, device=device) % period
    return torch.minimum(steps, period - steps).clamp(max=size - 1)


@MODELS.register_module()
class FaViTAttention(BaseAttention):
    r"""Factorization self-attention of FaViT: every token attends to averages of windows.

    The channels are split into parts. The first part, an eighth, is one head that attends to a map
    reduced by the stride r. In the second part, keys and values are 49 averages over all windows of
    7 x 7 tokens, one for each place in a window. The third part does the same with windows whose
    tokens are r apart. With r = 1 there is no third part:

    .. math::
        \bar x_p = \mathrm{mean}_{w} \, x_{w, p}, \quad (K, V) = W_2 W_1 \bar x, \quad
        Y = \mathrm{softmax}(Q K^T / \sqrt{d})\, (V + \mathrm{DWConv}(V))

    Before this, the input of the keys passes a depthwise and a 1 x 1 convolution. Maps are padded
    to whole windows by reflection. Time of the windows is linear, :math:`O(49 N C)`, and that of
    the first part is :math:`O(N^2 C / 8 r^2)`.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        sr_ratio: The stride r. Default: 2.
        average: How averages are taken. ``'places'`` (default): as above and in the paper.
            ``'runs'``: as in the authors' code. For each place, it orders the values by window and
            then channel, and cuts them into d runs. This mixes channels with windows.

    Raises:
        ValueError: For an unknown ``average``, an ``sr_ratio`` below 1 or heads of few channels.

    Cost: 49NC + N²C / 8r² to mix; 2.8C² + r²C² / 64 + 1.1d² + 17C weights.

    Published: B0 71.5, B1 79.4, B2 82.3, B3 83.4.

    Source: FaViT (arXiv 2312.08614).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import FaViTAttention
        >>> attention = FaViTAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    no_prefix_tokens = 'its windows are of a map'
    mixes_tokens = False  # the convolutions are in the values
    not_promised = dict(linear='the first eighth of the channels attends to all pairs of tokens')
    tested_options = (dict(sr_ratio=1), dict(average='runs'))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        sr_ratio: int = 2,
        average: str = 'places',
        init_cfg: Union[dict, List[dict], None] = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        if average not in AVERAGES:
            raise ValueError(f'average must be one of {AVERAGES}, got {average!r}')
        check_counts(sr_ratio=sr_ratio)
        self.average = average
        self.steps = (1,) if sr_ratio == 1 else (1, sr_ratio)
        dims = 7 * self.head_dims // (8 * len(self.steps))  # of a head of a part
        if dims < 1:
            raise ValueError(
                f'heads need at least {len(self.steps) + 1} channels, got {self.head_dims}; take '
                'fewer heads'
            )
        part, local = dims * num_heads, dims * num_heads * len(self.steps)
        self.first = first = embed_dims - local
        self.q = nn.Linear(embed_dims, embed_dims)
        self.sr = PatchEmbed(first, first, sr_ratio)
        self.kv = nn.Linear(first, 2 * first)
        self.lepe = DepthwiseConv(first)
        self.near = DepthwiseConv(local)
        self.around = nn.Linear(local, local)
        self.window_in = ModuleList(nn.Linear(dims, dims) for _ in self.steps)
        self.window_kv = ModuleList(nn.Linear(dims, 2 * dims) for _ in self.steps)
        self.window_lepe = ModuleList(DepthwiseConv(part) for _ in self.steps)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def averages(self, x: Tensor, hw_shape: Tuple[int, int], step: int) -> Tensor:
        """The averages ``(B, heads, 49, d)`` of windows of tokens ``(B, N, heads * d)``."""
        extent = (SIDE - 1) * step + 1
        maps = tokens_to_map(x, hw_shape)
        for dim, size in zip((2, 3), hw_shape):
            padded = ceil_div(size, extent) * extent
            maps = maps.index_select(dim, computed_once(mirrored, size, padded, like=x))
        rows, columns = (side // extent for side in maps.shape[2:])
        tiles = maps.view(*maps.shape[:2], rows, extent, columns, extent)
        tiles = tiles[:, :, :, ::step, :, ::step]  # (B, heads * d, rows, 7, columns, 7)
        tiles = tiles.permute(0, 3, 5, 2, 4, 1)
        tiles = tiles.view(*tiles.shape[:5], self.num_heads, x.shape[2] // self.num_heads)
        tiles = tiles.flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2, 4)  # (B, heads, 49, w, d)
        if self.average == 'places':
            return tiles.mean(-2)
        return tiles.reshape(*tiles.shape[:3], tiles.shape[4], tiles.shape[3]).mean(-1)

    def forward(
        self, x: Tensor, hw_shape: Tuple[int, int], mask: Optional[Tensor] = None
    ) -> Tensor:
        self.check_token_map(x, hw_shape)
        self.check_mask(mask)
        q, q_local = split_at(self.q(x), self.first, -1)
        source, local = split_at(x, self.first, -1)
        source, source_shape = self.sr(tokens_to_map(source, hw_shape))
        k, v = self.kv(source).chunk(2, dim=-1)
        v = v + self.lepe(v, source_shape)
        out = [softmax_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)).squeeze(1)]
        # Queries of a head are together, and keys of a part.
        parts = self.num_heads, len(self.steps)
        size = q_local.shape[2] // (parts[0] * parts[1])
        queries = q_local.view(*q_local.shape[:2], *parts, size).unbind(-2)
        sources = self.around(self.near(local, hw_shape)).chunk(len(self.steps), dim=-1)
        for i, step in enumerate(self.steps):
            means = self.averages(sources[i], hw_shape, step)
            k, v = self.window_kv[i](self.window_in[i](means)).chunk(2, dim=-1)
            v = v.transpose(1, 2).flatten(2)  # (B, 49, heads * d)
            v = (v + self.window_lepe[i](v, (SIDE, SIDE))).unflatten(-1, (self.num_heads, -1))
            q = queries[i].transpose(1, 2)
            v = v.transpose(1, 2)
            out.append(softmax_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.proj(torch.cat(out, dim=-1))
