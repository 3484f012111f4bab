from typing import Any, Tuple

from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers.unit_vectors import unit_vectors
from .base import QKVAttention


@MODELS.register_module()
class HydraAttention(QKVAttention):
    r"""Hydra attention: as many heads as channels.

    With queries and keys brought to unit length over all channels C of a token:

    .. math:: y_i = \hat q_i \odot \sum_j \hat k_j \odot v_j

    Time is O(N C). It has no parameters of its own, and ``num_heads`` has no effect without rotary
    positions. Weights may be negative and their sum grows with the number of tokens. A token of
    zeros gives zero. Everything is fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        scaled: Whether the sum is multiplied by :math:`N_0 / N`, with the number :math:`N_0` of
            tokens at ``input_resolution``, with prefix tokens. If not, as in the paper, the output
            for four times the tokens is about four times as large. Default: True.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Cost: NC to mix; 4C² weights.

    Published: FLatten's table: 68.3, 80.7.

    Source: Hydra Attention (arXiv 2209.07484). The authors have released no code.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import HydraAttention
        >>> attention = HydraAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    no_prefix_tokens = ''
    tested_options = (dict(scaled=False, lepe_kernel=3),)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        scaled: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.scaled = scaled

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = (self.merge_heads(x) for x in upcast(q, k, v))  # (B, N, C)
            # The paper's formula gives NaN for a token of zeros.
            query, key = (unit_vectors(x) for x in (query, key))
            summed = (key * value).sum(1, keepdim=True)  # (B, 1, C)
            if self.scaled:
                height, width = self.kv_shape(self.input_resolution)
                start = height * width + self.num_prefix_tokens
                summed = summed * (start / key.shape[1])
            return self.split_heads((query * summed).to(v.dtype))
