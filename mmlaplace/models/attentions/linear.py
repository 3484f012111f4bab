from typing import Any, Tuple

from mmengine.registry import MODELS
from torch import Tensor

from ..layers import linear_attention
from .base import QKVAttention


@MODELS.register_module()
class LinearAttention(QKVAttention):
    r"""The linear attention of Katharopoulos et al., with :math:`\phi(x) = \mathrm{elu}(x) + 1`.

    .. math::
        y_i = \frac{\phi(q_i) \sum_j \phi(k_j)^T v_j}{\phi(q_i) \cdot \sum_j \phi(k_j) + \epsilon}

    Time is :math:`O(N d^2)` per head. It has no parameters of its own. Small queries and keys have
    features near 1, so attention is almost uniform at first. Features are computed as
    :math:`\exp(\min(x, 0)) + \mathrm{relu}(x)`, which is the same function and does not vanish
    below -17. Features, sums and the division are fp32 under any autocast, as sums over the tokens
    overflow in fp16.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        eps: :math:`\epsilon`. Default: 1e-6.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Cost: NCd to mix; 4C² weights.

    Published: FLatten's table, features not said: 70.5.

    Source: Transformers are RNNs (arXiv 2006.16236).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LinearAttention
        >>> attention = LinearAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

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

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        return linear_attention(q, k, v, self.eps, features='elu_plus_one', eps_of_sum=True)
