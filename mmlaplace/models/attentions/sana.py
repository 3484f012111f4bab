from typing import Any, Tuple

from mmengine.registry import MODELS
from torch import Tensor

from ..layers import RMSNorm, linear_attention
from .base import Projected, QKVAttention
from .frame import Frame


@MODELS.register_module()
class SANAAttention(QKVAttention):
    r"""Linear attention with ReLU features, as in SANA. It is the simplest linear attention here.

    Per head:

    .. math::
        y_i = \frac{\mathrm{relu}(q_i) \sum_j \mathrm{relu}(k_j)^T v_j}
                   {\mathrm{relu}(q_i) \cdot \sum_j \mathrm{relu}(k_j) + \epsilon}

    Time is linear, :math:`O(N C d)`. Sums and the division are fp32 under any autocast, where an
    epsilon this small would be zero in half precision. A query gives exactly zero if its ReLU
    features have no positive product with any key. Where all keys are almost zero, gradients are
    large: the epsilon bounds only the values.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        qk_norm: Whether queries and keys have a root-mean-square norm over all channels, before the
            heads are split. Default: False.
        norm_eps: Epsilon of these norms. Default: 1e-5.
        eps: :math:`\epsilon`, which is added to the sum. Default: 1e-15.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv_bias=False)``. Rotary
            positions turn queries and keys before ReLU.

    Cost: NCd to mix; 4C² weights.

    Published: – (images are generated).

    Source: SANA (arXiv 2410.10629).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SANAAttention
        >>> attention = SANAAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(qkv_bias=False)
    no_prefix_tokens = ''
    tested_options = (dict(qk_norm=True, rope=True, lepe_kernel=3), dict(sr_ratio=2))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        qk_norm: bool = False,
        norm_eps: float = 1e-5,
        eps: float = 1e-15,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.eps = eps
        self.q_norm = RMSNorm(embed_dims, norm_eps) if qk_norm else None
        self.k_norm = RMSNorm(embed_dims, norm_eps) if qk_norm else None

    def heads(self, projected: Projected, hw_shape: Tuple[int, int]) -> Tuple[Tensor, ...]:
        if self.q_norm is not None and self.k_norm is not None:
            projected = projected._replace(q=self.q_norm(projected.q), k=self.k_norm(projected.k))
        return super().heads(projected, hw_shape)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        return linear_attention(q, k, v, self.eps, features='relu', eps_of_sum=True)
