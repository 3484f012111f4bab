import math
from typing import Any, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers.tables import computed_once
from .base import QKVAttention

POSITIONS = ('map', 'flattened')


@MODELS.register_module()
class CosformerAttention(QKVAttention):
    r"""cosFormer: ReLU features, and a weight that falls as a cosine of the distance.

    With the angle :math:`\theta_i = \frac{\pi}{2} \frac{i}{M}` of row i of M rows, and likewise for
    columns:

    .. math::
        w_{ij} = \big( \mathrm{relu}(q_i) \cdot \mathrm{relu}(k_j) \big)
                 \cos(\theta^{row}_i - \theta^{row}_j) \cos(\theta^{col}_i - \theta^{col}_j), \quad
        y_i = \frac{\sum_j w_{ij} v_j}{\max(\sum_j w_{ij}, \epsilon)}

    Products of the cosines are four features for each channel, so time is :math:`O(4 N d^2)` per
    head. It has no parameters of its own. Distances are relative to the size of the map, so the
    weight of a pair of tokens changes with the size. A query without a positive channel gives zero.
    Everything is fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        positions: ``'map'`` (default): an angle for the row and one for the column, as above.
            ``'flattened'``: one angle for the position i = 1 to N of a token in the flattened map,
            as in the authors' code. Each channel then has two features. The last token of a row is
            then as near to the first of the next row as to its neighbour in the row.
        eps: :math:`\epsilon`. Default: 1e-6.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``. Queries and keys must share
            one map, so there is no ``sr_ratio``.

    Raises:
        ValueError: For unknown ``positions``.

    Cost: 4NCd to mix; 4C² weights.

    Source: cosFormer (arXiv 2202.08791).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import CosformerAttention
        >>> attention = CosformerAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    fixed_options = ('sr_ratio',)
    no_multihead = no_prefix_tokens = 'its weights fall with the distance on a map'
    tested_options = (dict(positions='flattened', lepe_kernel=3), dict(rope=True))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        positions: str = 'map',
        eps: float = 1e-6,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if positions not in POSITIONS:
            raise ValueError(f'positions must be one of {POSITIONS}, got {positions!r}')
        self.positions = positions
        self.eps = eps

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            sides = (q.shape[2],) if self.positions == 'flattened' else tuple(hw_shape)
            turns = computed_once(turns_of, sides, query.dtype, like=q)  # (N, 2 or 4, 1)
            query = (F.relu(query).unsqueeze(-2) * turns).flatten(-2)
            key = (F.relu(key).unsqueeze(-2) * turns).flatten(-2)
            summed = key.transpose(-2, -1) @ value
            weights = query @ key.sum(-2).unsqueeze(-1)
            return (query @ summed / weights.clamp(min=self.eps)).to(v.dtype)


def turns_of(sides: Tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cosines and sines whose products are the weights of places, on a line or a map.

    ``(N, 2, 1)``, or ``(N, 4, 1)`` on a map.
    """
    turns = []
    for side in sides:
        place = torch.arange(1, side + 1, device=device, dtype=dtype)
        angle = place * (math.pi / 2 / side)
        turns.append(torch.stack([angle.sin(), angle.cos()], dim=-1))
    if len(turns) == 1:
        return turns[0].unsqueeze(-1)
    rows, columns = turns  # (H, 2), (W, 2)
    return (rows[:, None, :, None] * columns[None, :, None, :]).reshape(-1, 4, 1)
