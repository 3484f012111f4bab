import math
from typing import Any, List, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import linear_attention
from ..layers.signed_powers import magnitude
from ..layers.unit_vectors import lengths, unit_vectors
from .base import QKVAttention
from .frame import Frame

DIRECTIONS = ('signs', 'cosine')
# Of the angles of 'cosine', as MiTA's authors compare with NaLaFormer (QishuaiWen/MiTA, 432ce41).
STEEPNESS = 20.0


@MODELS.register_module()
class NaLaAttention(QKVAttention):
    r"""Norm-aware linear attention: the norm of a query is the power that sharpens its features.

    Per head, with the power :math:`p_i = 3\,(1/2 + \tanh \lVert q_i \rVert)` of each query:

    .. math::
        \hat q = \frac{q}{\lVert q \rVert}, \quad
        \phi(q) = [\mathrm{relu}(\hat q)^p, \mathrm{relu}(-\hat q)^p], \quad
        \psi(k) = [\mathrm{relu}(k)^3, \mathrm{relu}(-k)^3]

        y_i = \frac{R\phi(q_i) \, \frac{1}{N} \sum_j R\psi(k_j)^T v_j}
                   {\phi(q_i) \cdot \frac{1}{N} \sum_j \psi(k_j) + 10^{-6}}, \quad
        \mathrm{out} = \mathrm{proj}\big(
            \mathrm{LN}(Y + \mathrm{DWConv}(V)) \odot \mathrm{silu}(G) \big)

    R is the rotation of rotary positions, which acts on each of the two halves of the features. G
    is a linear of the input. Time is linear, :math:`O(N C d)`. Features and normalisers are fp32
    under any autocast.

    These are the features of the authors' code. The paper compares directions by a cosine instead,
    which also weighs channels of opposite signs. With the angles
    :math:`\theta(x) = \frac{\pi}{4} \tanh(20\, x / \lVert x \rVert)`:

    .. math::
        \phi(q) = [|\hat q|^p \cos \theta(q), |\hat q|^p \sin \theta(q)], \quad
        \psi(k) = [|k|^3 \cos \theta(k), |k|^3 \sin \theta(k)]

    A channel then adds :math:`|\hat q|^p |k|^3 \cos(\theta(q) - \theta(k)) \geq 0`.

    Only the numerator is rotated, as in the authors' code: rows of weights sum to -0.1 to 2.4 at
    the start. In trained models they were seen up to thousands, where the normaliser is small and
    the rotated products are not. So the mixed values stay in fp32 until the norm has scaled them.
    Where activations are small, the cube brings the normaliser to its epsilon, and the local branch
    remains. A query of zeros gives zeros here, and NaN in the authors' code. Prefix tokens are in
    all sums, and R does not turn them.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        directions: How directions are compared: ``'signs'`` (default), as in the authors' code, or
            ``'cosine'``, as in the paper.
        **frame: Fields of :class:`Frame` that differ from ``Frame(gate=True, rope=True,
            rope_form='pairs', rope_on='features', lepe_kernel=5)``. The gate cannot be turned off.

    Raises:
        ValueError: For unknown ``directions``.

    Cost: 2NCd to mix; 5C² + 26C weights.

    Published: XT 79.1, T 82.6, S 84.3, B 85.2, L 85.7.

    Source: NaLaFormer (arXiv 2506.21137).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import NaLaAttention
        >>> attention = NaLaAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(gate=True, rope=True, rope_form='pairs', rope_on='features', lepe_kernel=5)
    fixed_options = ('gate',)
    rotates_features = True
    no_prefix_tokens = ''
    tested_options = (dict(rope_on='query_key', directions='cosine'), dict(rope=False, sr_ratio=2))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        directions: str = 'signs',
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if directions not in DIRECTIONS:
            raise ValueError(f'directions must be one of {DIRECTIONS}, got {directions!r}')
        self.directions = directions
        self.norm = WideLayerNorm(embed_dims)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            power = 3 * (0.5 + lengths(query).tanh())  # (B, heads, N, 1)
            query = unit_vectors(query)
            # A power with a tensor for its exponent has second derivatives that are NaN at zero.
            powers = (power * magnitude(query).log()).exp()
            if self.directions == 'signs':
                queries = [powers.masked_fill(wrong, 0.0) for wrong in (query <= 0, query >= 0)]
                keys = [F.relu(x) ** 3 for x in (key, -key)]
            else:
                queries = parts_of_angles(powers.masked_fill(query == 0, 0.0), query)
                keys = parts_of_angles(key.abs() ** 3, unit_vectors(key))
            numerator = tuple(
                torch.cat([self.turn_features(x, hw_shape) for x in halves], -1)
                for halves in (queries, keys)
            )
            query, key = torch.cat(queries, -1), torch.cat(keys, -1)
            return linear_attention(query, key, value, 1e-6, numerator)  # fp32, see apply_gate

    def apply_gate(self, out: Tensor, gate: Tensor) -> Tensor:
        """The norm of the output ``(B, N, C)`` times the SiLU of the gate."""
        # Before the norm a half could not hold it.
        return self.norm(out).to(gate.dtype) * F.silu(gate)


def parts_of_angles(sizes: Tensor, directions: Tensor) -> List[Tensor]:
    """Both parts of vectors of these sizes, at an angle of up to pi / 4 for each channel."""
    angles = math.pi / 4 * (STEEPNESS * directions).tanh()
    return [sizes * angles.cos(), sizes * angles.sin()]


class WideLayerNorm(nn.LayerNorm):
    """``torch.nn.LayerNorm`` that computes and returns at least fp32, whatever its weights are."""

    def forward(self, x: Tensor) -> Tensor:
        with no_autocast(x.device):
            x, weight, bias = upcast(x, self.weight, self.bias)
            return F.layer_norm(x, self.normalized_shape, weight, bias, self.eps)
