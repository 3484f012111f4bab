from typing import Any, Optional, Tuple

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import linear_attention
from ..layers.checks import check_counts
from .base import QKVAttention

FORMS = ('per_sign', 'joint')


class HedgehogFeatures(nn.Module):
    """The learned features of queries, or of keys, see :class:`HedgehogAttention`."""

    def __init__(
        self, num_heads: int, head_dims: int, feature_dims: int, form: str, skip: bool, floor: float
    ) -> None:
        super().__init__()
        self.form, self.skip, self.floor = form, skip, floor
        if form == 'joint':
            # No nn.Linear, whose start a backbone would set.
            self.weight = nn.Parameter(torch.eye(head_dims))
            self.bias = nn.Parameter(torch.zeros(head_dims))
        else:
            # The authors' uniform initialisation counts all but the heads as inputs.
            bound = (6 / (head_dims * feature_dims)) ** 0.5
            weight = torch.empty(num_heads, head_dims, feature_dims).uniform_(-bound, bound)
            self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, heads, N, d)`` to ``(B, heads, N, 2 f)``."""
        weight = self.weight.to(x.dtype)
        if self.form == 'joint':
            z = x @ weight.transpose(-2, -1) + self.bias.to(x.dtype)
            return torch.cat([2 * z, -2 * z], dim=-1).softmax(-1)
        z = x @ weight
        z = z + x if self.skip else z
        return torch.cat([z.softmax(-1), (-z).softmax(-1)], dim=-1).clamp(min=self.floor)


@MODELS.register_module()
class HedgehogAttention(QKVAttention):
    r"""Hedgehog: learned features of two softmaxes, of either sign.

    Per head, with a learned matrix W (d, f) of the queries and another of the keys:

    .. math::
        z = x W, \quad \phi(x) = [\mathrm{softmax}(z), \mathrm{softmax}(-z)], \quad
        y_i = \frac{\phi(q_i) \sum_j \phi(k_j)^T v_j}{\phi(q_i) \cdot \sum_j \phi(k_j) + \epsilon}

    Time is :math:`O(2 N f d)` per head. The features have 2 C f parameters. The scale of queries,
    keys and W sets the sharpness. W starts small, so attention is almost uniform at first. The
    paper also trains W to imitate a softmax. This step is not implemented here. Features and
    normalisers are fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        form: ``'per_sign'`` (default): as above, the form of the authors' LoLCATs. ``'joint'``: the
            form of flash-linear-attention, softmax([2z, -2z]) over all 2d features. There z is a
            linear of x with a bias. All heads share it, and it starts as the identity.
        feature_dims: Number f of features in ``'per_sign'``. Default: d.
        skip_connection: Whether z is x W + x, which needs f = d. Default: False.
        eps: :math:`\epsilon`, and the least value of a feature. Default: 1e-12.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Raises:
        ValueError: For an unknown form, or ``feature_dims`` or ``skip_connection`` that do not fit.

    Cost: 2NCd to mix; 4C² + 2Cd weights.

    Source: The Hedgehog & the Porcupine (arXiv 2402.04347).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import HedgehogAttention
        >>> attention = HedgehogAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    no_prefix_tokens = ''
    tested_options = (
        dict(form='joint', rope=True),
        dict(skip_connection=True),
        dict(feature_dims=8),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        form: str = 'per_sign',
        feature_dims: Optional[int] = None,
        skip_connection: bool = False,
        eps: float = 1e-12,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if form not in FORMS:
            raise ValueError(f'form must be one of {FORMS}, got {form!r}')
        dims = self.head_dims
        feature_dims = dims if feature_dims is None else feature_dims
        check_counts(feature_dims=feature_dims)
        if (form == 'joint' or skip_connection) and feature_dims != dims:
            raise ValueError(
                f"form='joint' and skip_connection=True need feature_dims={dims}, the head "
                f'dimension, got {feature_dims}'
            )
        if form == 'joint' and skip_connection:
            raise ValueError("skip_connection=True needs form='per_sign', got form='joint'")
        self.eps = eps
        options = (num_heads, dims, feature_dims, form, skip_connection, eps)
        self.query_map, self.key_map = HedgehogFeatures(*options), HedgehogFeatures(*options)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key = upcast(q, k)
            query, key = self.query_map(query), self.key_map(key)
            return linear_attention(query, key, v, self.eps, eps_of_sum=True)
