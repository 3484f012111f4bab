from typing import Any, Set, Tuple

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers.unit_vectors import unit_vectors
from .base import QKVAttention


@MODELS.register_module()
class XCAttention(QKVAttention):
    r"""Cross-covariance attention: channels attend to channels.

    Per head, with each channel of Q and K brought to unit length over the tokens and a learned
    temperature :math:`\tau`:

    .. math:: A = \mathrm{softmax}(\tau \, \hat Q^T \hat K), \quad Y = V A^T

    A is d x d, so time is linear in the tokens. All tokens share A, so only a local branch lets
    tokens interact. XCiT has this branch in its blocks. Here ``lepe_kernel=3`` adds one. Norms and
    the softmax are fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``. Queries and keys must be of
            the same tokens, so there is no ``sr_ratio``.

    Cost: NCd to mix; 4C² + h weights.

    Published: patch 16: T12 77.1, S12 82.0, M24 82.7.

    Source: XCiT (arXiv 2106.09681).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import XCAttention
        >>> attention = XCAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    mixes_tokens = False
    fixed_options = ('sr_ratio',)
    same_tokens = 'its channels compare queries and keys token by token'
    mixes_queries = True
    no_prefix_tokens = ''
    tested_options = (dict(rope=True, lepe_kernel=3),)

    def __init__(
        self, embed_dims: int, num_heads: int, input_resolution: Tuple[int, int], **kwargs: Any
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = unit_vectors(query, -2), unit_vectors(key, -2)  # (B, heads, N, d)
            scores = query.transpose(-2, -1) @ key * self.temperature.to(query.dtype)
            weights = scores.softmax(-1)  # (B, heads, d, d)
            return (value @ weights.transpose(-2, -1)).to(v.dtype)

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters without weight decay, as in the authors' code."""
        return {'temperature'}
