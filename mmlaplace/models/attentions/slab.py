from typing import Any, Tuple

import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from ..layers import linear_attention
from .base import QKVAttention
from .frame import Frame


@MODELS.register_module()
class SLABAttention(QKVAttention):
    r"""SLAB's simplified linear attention: ReLU features, positions of the keys, and a convolution.

    .. math::
        y_i = \frac{\mathrm{relu}(q_i) \sum_j \mathrm{relu}(k_j + p_j)^T v_j}
                   {\mathrm{relu}(q_i) \cdot \sum_j \mathrm{relu}(k_j + p_j) + \epsilon}

    A 5 x 5 depthwise convolution of the values is added. It has one filter for each channel of a
    head, which all heads share. Time is :math:`O(N d^2)` per head. Positions p are N C parameters,
    which start at zero. A query without a positive channel gives zero. Features and normalisers are
    fp32 under any autocast. The paper's norm, which changes from LayerNorm to BatchNorm, is
    :class:`~mmlaplace.models.layers.PRepBN`.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        eps: :math:`\epsilon`. Default: 1e-6.
        **frame: Fields of :class:`Frame` that differ from ``Frame(key_positions=True,
            lepe_kernel=5, lepe_filters='head_channel')``.

    Cost: NCd to mix; 4C² + NC + 25d weights.

    Published: DeiT-T 74.3, PVT-T 76.5, Swin-T 81.8, with its own norm.

    Source: SLAB (arXiv 2405.11582).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SLABAttention
        >>> attention = SLABAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(key_positions=True, lepe_kernel=5, lepe_filters='head_channel')
    no_prefix_tokens = ''
    tested_options = (dict(sr_ratio=2), dict(key_positions=False, rope=True))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        eps: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.eps = eps
        if self.key_positions is not None:
            nn.init.zeros_(self.key_positions)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        return linear_attention(q, k, v, self.eps, features='relu', eps_of_sum=True)
