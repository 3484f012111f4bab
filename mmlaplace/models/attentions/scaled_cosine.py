import math
from typing import Any, Optional, Set, Tuple

import torch
import torch.nn as nn
from mmengine.model import Sequential
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import softmax_attention
from ..layers.block import own_bias
from ..layers.pairs import check_pairs_fit, offsets_of_pairs
from ..layers.tables import computed_once
from ..layers.unit_vectors import unit_vectors
from .base import Projected, QKVAttention

MOST_LOG_SCALE = math.log(100.0)
LARGEST_BIAS = 16.0
APART = -100.0  # added to the scores of pairs that a mask keeps apart, as in the authors' code


@MODELS.register_module()
class ScaledCosineAttention(QKVAttention):
    r"""Softmax of scaled cosines, and a bias that a small network computes from each offset.

    .. math:: \mathrm{softmax}(\tau \hat Q \hat K^T + 16\, \sigma(\mathrm{mlp}(\delta)))\, V

    :math:`\hat Q` and :math:`\hat K` have rows of length 1. Each head learns
    :math:`\tau = \exp(\min(t, \log 100))`. The offset o of two tokens in rows, and that in columns,
    is on a log scale: :math:`\delta = \mathrm{sign}(o) \log_8(1 + 8 |o| / (w - 1))`, for windows of
    w tokens a side. So a network that was trained in small windows serves larger ones. Time is
    quadratic in the tokens. Lengths, scores and the bias are fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        pretrained_window: Side w of the windows of an earlier training, whose offsets are kept.
            Default: 0, that of ``input_resolution``.
        hidden_dims: Hidden channels of the network. Default: 512.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``. Keys have no bias. Queries
            and keys must be of the same tokens, so there is no ``sr_ratio``.

    Raises:
        ValueError: For a ``pretrained_window`` of one token, or less than 0. In the forward, for a
            map whose bias would need more than 4 GB.

    Cost: N²C to mix; 4C² + 512h + 2h weights.

    Published: in windows of 8, at 256 pixels: T 81.8, S 83.7, B 84.2.

    Source: Swin Transformer V2 (arXiv 2111.09883).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import ScaledCosineAttention
        >>> attention = ScaledCosineAttention(64, num_heads=2, input_resolution=(8, 8))
        >>> attention(torch.randn(1, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([1, 45, 64])
    """

    accepts_mask = True
    not_promised = dict(linear='each query reads each key')
    fixed_options = ('sr_ratio', 'qkv')
    no_multihead = no_prefix_tokens = 'its bias is of the offset of two places on a map'
    tested_options = (dict(pretrained_window=6),)
    parts_in_fp32 = ('offset_bias',)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        pretrained_window: int = 0,
        hidden_dims: int = 512,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        window = pretrained_window
        if not isinstance(window, int) or window < 0 or window == 1:
            raise ValueError(
                'pretrained_window must be a side of at least 2 tokens, or 0 for that of the '
                f'training here, got {window!r}'
            )
        sides = (window, window) if window else self.input_resolution
        self.pretrained_window = max(sides)  # as the weights have it, which checkpoints ask for
        self.longest = tuple(max(side - 1, 1) for side in sides)
        self.logit_scale = nn.Parameter(torch.full((num_heads, 1, 1), math.log(10.0)))
        self.offset_bias = Sequential(
            nn.Linear(2, hidden_dims), nn.ReLU(), nn.Linear(hidden_dims, num_heads, bias=False)
        )

    def project(self, x: Tensor, hw_shape: Tuple[int, int]) -> Projected:
        projected = super().project(x, hw_shape)
        if not self.frame.qkv_bias:
            return projected
        # Keys have no bias. Its part in the linear stays zero, as its derivative is zero.
        bias = own_bias(self.qkv)
        if bias is None:
            bias = self.qkv(torch.zeros_like(x[:1, :1]))  # what it makes of no input
        of_keys = bias.split(self.parts, dim=-1)[1].to(projected.k.dtype)
        return projected._replace(k=projected.k - of_keys)

    def mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hw_shape: Tuple[int, int],
        mask: Optional[Tensor] = None,
    ) -> Tensor:
        # The bias is that of one image, beside which its indices count.
        check_pairs_fit(self, q[:1], k[:1], (3, 5))
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            scale = self.logit_scale.to(query.dtype).clamp(max=MOST_LOG_SCALE).exp()
            table = self._table(hw_shape, query)
            rows, columns = computed_once(offsets_of_pairs, *hw_shape, like=query)
            bias = table[:, :, rows, columns]  # (1, heads, N, N)
            if mask is not None:
                bias = torch.where(mask, bias, bias + APART)
            query = unit_vectors(query) * scale
            mixed = softmax_attention(query, unit_vectors(key), value, attn_mask=bias, scale=1.0)
            return mixed.to(v.dtype)

    def _table(self, hw_shape: Tuple[int, int], like: Tensor) -> Tensor:
        """The bias of every offset of rows and of columns, ``(1, heads, 2 * H - 1, 2 * W - 1)``."""
        sizes = (tuple(hw_shape), self.longest, like.dtype, self.logit_scale.dtype)
        pairs = computed_once(scaled_offsets, *sizes, like=like)
        scores = self.offset_bias(pairs).to(like.dtype)  # (2 * H - 1, 2 * W - 1, heads)
        return (LARGEST_BIAS * scores.sigmoid()).permute(2, 0, 1)[None]

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters without weight decay, as in the authors' code."""
        layers = {f'offset_bias.{name}' for name, _ in self.offset_bias.named_parameters()}
        return {'logit_scale'} | layers


def scaled_offsets(
    hw_shape: Tuple[int, int],
    longest: Tuple[int, int],
    computed_in: torch.dtype,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Every offset of rows and of columns on its log scale, ``(2 * H - 1, 2 * W - 1, 2)``."""
    scaled = []
    for side, most in zip(hw_shape, longest):
        steps = torch.arange(1 - side, side, dtype=computed_in, device=device)
        scaled.append(steps.sign() * (1 + steps.abs() * 8 / most).log2() / 3)
    rows, columns = scaled[0][:, None], scaled[1]
    return torch.stack([rows + 0 * columns, columns + 0 * rows], dim=-1).to(dtype)
