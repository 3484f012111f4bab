from typing import Any, Tuple

from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from .base import QKVAttention


@MODELS.register_module()
class FlowAttention(QKVAttention):
    r"""Flowformer: tokens compete for a flow that is conserved.

    Per head, with features :math:`\phi = \mathrm{sigmoid}`, N queries, n keys, and
    :math:`\langle a, b \rangle = (a + \epsilon) \cdot (b + \epsilon)`:

    .. math::
        I_i = 1 / \langle \phi(q_i), \textstyle\sum_j \phi(k_j) \rangle, \quad
        O_j = 1 / \langle \phi(k_j), \textstyle\sum_i \phi(q_i) \rangle

        \hat I_i = \langle \phi(q_i), \textstyle\sum_j O_j \phi(k_j) \rangle, \quad
        \hat O_j = \mathrm{clamp}_{\pm 1} \langle \phi(k_j), \textstyle\sum_i I_i \phi(q_i) \rangle

        y_i = \mathrm{sigmoid}(\tfrac{N}{n} \hat I_i) \; I_i \, \phi(q_i) \sum_j \phi(k_j)^T
              \big( n \, \mathrm{softmax}_j(\hat O) \, v_j \big)

    Time is :math:`O(N d^2)` per head. It has no parameters of its own. :math:`\hat O` has the mean
    1, so the clamp acts on about half of the keys. These keys then have equal :math:`\hat O`, and
    no gradient passes through it. Everything is fp32 under any autocast, as sums over the tokens
    overflow in fp16.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        eps: :math:`\epsilon`. Default: 1e-6.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Cost: NCd to mix; 4C² weights.

    Published: Flowformer's table: 80.6.

    Source: Flowformer (arXiv 2202.06258).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import FlowAttention
        >>> attention = FlowAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    mixes_queries = True
    no_prefix_tokens = ''
    tested_options = (dict(rope=True, lepe_kernel=3), dict(sr_ratio=2))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        eps: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.eps = eps

    def _flow(self, features: Tensor, others: Tensor) -> Tensor:
        """The flow of each token to the sum of ``others``, ``(B, heads, N, 1)``."""
        summed = others.sum(-2).unsqueeze(-1)  # (B, heads, d, 1)
        return (features + self.eps) @ (summed + self.eps)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = query.sigmoid(), key.sigmoid()
            received = 1 / self._flow(query, key)
            sent = 1 / self._flow(key, query)
            allocated = self._flow(query, sent * key)
            competing = self._flow(key, received * query).clamp(-1, 1)
            queries, keys = query.shape[-2], key.shape[-2]
            value = value * competing.softmax(-2) * keys
            out = (received * query) @ (key.transpose(-2, -1) @ value)
            return (out * (allocated * (queries / keys)).sigmoid()).to(v.dtype)
