from typing import Any, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from .base import QKVAttention


@MODELS.register_module()
class L2ViTAttention(QKVAttention):
    r"""Enhanced linear attention of L2ViT: ReLU features, and a normaliser with a lower bound.

    Per head, with a learned temperature :math:`\tau`:

    .. math::
        y_i = \tau\, \frac{\mathrm{relu}(q_i) \sum_j \mathrm{relu}(k_j)^T v_j}
                         {\max\big( \mathrm{relu}(q_i) \cdot \sum_j \mathrm{relu}(k_j),\; 100 \big)}

    Time is linear, :math:`O(N C d)`. Sums and the division are fp32 under any autocast.

    The bound is on a sum over all tokens, so the layer depends on the size of the map. At the
    start, most tokens of a 7 x 7 map are below it, and none of a 14 x 14 map. The authors' block
    has a local branch of its own after the attention.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        least_sum: The least value of the normaliser. Default: 100.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Raises:
        ValueError: If ``least_sum`` is not positive and finite.

    Cost: NCd to mix; 4C² + h weights.

    Published: T 83.1, S 84.1, B 84.4.

    Source: L2ViT (arXiv 2501.16182).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import L2ViTAttention
        >>> attention = L2ViTAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    no_prefix_tokens = ''
    tested_options = (dict(least_sum=1, rope=True, lepe_kernel=3), dict(sr_ratio=2))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        least_sum: float = 100,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if not 0 < least_sum < float('inf'):
            raise ValueError(f'least_sum must be positive and finite, got {least_sum}')
        self.least_sum = least_sum
        self.temperature = nn.Parameter(torch.full((num_heads, 1, 1), self.head_dims**-0.5))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = F.relu(query), F.relu(key)
            normaliser = query @ key.sum(-2).unsqueeze(-1)  # (B, heads, N, 1)
            mixed = query @ (key.transpose(-2, -1) @ value)
            mixed = mixed / normaliser.clamp(min=self.least_sum)
            return (mixed * self.temperature.to(mixed.dtype)).to(v.dtype)
