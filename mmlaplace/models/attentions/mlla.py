from typing import Any, Tuple

from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import RotaryOfAllHeads, elu_plus_one, linear_attention
from .base import QKVAttention
from .frame import Frame


@MODELS.register_module()
class MLLAAttention(QKVAttention):
    r"""The attention of MLLA (Mamba-like linear attention, later MILA). The values are the input.

    Per head, with :math:`\phi(x) = \mathrm{elu}(x) + 1` and the rotation R of rotary positions:

    .. math::
        y_i = \frac{R\phi(q_i) \, \frac{1}{N} \sum_j R\phi(k_j)^T x_j}
                   {\phi(q_i) \cdot \frac{1}{N} \sum_j \phi(k_j) + 10^{-6}}, \quad
        \mathrm{out} = Y + \mathrm{DWConv}(X)

    There is no linear for the values and none at the end. The authors' block has a gate and two
    linears around it. Time is linear, :math:`O(N C d)`. Features and normalisers are fp32 under any
    autocast.

    Only the numerator is rotated, as in the authors' code, so rows of weights do not sum to one.
    Rotary positions are those of :class:`~mmlaplace.models.layers.RotaryOfAllHeads`: the first half
    of the heads encodes rows only, and the second half columns only. Prefix tokens are in all sums,
    and R does not turn them.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv='qk', rope=True,
            rope_form='pairs', rope_on='features', lepe_kernel=3, proj=False)``. The form of the
            rotary positions is fixed.

    Cost: NCd to mix; 2C² + 9C weights.

    Published: T 83.5, S 84.4, B 85.3; ADE20K UperNet B 51.9.

    Source: MLLA (arXiv 2405.16605).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import MLLAAttention
        >>> attention = MLLAAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(
        qkv='qk', rope=True, rope_form='pairs', rope_on='features', lepe_kernel=3, proj=False
    )
    fixed_options = ('rope_form', 'rope_on')
    rotates_features = True
    no_prefix_tokens = ''
    tested_options = (dict(rope=False), dict(qkv='qkv', proj=True, gate=True))

    def __init__(
        self, embed_dims: int, num_heads: int, input_resolution: Tuple[int, int], **kwargs: Any
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if self.rotary is not None:
            self.rotary = RotaryOfAllHeads(embed_dims)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key = upcast(q, k)
            query, key = elu_plus_one(query), elu_plus_one(key)
            numerator = self.turn_features(query, hw_shape), self.turn_features(key, hw_shape)
            return linear_attention(query, key, v, numerator=numerator)
