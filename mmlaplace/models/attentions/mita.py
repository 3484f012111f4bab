from typing import Any, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.backend import at_most, ceil_div
from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import Landmarks, softmax_attention
from ..layers.checks import check_counts
from ..layers.tables import computed_once, numbers
from .base import QKVAttention

TILE = 32  # visitors of an expert that share one product


@MODELS.register_module()
class MiTAAttention(QKVAttention):
    r"""Mixture of top-k activations: a query attends to landmarks, and to the keys that one chose.

    Landmarks R (m, d) are averages of the map of queries. Together they are an expert that all
    queries share. Each of them gathers an expert too: the set :math:`T_a` of the k keys with the
    largest :math:`r_a \cdot k_j`. A query visits the expert of the landmark :math:`a_i` with the
    largest :math:`r_a \cdot q_i`. Per head, under one softmax:

    .. math::
        \tilde V = \mathrm{softmax}(R K^T / \sqrt{d})\, V, \quad
        z_{ia} = e^{q_i \cdot r_a / d}, \quad w_{ij} = e^{q_i \cdot k_j / \sqrt{d}}

        y_i = \frac{\sum_a z_{ia} \tilde v_a + \sum_{j \in T_{a_i}} w_{ij} v_j}
                   {\sum_a z_{ia} + \sum_{j \in T_{a_i}} w_{ij}}

    The logits of landmarks are divided by d, not by its root, as in the authors' code. Time is
    linear, :math:`O(N C (m + k))`. Everything is fp32 under any autocast. No gradient flows through
    the choices of keys and experts. Rounding can turn a choice, so the output in half precision is
    close to that in fp32 only for the same queries and keys. Landmarks are of the map alone. Prefix
    tokens choose experts and may be chosen as keys, as others.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        num_landmarks: Number m of landmarks and of experts that they gather, a square. Default: 25.
        topk: Keys k of each of these experts, at most all. Default: 25.
        routes: Experts that a query visits, those of the largest :math:`r_a \cdot q_i`. A key of
            several of them counts in each. Default: 1.
        shared: Whether queries attend to the landmarks too. Default: True.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``. A gate passes a SiLU. The
            authors' models with a convolution have ``lepe_kernel=3``.

    Raises:
        ValueError: If ``num_landmarks`` is no square, or if ``topk`` or ``routes`` is no positive
            integer.

    Cost: NC(m + k), k keys of each landmark to mix; 4C² weights.

    Published: DeiT-T 71.1, DeiT-S 79.8; with a convolution 73.4, 80.6.

    Source: MiTA (arXiv 2602.01219).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import MiTAAttention
        >>> attention = MiTAAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    not_promised = dict.fromkeys(('fp16', 'bf16'), 'rounding can turn the choice of keys')
    no_multihead = 'its landmarks are cells of a map'
    no_prefix_tokens = ''
    tested_options = (
        dict(num_landmarks=9, routes=2, topk=4, sr_ratio=2),
        dict(shared=False, gate=True, lepe_kernel=3, rope=True),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        num_landmarks: int = 25,
        topk: int = 25,
        routes: int = 1,
        shared: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        check_counts(topk=topk, routes=routes)
        self.landmarks = Landmarks(num_landmarks)
        self.topk = topk
        self.routes = routes
        self.shared = shared

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            map_query = query[:, :, self.num_prefix_tokens :]
            landmarks = self.landmarks(map_query, hw_shape)  # (B, heads, m, d)
            outs, sizes = self._routed(query, key, value, landmarks)  # (B, heads, routes, N, ..)
            if self.shared:
                logits = query @ landmarks.transpose(-2, -1) / query.shape[-1]
                out = logits.softmax(-1) @ softmax_attention(landmarks, key, value)
                outs = torch.cat([outs, out.unsqueeze(2)], dim=2)
                size = logits.logsumexp(-1, keepdim=True)
                sizes = torch.cat([sizes, size.unsqueeze(2)], dim=2)
            return (sizes.softmax(2) * outs).sum(2).to(v.dtype)

    def _routed(
        self, query: Tensor, key: Tensor, value: Tensor, landmarks: Tensor
    ) -> Tuple[Tensor, Tensor]:
        """The outputs of the experts that queries visit, and the logarithms of their sums.

        A visitor with the keys of its own would need N k d values. So the visitors of an expert
        lie in tiles, which share these keys. The last tile of an expert may have empty places.
        """
        batch, heads, tokens, dims = query.shape
        count = landmarks.shape[2]
        scores = landmarks.detach() @ key.detach().transpose(-2, -1)
        chosen = scores.topk(at_most(self.topk, key.shape[2]), sorted=False)[1]  # (B, heads, m, k)
        scores = landmarks.detach() @ query.detach().transpose(-2, -1)  # (B, heads, m, N)
        routes = at_most(self.routes, count)
        expert = scores.topk(routes, dim=2)[1].flatten(2)  # of each visit, (B, heads, routes * N)

        visits = expert.shape[2]
        experts = computed_once(numbers, count, like=query)
        places = (expert.unsqueeze(-1) == experts).long().cumsum(2)  # (B, heads, visits, m)
        ends = ceil_div(places[:, :, -1], TILE).cumsum(-1)  # after the last tile of each expert
        starts = F.pad(ends, (1, 0))[..., :-1]
        rank = places.gather(3, expert.unsqueeze(-1)).squeeze(-1) - 1
        place = starts.gather(2, expert) * TILE + rank  # (B, heads, visits)
        tiles = ceil_div(visits, TILE) + count  # at most
        tile = computed_once(numbers, tiles, like=query)
        owner = (tile >= ends.unsqueeze(-1)).long().sum(2).clamp(max=count - 1)

        visitor = computed_once(numbers, tokens, like=query).repeat(routes).expand(expert.shape)
        empty = visitor.new_zeros(batch, heads, tiles * TILE)
        queries = rows(query, empty.scatter(2, place, visitor))
        keys_of_tile = chosen.gather(2, owner.unsqueeze(-1).expand(-1, -1, -1, chosen.shape[3]))
        keys = rows(key, keys_of_tile.flatten(2))
        values = rows(value, keys_of_tile.flatten(2))

        queries = queries.view(batch, heads, tiles, TILE, dims)
        keys = keys.view(batch, heads, tiles, chosen.shape[3], dims)
        values = values.view(batch, heads, tiles, chosen.shape[3], values.shape[-1])
        logits = queries @ keys.transpose(-2, -1) * dims**-0.5  # (B, heads, tiles, TILE, k)
        out = logits.softmax(-1) @ values
        size = logits.logsumexp(-1, keepdim=True)
        out = rows(out.flatten(2, 3), place).view(batch, heads, routes, tokens, out.shape[-1])
        size = rows(size.flatten(2, 3), place).view(batch, heads, routes, tokens, 1)
        return out, size

    def apply_gate(self, out: Tensor, gate: Tensor) -> Tensor:
        """The output ``(B, N, C)`` times the SiLU of the gate."""
        return out * F.silu(gate)


def rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of ``(B, heads, N, d)`` by their numbers ``(B, heads, n)``: ``(B, heads, n, d)``."""
    return x.gather(2, index.unsqueeze(-1).expand(-1, -1, -1, x.shape[-1]))
