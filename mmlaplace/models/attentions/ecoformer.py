from typing import Any, Tuple

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.backend import exporting
from mmlaplace.ops.precision import no_autocast, upcast

from ..layers.checks import check_counts
from ..layers.unit_vectors import unit_vectors
from .base import Projected, QKVAttention
from .frame import Frame

OFFSETS = ('all', 'own')


class _Sign(torch.autograd.Function):
    """The sign, whose gradient is that of the identity between -1 and 1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sign()

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() < 1).to(grad.dtype)


@MODELS.register_module()
class EcoFormerAttention(QKVAttention):
    r"""Hashed attention of EcoFormer: queries and keys are the same, and become codes of b signs.

    Per head, with unit rows :math:`\hat q`, m learned anchors a, their means :math:`\mu`, b learned
    directions A, and the mean :math:`\bar D` of all squared distances of an image:

    .. math::
        D_{im} = \lVert \hat q_i - a_m \rVert^2, \quad
        h_i = \mathrm{sign}\big( A\, (e^{-D_i / 2 \bar D} - \mu) \big), \quad
        y_i = \frac{\sum_j (h_i \cdot h_j + b + 1)\, v_j}{\sum_j (h_i \cdot h_j + b + 1)}

    All weights are positive. Time is linear, :math:`O(N C b)`. The sign function passes on the
    gradient if its argument is between -1 and 1. Codes, and the linear before them, are fp32 under
    any autocast, because rounding would flip signs.

    The authors fit anchors, means and directions to the first images, from all pairs of tokens, and
    refit them at times. Here these are parameters with a random initialisation.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        num_bits: Signs b of a code. Default: 16.
        num_anchors: Anchors m of each head. Default: 25.
        offset: The values that b + 1 multiplies in the numerator. ``'all'`` (default): the sum of
            all values, as above. ``'own'``: the value of the token alone, as in the authors' code.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv='shared_qk')``. Queries are
            always the keys.

    Raises:
        ValueError: For an unknown ``offset``, or a number that is no integer of at least 1.

    Cost: NCb to mix; 3C² + 25C + 425h weights.

    Published: PVTv2-B0 70.4, B1 78.4, B2 81.3.

    Source: EcoFormer (arXiv 2209.09004).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import EcoFormerAttention
        >>> attention = EcoFormerAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(qkv='shared_qk')
    fixed_options = ('qkv', 'sr_ratio', 'key_positions')
    not_promised = dict(gradients='signs have the gradient of their argument')
    same_tokens = 'its keys are the queries'
    mixes_queries = True
    parts_in_fp32 = ('qkv',)
    no_prefix_tokens = ''
    tested_options = (dict(offset='own', num_bits=8), dict(rope=True, lepe_kernel=3))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        num_bits: int = 16,
        num_anchors: int = 25,
        offset: str = 'all',
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if offset not in OFFSETS:
            raise ValueError(f'offset must be one of {OFFSETS}, got {offset!r}')
        check_counts(num_bits=num_bits, num_anchors=num_anchors)
        self.num_bits = num_bits
        self.offset = offset
        anchors = unit_vectors(torch.randn(num_heads, num_anchors, self.head_dims))
        self.anchors = nn.Parameter(anchors)
        self.directions = nn.Parameter(torch.randn(num_heads, num_bits, num_anchors))
        # The kernel at the mean distance.
        self.means = nn.Parameter(torch.full((num_heads, 1, num_anchors), 0.5).neg().exp())

    def project(self, x: Tensor, hw_shape: Tuple[int, int]) -> Projected:
        with no_autocast(x.device):
            return super().project(x.to(self.anchors.dtype), hw_shape)

    def codes(self, x: Tensor) -> Tensor:
        """Signs ``(B, heads, N, b)`` of queries ``(B, heads, N, d)`` of at least fp32."""
        x = unit_vectors(x)
        anchors = self.anchors.to(x.dtype)
        means = self.means.to(x.dtype)
        directions = self.directions.to(x.dtype)
        squares = x.square().sum(-1, keepdim=True) + anchors.square().sum(-1).unsqueeze(-2)
        distances = squares - 2 * x @ anchors.transpose(-2, -1)  # (B, heads, N, m)
        kernel = (-distances / (2 * distances.mean((-2, -1), keepdim=True))).exp()
        projected = (kernel - means) @ directions.transpose(-2, -1)
        if not exporting():
            return _Sign.apply(projected)
        if not torch.is_grad_enabled():
            return projected.sign()
        inside = projected.clamp(-1, 1)  # a graph keeps no gradient but those of its operators
        return projected.sign() + (inside - inside.detach())

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, value = upcast(q, v)
            codes = self.codes(query)
            offset = self.num_bits + 1
            normaliser = codes @ codes.sum(-2).unsqueeze(-1) + offset * codes.shape[-2]
            others = value.sum(-2, keepdim=True) if self.offset == 'all' else value
            out = codes @ (codes.transpose(-2, -1) @ value) + offset * others
            return (out / normaliser).to(v.dtype)
