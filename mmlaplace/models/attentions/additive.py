from typing import List, Optional, Tuple, Union

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers.checks import check_counts
from ..layers.unit_vectors import unit_vectors
from .base import BaseAttention


@MODELS.register_module()
class AdditiveAttention(BaseAttention):
    r"""Efficient additive attention of SwiftFormer: one sum of all queries multiplies every key.

    With rows of Q and K brought to unit length and a learned vector w:

    .. math::
        s = Q w, \quad g = \sum_i \frac{s_i}{\lVert s \rVert}\, q_i, \quad
        \mathrm{out} = W_o \big( W_p (g \odot K) + Q \big)

    Time is linear, :math:`O(N C^2)`, and the state is one vector. There are no heads and no values,
    and tokens know no positions. Norms and the sum run in fp32 under any autocast.

    The weights :math:`s / \lVert s \rVert` have unit length over the tokens and either sign, so g
    grows with :math:`\sqrt N`, and its scale depends on the resolution. The formula adds Q. A host
    adds its own residual branch too.

    Args:
        embed_dims, input_resolution, num_prefix_tokens, init_cfg: As in :class:`BaseAttention`.
            Prefix tokens are in all sums.
        num_heads: Must divide ``embed_dims``, and has no other effect.
        expansion: Ratio of the channels of queries and keys to those of the output. The authors
            call it heads, and their models have 1. Default: 1.
        out_dims: Channels of the output. A value other than C needs a place without a residual
            connection around the attention. Default: C.

    Raises:
        ValueError: If ``expansion`` or ``out_dims`` is no integer of at least 1.

    Cost: NC to mix; 4C² + C weights.

    Published: XS 75.7, S 78.5, L1 80.9, L3 83.0.

    Source: SwiftFormer (arXiv 2303.15446).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import AdditiveAttention
        >>> attention = AdditiveAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    mixes_tokens = False
    no_prefix_tokens = ''
    tested_options = (dict(expansion=2),)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        expansion: int = 1,
        out_dims: Optional[int] = None,
        num_prefix_tokens: int = 0,
        init_cfg: Union[dict, List[dict], None] = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg, num_prefix_tokens)
        out_dims = embed_dims if out_dims is None else out_dims
        check_counts(expansion=expansion, out_dims=out_dims)
        channels = expansion * out_dims
        self.query = nn.Linear(embed_dims, channels)
        self.key = nn.Linear(embed_dims, channels)
        self.score = nn.Parameter(torch.randn(channels, 1))
        self.mixed_proj = nn.Linear(channels, channels)
        self.proj = nn.Linear(channels, out_dims)

    def forward(
        self, x: Tensor, hw_shape: Tuple[int, int], mask: Optional[Tensor] = None
    ) -> Tensor:
        self.check_token_map(x, hw_shape)
        self.check_mask(mask)
        q, k = self.query(x), self.key(x)  # (B, N, D)
        with no_autocast(x.device):
            query, key, score = upcast(q, k, self.score)
            query, key = unit_vectors(query), unit_vectors(key)
            weights = unit_vectors(query @ score, dim=1)  # (B, N, 1)
            total = weights.transpose(1, 2) @ query  # (B, 1, D)
            mixed, query = (total * key).to(q.dtype), query.to(q.dtype)
        return self.proj(self.mixed_proj(mixed) + query)
