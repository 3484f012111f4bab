from typing import Tuple

from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import elu_plus_one
from .base import QKVAttention
from .frame import Frame


@MODELS.register_module()
class MALAAttention(QKVAttention):
    r"""Magnitude-aware linear attention: the norm of a query sharpens its weights, as in softmax.

    Per head, with :math:`\phi(x) = \mathrm{elu}(x) + 1` and the rotation R of rotary positions:

    .. math::
        z_i = \phi(q_i) \cdot \mathrm{mean}_j\, \phi(k_j) / \sqrt{d}

        w_{ij} = \frac{R\phi(q_i) \cdot R\phi(k_j)}{N \sqrt{d}}
                 \Big( 1 + \frac{1}{z_i + 10^{-6}} \Big) - \frac{z_i}{N}, \quad
        \mathrm{out} = \mathrm{proj}\big( (W V + \mathrm{DWConv}(V)) \odot G \big)

    G is a linear of the input. Time is linear, :math:`O(N C d)`. Features and normalisers are fp32
    under any autocast.

    Without R, rows of weights sum to one. Only the numerator is rotated, as in the authors' code.
    Rows then sum to -1.9 to 0.2 at the start, and to less for larger features: set ``rope=False``
    if the rows have to sum to one. The two terms have opposite signs, so their sum loses some
    digits. Prefix tokens are in all sums, and R does not turn them.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        **frame: Fields of :class:`Frame` that differ from ``Frame(gate=True, rope=True,
            rope_form='pairs', rope_on='features', lepe_kernel=5)``.

    Cost: NCd to mix; 5C² + 25C weights.

    Published: MAViT-T 82.9, S 84.7, B 85.7, L 86.0.

    Source: MALA (arXiv 2507.00698).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import MALAAttention
        >>> attention = MALAAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    eps = 1e-6  # keeps a query without a key from a division by zero
    frame = Frame(gate=True, rope=True, rope_form='pairs', rope_on='features', lepe_kernel=5)
    rotates_features = True
    no_prefix_tokens = ''
    tested_options = (dict(rope_on='query_key'), dict(rope=False, sr_ratio=2))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = elu_plus_one(query) * self.head_dims**-0.5, elu_plus_one(key)
            mean_score = query @ key.mean(-2).unsqueeze(-1)  # z, (B, heads, N, 1)
            query, key = (self.turn_features(x, hw_shape) for x in (query, key))
            summed = key.transpose(-2, -1) @ value / key.shape[-2]  # (B, heads, d, d)
            mixed = query @ summed * (1 + 1 / (mean_score + self.eps))
            return (mixed - mean_score * value.mean(-2, keepdim=True)).to(v.dtype)
