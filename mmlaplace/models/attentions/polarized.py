from typing import List, Optional, Tuple, Union

import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from .base import BaseAttention

LAYOUTS = ('parallel', 'sequential')
SOFTMAXES = ('channels', 'tokens')


@MODELS.register_module()
class PolarizedAttention(BaseAttention):
    r"""Polarized self-attention (PSA): a gate for each channel and a gate for each token.

    With linears to C/2 channels (one channel for :math:`W_q`):

    .. math::
        g_c = \mathrm{sigmoid}\Big( U \sum_j \mathrm{softmax}_j(W_q x)\, W_v x_j \Big), \quad
        g_i = \mathrm{sigmoid}\big( \mathrm{softmax}_c(\mathrm{mean}_j W_k x_j) \cdot W_t x_i \big)

        \mathrm{out}_i = x_i \odot g_c + x_i g_i

    The sequential layout is :math:`(x \odot g_c)\, g_i`, where the input of :math:`g_i` is
    :math:`x \odot g_c`. Time is linear, :math:`O(N C^2)`. There are no heads, no products of
    queries and keys, and no positions of tokens. Softmaxes and sums are fp32 under any autocast.

    Args:
        embed_dims, input_resolution, num_prefix_tokens, init_cfg: As in :class:`BaseAttention`.
            Prefix tokens are in all sums.
        num_heads: Must divide ``embed_dims``, and has no other effect.
        layout: ``'parallel'`` (default): U is a linear. ``'sequential'``: U is two linears, with
            C/8 channels, LayerNorm and ReLU between them.
        softmax_over: The axis of the softmax of :math:`g_i`. ``'channels'`` (default): as above and
            in the paper. ``'tokens'``: as in the authors' code, over tokens. The parallel layout
            then takes the softmax after the product, and the sequential layout takes that of
            :math:`W_t x`. For large maps, this gate is a constant 1/2.

    Raises:
        ValueError: For an unknown ``layout`` or ``softmax_over``.

    Cost: NC to mix; 2C² + C weights.

    Published: – (poses and segmentation).

    Source: PSA (arXiv 2107.00782).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PolarizedAttention
        >>> attention = PolarizedAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    mixes_tokens = False
    no_prefix_tokens = ''
    tested_options = (dict(layout='sequential'), dict(layout='sequential', softmax_over='tokens'))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        layout: str = 'parallel',
        softmax_over: str = 'channels',
        num_prefix_tokens: int = 0,
        init_cfg: Union[dict, List[dict], None] = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg, num_prefix_tokens)
        if layout not in LAYOUTS:
            raise ValueError(f'layout must be one of {LAYOUTS}, got {layout!r}')
        if softmax_over not in SOFTMAXES:
            raise ValueError(f'softmax_over must be one of {SOFTMAXES}, got {softmax_over!r}')
        self.layout, self.softmax_over = layout, softmax_over
        half, eighth = max(embed_dims // 2, 1), max(embed_dims // 8, 1)
        self.score = nn.Linear(embed_dims, 1, bias=False)
        self.value = nn.Linear(embed_dims, half, bias=False)
        if layout == 'parallel':
            self.up: nn.Module = nn.Linear(half, embed_dims, bias=False)
        else:
            self.up = nn.Sequential(
                nn.Linear(half, eighth),
                nn.LayerNorm(eighth),
                nn.ReLU(),
                nn.Linear(eighth, embed_dims),
            )
        self.mean = nn.Linear(embed_dims, half, bias=False)
        self.token = nn.Linear(embed_dims, half, bias=False)

    def channel_gate(self, x: Tensor) -> Tensor:
        """``(B, N, C) -> (B, 1, C)``."""
        score, value = upcast(self.score(x), self.value(x))
        with no_autocast(x.device):
            mixed = score.softmax(1).transpose(1, 2) @ value  # (B, 1, C / 2)
        return self.up(mixed.to(x.dtype)).sigmoid()

    def token_gate(self, x: Tensor) -> Tensor:
        """``(B, N, C) -> (B, N, 1)``."""
        mean, token = upcast(self.mean(x).mean(1), self.token(x))
        with no_autocast(x.device):
            if self.softmax_over == 'channels':
                mean = mean.softmax(-1)
            elif self.layout == 'sequential':
                token = token.softmax(1)
            scores = token @ mean.unsqueeze(-1)  # (B, N, 1)
            if self.softmax_over == 'tokens' and self.layout == 'parallel':
                scores = scores.softmax(1)
            return scores.sigmoid().to(x.dtype)

    def forward(
        self, x: Tensor, hw_shape: Tuple[int, int], mask: Optional[Tensor] = None
    ) -> Tensor:
        self.check_token_map(x, hw_shape)
        self.check_mask(mask)
        of_channels = x * self.channel_gate(x)
        if self.layout == 'sequential':
            return of_channels * self.token_gate(of_channels)
        return of_channels + x * self.token_gate(x)
