from typing import Any, List, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.backend import exporting, split_at
from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import RotaryEmbedding2D, linear_attention
from .base import QKVAttention
from .frame import Frame

LARGEST = 35.0  # exponent of a feature


@MODELS.register_module()
class PolaPPAttention(QKVAttention):
    r"""PolaFormer++: same-signed and opposite-signed pairs, sharpened by exponentials of channels.

    Per head, with :math:`x^\pm = \mathrm{relu}(\pm x)`, and learned temperatures
    :math:`s, o = \mathrm{sigmoid}(\cdot)` of each channel and sign:

    .. math::
        \phi_s(q) = e^{s \odot [q^+, q^-]} - 1, \quad
        \phi_o(q) = e^{o \odot [q^-, q^+]} - 1, \quad
        \psi(k) = e^{[k^+, k^-]} - 1

        Y_s = \frac{R\phi_s(Q) \, \frac{1}{N} (R\psi(K))^T V_1}
                   {\phi_s(Q) \, \frac{1}{N} \psi(K)^T 1 + 10^{-6}}, \quad
        Y_o = \frac{R\phi_o(Q) \, \frac{1}{N} (R\psi(K))^T V_2}
                   {\phi_o(Q) \, \frac{1}{N} \psi(K)^T 1 + 10^{-6}}

        \mathrm{out} = \mathrm{proj}\big( ([Y_s, Y_o] + \mathrm{DWConv}(V)) \odot G \big)

    :math:`[V_1, V_2]` are the halves of each head's channels. R is the rotation of rotary positions
    over all 2d channels of the features. As in the authors' code, it acts only on the numerator, so
    rows of weights need not sum to one. G is a gate, a linear of X. Time is linear,
    :math:`O(N C d)`. Prefix tokens are in all sums, and R does not turn them.

    Features and normalisers are fp32 under any autocast. Larger activations than 35 count as 35, as
    fp32 could not hold sums of products of their features.

    The authors' backbone is :class:`PolaFormerPP`.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        **frame: Fields of :class:`Frame` that differ from ``Frame(gate=True, rope=True,
            rope_form='pairs', rope_on='features', lepe_kernel=5)``.

    Cost: 2NCd to mix; 5C² + 29C weights.

    Published: PolaFormer++-b0 76.9, b1 79.1, b2 82.8, b3 84.3, b4 85.4, b5 85.6.

    Source: PolaFormer (arXiv 2501.15061), whose authors call this version PolaFormer++
    (https://github.com/ZacharyMeng/PolaFormerPP).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PolaPPAttention
        >>> attention = PolaPPAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    eps = 1e-6
    frame = Frame(gate=True, rope=True, rope_form='pairs', rope_on='features', lepe_kernel=5)
    rotates_features = True
    no_prefix_tokens = ''
    tested_options = (dict(rope_on='query_key', gate=False), dict(rope=False, sr_ratio=2))

    def __init__(
        self, embed_dims: int, num_heads: int, input_resolution: Tuple[int, int], **kwargs: Any
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if self.frame.rope and self.frame.rope_on == 'features':
            self.rotary = RotaryEmbedding2D(2 * self.head_dims, form=self.frame.rope_form)
        shape = num_heads, 1, 2 * self.head_dims
        self.same_temperature = nn.Parameter(torch.zeros(shape))
        self.opposite_temperature = nn.Parameter(torch.zeros(shape))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        dims = int(v.shape[-1])  # a trace has a tensor
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            positive, negative = rectified(query), rectified(-query)
            key = exp_minus_1(torch.cat([rectified(key), rectified(-key)], dim=-1))
            turned_key = self.turn_features(key, hw_shape)  # (B, heads, n, 2d)
            first, second = split_at(value, (dims + 1) // 2, -1)

            def stream(signs: List[Tensor], temperature: Tensor, half: Tensor) -> Tensor:
                sharpness = temperature.to(query.dtype).sigmoid()
                features = exp_minus_1(torch.cat(signs, dim=-1) * sharpness)  # (B, heads, N, 2d)
                numerator = self.turn_features(features, hw_shape), turned_key
                return linear_attention(features, key, half, self.eps, numerator)

            same = stream([positive, negative], self.same_temperature, first)
            opposite = stream([negative, positive], self.opposite_temperature, second)
            return torch.cat([same, opposite], dim=-1).to(v.dtype)


def rectified(x: Tensor) -> Tensor:
    """The positive part, up to the largest exponent. Its derivative at zero is zero.

    One ``hardtanh`` has a gradient of other strides than a graph of ``torch.compile`` expects.
    """
    return F.relu(x).clamp(max=LARGEST)


def exp_minus_1(x: Tensor) -> Tensor:
    """``torch.expm1``, which ONNX does not have. It is exact where x is small."""
    return x.exp() - 1 if exporting() else torch.expm1(x)
