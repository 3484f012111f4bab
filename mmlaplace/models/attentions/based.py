from typing import Any, Tuple

from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers.taylor import known_form, taylor_attention
from .base import QKVAttention


@MODELS.register_module()
class BasedAttention(QKVAttention):
    r"""The Taylor features of Based: softmax attention to the second order of its exponential.

    .. math::
        s_{ij} = q_i \cdot k_j / \sqrt{d}, \quad w_{ij} = 1 + s_{ij} + \tfrac{1}{2} s_{ij}^2, \quad
        y_i = \frac{\sum_j w_{ij} v_j}{\sum_j w_{ij} + \epsilon}

    The same function has two forms. The linear one has about :math:`d^2 / 2` features: time
    :math:`O(N d^3)` and memory :math:`O(N d^2)` per head. The direct one has a weight for each pair
    of tokens. The authors have only the linear form. The paper has heads of 16 channels. The
    attention has no parameters of its own. Scores have no bound. Below a score of -1, the weight
    rises again as the score falls. :class:`TaylorShiftAttention` bounds the scores: its queries and
    keys have unit length. The paper's attention is causal. This attention is over all tokens.
    Everything is fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        form: ``'auto'`` (default): the direct form while there are no more tokens than features,
            where it is cheaper, and else the linear form. ``'linear'`` or ``'direct'``: always that
            form.
        eps: :math:`\epsilon`. Default: 1e-12.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Raises:
        ValueError: For an unknown form. In the forward, for a map whose matrices of pairs would
            need more than 4 GB in the direct form.

    Cost: NCd², or N²C to mix; 4C² weights.

    Source: Based (arXiv 2402.18668).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import BasedAttention
        >>> attention = BasedAttention(64, num_heads=4, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    no_prefix_tokens = ''
    tested_options = (dict(form='linear', rope=True, lepe_kernel=3), dict(form='direct'))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        form: str = 'auto',
        eps: float = 1e-12,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.form = known_form(form)
        self.eps = eps

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = (x * self.head_dims**-0.25 for x in (query, key))
            return taylor_attention(self, query, key, value, self.eps).to(v.dtype)
