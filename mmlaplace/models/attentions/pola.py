from typing import Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import signed_powers
from .base import QKVAttention
from .frame import Frame


@MODELS.register_module()
class PolaAttention(QKVAttention):
    r"""Polarity-aware linear attention: same-signed and opposite-signed pairs, sharpened by powers.

    Per head, with learned scales s and powers :math:`p = 1 + \alpha\, \mathrm{sigmoid}(\cdot)` of
    each channel, and the features :math:`\phi(x) = [\mathrm{relu}(x)^p, \mathrm{relu}(-x)^p]`,
    :math:`\bar\phi(x) = [\mathrm{relu}(-x)^p, \mathrm{relu}(x)^p]`:

    .. math::
        Y_s = \frac{\phi(Q)\, \phi(K)^T V_1}{\phi(Q)\, \phi(K)^T 1 + n \epsilon}, \quad
        Y_o = \frac{\bar\phi(Q)\, \phi(K)^T V_2}{\bar\phi(Q)\, \phi(K)^T 1 + n \epsilon}

        \mathrm{out} = \mathrm{proj}\big( ([Y_s, Y_o] + \mathrm{DWConv}(V)) \odot G \big)

    Q = XW / s and K = (XW' + P) / s, with a learned position P per token. :math:`[V_1, V_2]` are
    the halves of each head's channels. G is a gate, a linear of X. Products are taken from the
    right, so no N x N matrix exists. Features and normalisers are fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        alpha: The largest power, less 1. Default: 4.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv='q_kv', gate=True,
            key_positions=True, lepe_kernel=5, lepe_filters='head_channel')``.

    Raises:
        ValueError: If ``alpha`` is not positive and finite.

    Source: PolaFormer (arXiv 2501.15061).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PolaAttention
        >>> attention = PolaAttention(64, num_heads=2, input_resolution=(14, 14), sr_ratio=2)
        >>> attention(torch.randn(1, 7 * 9, 64), hw_shape=(7, 9)).shape
        torch.Size([1, 63, 64])
    """

    eps = 1e-6  # keeps a query that has no key of its signs from a division by zero
    frame = Frame(
        qkv='q_kv', gate=True, key_positions=True, lepe_kernel=5, lepe_filters='head_channel'
    )
    variants = (dict(sr_ratio=2), dict(sr_ratio=3, key_positions=False))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        alpha: float = 4.0,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if not 0 < alpha < float('inf'):
            raise ValueError(f'alpha must be positive and finite, got {alpha}')
        self.alpha = alpha
        self.scale = nn.Parameter(torch.zeros(embed_dims))
        self.power = nn.Parameter(torch.zeros(num_heads, 1, self.head_dims))

    def features(self, x: Tensor) -> Tensor:
        """Positive and negative parts to their powers: ``(B, heads, N, d)`` to ``(.., N, 2d)``."""
        power = 1 + self.alpha * torch.sigmoid(self.power.to(x.dtype))
        scale = F.softplus(self.scale.to(x.dtype)).unflatten(0, (self.num_heads, 1, -1))
        return signed_powers(x, power, scale)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        dims = v.shape[-1]
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = self.features(query), self.features(key)
            # query: (B, heads, N, 2d), key: (B, heads, n, 2d)
            same, opposite = (key.mT @ value / key.shape[2]).chunk(2, dim=-1)
            mean_key = key.mean(dim=2).unsqueeze(-1)  # (B, heads, 2d, 1)
            # Rows of opposite signs change places here, as these matrices are small.
            sums = torch.cat([same, opposite.roll(dims, dims=-2)], dim=-1)  # (B, heads, 2d, d)
            means = torch.cat([mean_key, mean_key.roll(dims, dims=-2)], dim=-1)
            sums = F.pad(sums, (0, dims % 2))  # so that both streams have as many channels
            streams = (query @ sums).unflatten(-1, (2, -1))  # (B, heads, N, 2, d / 2)
            normalizers = (query @ means + self.eps).unsqueeze(-1)
            return (streams / normalizers).flatten(-2)[..., :dims].to(v.dtype)
