from typing import Any, Tuple

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers.taylor import known_form, taylor_attention
from ..layers.unit_vectors import unit_vectors
from .base import QKVAttention


@MODELS.register_module()
class TaylorShiftAttention(QKVAttention):
    r"""TaylorShift: softmax attention with a Taylor series in place of the exponential.

    Per head, with queries and keys of unit length and a learned temperature :math:`\tau`:

    .. math::
        t_{ij} = \tau \, \hat q_i \cdot \hat k_j, \quad
        w_{ij} = 1 + t_{ij} + \tfrac{1}{2} t_{ij}^2, \quad y_i = \sum_j w_{ij} v_j / \sum_j w_{ij}

    The same function has two forms. The linear one has about :math:`d^2 / 2` features: time
    :math:`O(N d^3)` and memory :math:`O(N d^2)` per head. The direct one has a weight for each pair
    of tokens. Each head has one parameter. With :math:`\tau = 1` the largest weight is five times
    the smallest, so thousands of tokens are averaged. Weights rise again below t = -1, so for a
    large :math:`\tau` opposite keys count like equal ones. Everything is fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        form: ``'auto'`` (default): the direct form while there are no more tokens than features,
            where it is cheaper, and else the linear form. ``'linear'`` or ``'direct'``: always that
            form.
        output_normalized: Whether the output is multiplied by :math:`\sqrt{N / d}`, as in the
            authors' ViT. Default: False.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Raises:
        ValueError: For an unknown form. In the forward, for a map whose matrices of pairs would
            need more than 4 GB in the direct form.

    Cost: NCd², or N²C to mix; 4C² + h weights.

    Source: TaylorShift (arXiv 2403.02920).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import TaylorShiftAttention
        >>> attention = TaylorShiftAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    no_prefix_tokens = ''
    tested_options = (dict(form='linear', rope=True), dict(form='direct', output_normalized=True))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        form: str = 'auto',
        output_normalized: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.form = known_form(form)
        self.output_normalized = output_normalized
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = (unit_vectors(x) for x in (query, key))
            query = query * self.temperature.to(query.dtype)
            # Each weight is at least a half, so the sum cannot be zero and needs no epsilon.
            out = taylor_attention(self, query, key, value, eps=0.0)
            if self.output_normalized:
                out = out * (k.shape[2] / self.head_dims) ** 0.5
            return out.to(v.dtype)
