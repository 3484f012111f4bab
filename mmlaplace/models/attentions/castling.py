import math
from typing import Any, Tuple

import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers.pairs import check_pairs_fit
from ..layers.token_conv import TokenConv
from ..layers.unit_vectors import unit_vectors
from .base import QKVAttention
from .frame import Frame


@MODELS.register_module()
class CastlingAttention(QKVAttention):
    r"""Linear angular attention of Castling-ViT.

    Per head, with queries and keys of unit length:

    .. math::
        t_i = \tfrac{1}{2} v_i + \tfrac{1}{\pi} \hat q_i \sum_j \hat k_j^T v_j, \quad
        y_i = t_i / \lVert t_i \rVert

    The angular kernel is :math:`\frac{1}{2} + \frac{1}{\pi} \hat q \cdot \hat k` to the first
    order. For the first term, the authors' code takes half of the token's own value instead of half
    of the sum of all values. This class follows the code, which defines the published attention.
    The code also scales the output to unit length, which loses the magnitude of values. So the
    output of a head is at most 1, while the local branch grows with the values. Time is :math:`O(N
    d^2)` per head. It has no parameters of its own. Norms and sums are fp32 under any autocast, and
    a token of zeros gives zero.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        sparse_softmax: Whether to add a branch that mixes the values by the softmax weights above
            0.02, before the output is scaled to unit length. This branch has a weight for each pair
            of tokens. In maps of many tokens hardly any weight is above 0.02. Default: False.
        conv_kernel_size: Taps of the authors' convolution of the values, which runs along the
            flattened tokens, with one filter for each head. They have 9. The frame's
            ``lepe_kernel`` replaces it by a convolution in two dimensions. It leaves out prefix
            tokens. Default: 0, none.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv_bias=False, lepe_kernel=3,
            lepe_filters='head', lepe_bias=False)``. Each token needs its own value, so there is no
            ``sr_ratio``.

    Raises:
        ValueError: For an even or negative ``conv_kernel_size``. In the forward, for a map whose
            matrices of pairs would need more than 4 GB with ``sparse_softmax``.

    Cost: NCd to mix; 4C² + 9h weights.

    Published: FLatten's table: 70.8, 79.4.

    Source: Castling-ViT (arXiv 2211.10526).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import CastlingAttention
        >>> attention = CastlingAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    threshold = 0.02
    mixes_tokens = False
    frame = Frame(qkv_bias=False, lepe_kernel=3, lepe_filters='head', lepe_bias=False)
    fixed_options = ('sr_ratio',)
    same_tokens = 'a token mixes its own value'
    no_prefix_tokens = ''
    tested_options = (dict(sparse_softmax=True, conv_kernel_size=9), dict(rope=True, lepe_kernel=0))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        sparse_softmax: bool = False,
        conv_kernel_size: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.sparse_softmax = sparse_softmax
        self.conv = TokenConv(num_heads, conv_kernel_size) if conv_kernel_size else None

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        if self.sparse_softmax:
            check_pairs_fit(self, q, k, (3, 3))
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            summed = unit_vectors(key).transpose(-2, -1) @ value  # (B, heads, d, d)
            out = 0.5 * value + unit_vectors(query) @ summed / math.pi
            if self.sparse_softmax:
                scores = query @ key.transpose(-2, -1) * self.head_dims**-0.5
                out = out + F.threshold(scores.softmax(-1), self.threshold, 0) @ value
            out = unit_vectors(out)  # the authors' code gives NaN at 0
            if self.conv is not None:
                local = self.conv(self.of_map(value).to(self.conv.weight.dtype))
                out = out + self.after_prefix(local).to(out.dtype)
            return out.to(v.dtype)
