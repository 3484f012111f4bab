from typing import Tuple

from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import elu_plus_one, linear_attention
from .base import QKVAttention
from .frame import Frame


@MODELS.register_module()
class RALAAttention(QKVAttention):
    r"""Rank-augmented linear attention: the mean query weighs keys, and a gate scales the output.

    Per head, with :math:`\phi(x) = \mathrm{elu}(x) + 1`, the keys' weights a of mean 1, and the
    rotation R of rotary positions:

    .. math::
        a = N\, \mathrm{softmax}_j\big( \mathrm{mean}_i\, \phi(q_i) \cdot \phi(k_j) / \sqrt{d} \big)

        y_i = \frac{R\phi(q_i) \, \frac{1}{N} \sum_j a_j R\phi(k_j)^T v_j}
                   {\phi(q_i) \cdot \frac{1}{N} \sum_j a_j \phi(k_j) + 10^{-6}}

        \mathrm{out} = \mathrm{proj}\big( (Y + \mathrm{DWConv}(V)) \odot G \big)

    G is a linear of the input. Time is linear, :math:`O(N C d)`. Features and normalisers are fp32
    under any autocast.

    Only the numerator is rotated, as in the authors' code. Rows of weights therefore do not sum to
    one, but to 0.6 to 0.9 at the start, and may be negative. Heads of the authors' models have 64
    or 96 channels, and the last two stages of these models have softmax attention. Prefix tokens
    are in all sums, and R does not turn them.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        **frame: Fields of :class:`Frame` that differ from ``Frame(gate=True, rope=True,
            rope_form='pairs', rope_on='features', lepe_kernel=5)``.

    Cost: NCd to mix; 5C² + 25C weights.

    Published: RAVLT-S 84.4; ADE20K UperNet RAVLT-S 50.7, B 52.5.

    Source: RALA (arXiv 2411.07635).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import RALAAttention
        >>> attention = RALAAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(gate=True, rope=True, rope_form='pairs', rope_on='features', lepe_kernel=5)
    rotates_features = True
    mixes_queries = True
    no_prefix_tokens = ''
    tested_options = (dict(rope_on='query_key'), dict(rope=False, sr_ratio=2))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key = upcast(q, k)
            query, key = elu_plus_one(query), elu_plus_one(key)
            scores = key @ query.mean(-2).unsqueeze(-1) * self.head_dims**-0.5  # (B, heads, n, 1)
            key = key * (scores.softmax(-2) * key.shape[-2])
            numerator = self.turn_features(query, hw_shape), self.turn_features(key, hw_shape)
            return linear_attention(query, key, v, numerator=numerator)
