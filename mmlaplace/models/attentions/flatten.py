from typing import Any, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import linear_attention
from .base import QKVAttention
from .frame import Frame


@MODELS.register_module()
class FLattenAttention(QKVAttention):
    r"""Focused linear attention: features whose direction a power sharpens.

    With learned scales :math:`\tau` of each channel, a power p, and norms over all channels C of a
    token:

    .. math::
        u = (\mathrm{relu}(x) + 10^{-6}) / \tau, \quad
        f(x) = \lVert u \rVert \, u^p / \lVert u^p \rVert

        y_i = \frac{f(q_i) \, \frac{1}{n} \sum_j f(k_j)^T v_j}
                   {f(q_i) \cdot \frac{1}{n} \sum_j f(k_j) + 10^{-6}}

    A learned position is added to each key. A 5 x 5 depthwise convolution of the values is added to
    the output. Features and normalisers are fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        focusing_factor: The power p. Default: 3.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv='q_kv', key_positions=True,
            lepe_kernel=5, lepe_filters='head_channel')``.

    Raises:
        ValueError: If ``focusing_factor`` is not positive and finite.

    Cost: NCd to mix; 4C² + NC + C + 25d weights.

    Published: DeiT-T 74.1, Swin-T 82.1.

    Source: FLatten Transformer (arXiv 2308.00442).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import FLattenAttention
        >>> attention = FLattenAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(qkv='q_kv', key_positions=True, lepe_kernel=5, lepe_filters='head_channel')
    no_prefix_tokens = ''
    tested_options = (dict(sr_ratio=2), dict(focusing_factor=2, key_positions=False, rope=True))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        focusing_factor: float = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if not 0 < focusing_factor < float('inf'):
            raise ValueError(f'focusing_factor must be positive and finite, got {focusing_factor}')
        self.focusing_factor = focusing_factor
        self.scale = nn.Parameter(torch.zeros(embed_dims))
        if self.key_positions is not None:
            nn.init.zeros_(self.key_positions)

    def focus(self, x: Tensor) -> Tensor:
        """The features f of ``(B, heads, N, d)``; norms are over the channels of all heads."""
        tau = F.softplus(self.scale.to(x.dtype)).unflatten(0, (self.num_heads, 1, -1))
        u = (F.relu(x) + 1e-6) / tau
        # The largest channel cancels. It keeps powers of small channels from becoming zero.
        powered = (u / u.amax((1, 3), keepdim=True).detach()) ** self.focusing_factor
        norm = torch.linalg.vector_norm(u, dim=(1, 3), keepdim=True)
        powered_norm = torch.linalg.vector_norm(powered, dim=(1, 3), keepdim=True)
        return powered * (norm / powered_norm)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key = upcast(q, k)
            return linear_attention(self.focus(query), self.focus(key), v)
