import functools
from typing import Any, Optional, Tuple

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.backend import ceil_div, exporting
from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import softmax_attention
from ..layers.checks import check_counts
from ..layers.pairs import check_pairs_fit
from ..layers.tables import computed_once, numbers
from ..layers.unit_vectors import unit_vectors
from .base import QKVAttention
from .frame import Frame

MOST_BUCKETS = 4096
FORMS = ('auto', 'chunks', 'pairs')
# Divisor for pairs that meet only between rounds. It is no epsilon in a sum, because the
# optimiser of ONNX graphs would replace such a term by zero.
NEVER = 1e-9


@functools.lru_cache(maxsize=8)
def fixed_directions(rounds: int, dims: int) -> np.ndarray:
    """Normal numbers ``(MOST_BUCKETS / 2, rounds, dims)``, the same in every process.

    A map of fewer tokens takes the first ones, so graphs for any size can keep them.
    """
    shape = (MOST_BUCKETS // 2, rounds, dims)
    return np.random.RandomState(0).standard_normal(shape).astype(np.float32)


def fixed_rotations(
    rounds: int, dims: int, buckets: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The first :func:`fixed_directions` as a matrix of each round, ``(rounds, dims, half)``."""
    directions = torch.from_numpy(fixed_directions(rounds, dims))
    # Half of the buckets have a column, of at most MOST_BUCKETS / 2.
    return directions[: buckets // 2].permute(1, 2, 0).to(device, dtype)


def diagonal(tokens: int, device: torch.device) -> Tensor:
    """The pairs of a token and itself, booleans ``(tokens, tokens)``."""
    return torch.eye(tokens, dtype=torch.bool, device=device)


@MODELS.register_module()
class ReformerAttention(QKVAttention):
    r"""Reformer: softmax attention among tokens that random rotations put side by side (LSH).

    Keys are the queries, brought to unit length. Each of R rounds draws a random matrix, sorts the
    tokens by the bucket :math:`\arg\max\, [q_i R, -q_i R]`, and cuts them into chunks of b. A token
    attends to its chunk and to the chunk before, in a ring over all rounds. It attends to itself
    only if it sees no other token. Rounds are weighed by the sums of their exponentials. So with
    :math:`c_{ij}` the number of chunks, in all rounds, in which i meets j, it is

    .. math:: y_i = \frac{\sum_j c_{ij} \exp(s_{ij}) v_j}{\sum_j c_{ij} \exp(s_{ij})}, \quad
              s_{ij} = q_i \cdot k_j / \sqrt{d}

    Without ``duplicates``, a pair counts once: :math:`c_{ij}` is divided by the number of meetings
    inside of rounds. As in the authors' code, this number leaves out meetings where the ring goes
    from one round to the next. A pair that meets only there is divided by :math:`10^{-9}`, so it
    has nearly all the weight.

    It is computed in chunks, in :math:`O(R N b d)` per head, or over all pairs with these counts,
    which is cheaper where :math:`N \leq 2 R b`. The choice among N / b buckets, 4096 at most, adds
    a small term :math:`O(R N^2 d / b)`. The attention has no parameters of its own. Everything is
    fp32 under any autocast.

    Which tokens meet is random, and a small change of a query can change it. So the output in half
    precision is not close to that in fp32. In training, every forward pass draws new rounds from
    PyTorch's global generator of the CPU, as dropout draws. So a training that is resumed draws
    other rounds than one without a break, because mmengine's checkpoints hold no state of random
    generators. Nothing that is learned belongs to a draw. In eval mode the rounds are always the
    same, while the authors' code draws new ones there too.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        bucket_size: Tokens b of a chunk. A map of at most b tokens has full attention. Larger maps
            are padded to a multiple of 2b with masked tokens. Default: 64.
        num_hashes: Rounds R. Default: 8.
        form: ``'auto'`` (default): over all pairs for up to 2 R b tokens, and else in chunks.
            ``'chunks'`` or ``'pairs'``: always that form.
        duplicates: Whether a pair that meets in several rounds counts in each. Default: True.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv='shared_qk',
            qkv_bias=False)``. Queries and keys are always the same.

    Raises:
        ValueError: If ``bucket_size`` or ``num_hashes`` is no positive integer, and for an unknown
            form. In the forward, for pairs whose matrices would need more than 4 GB.

    Cost: RNCb, R rounds of chunks of b, or N²C to mix; 3C² weights.

    Published: Flowformer's table: 79.6.

    Source: Reformer (arXiv 2001.04451).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import ReformerAttention
        >>> attention = ReformerAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    to_itself = -5e4  # the logit of a token with itself: less than all others, yet not impossible
    frame = Frame(qkv='shared_qk', qkv_bias=False)
    fixed_options = ('qkv', 'sr_ratio', 'key_positions')
    same_tokens = 'its keys are the queries'
    mixes_queries = True
    no_prefix_tokens = ''
    not_promised = dict(
        linear='small maps are computed over all pairs, which is cheaper there',
        positions='on large maps, tokens of a bucket are sorted by their order, not by rows',
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        bucket_size: int = 64,
        num_hashes: int = 8,
        form: str = 'auto',
        duplicates: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        check_counts(bucket_size=bucket_size, num_hashes=num_hashes)
        if form not in FORMS:
            raise ValueError(f'form must be one of {FORMS}, got {form!r}')
        self.bucket_size = bucket_size
        self.num_hashes = num_hashes
        self.form = form
        self.duplicates = duplicates

    def rotations(self, buckets: int, like: Tensor) -> Tensor:
        """A random matrix for each round, ``(R, d, buckets / 2)``."""
        if self.training:
            columns = min(buckets, MOST_BUCKETS) // 2
            return torch.randn(self.num_hashes, self.head_dims, columns, device='cpu').to(like)
        sizes = self.num_hashes, self.head_dims, buckets, like.dtype
        return computed_once(fixed_rotations, *sizes, like=like)

    def order(self, q: Tensor, padded: int) -> Tensor:
        """Places of the tokens in each round, ``(B, heads, R, padded)``; padding comes last."""
        rotations = self.rotations(padded // self.bucket_size, q)
        # One round after the other: all at once would hold R N^2 / b values.
        buckets = []
        for rotation in rotations:
            turned = q @ rotation  # (B, heads, N, buckets / 2)
            buckets.append(torch.cat([turned, -turned], dim=-1).argmax(-1))
        bucket = torch.stack(buckets, dim=2)
        bucket = F.pad(bucket, (0, padded - q.shape[2]), value=MOST_BUCKETS)
        place = computed_once(numbers, padded, like=q)
        return (bucket * padded + place).argsort(-1)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        tokens, step = q.shape[2], 2 * self.bucket_size
        in_one_chunk = tokens <= self.bucket_size
        # A graph for maps of any size, where this is no plain integer, takes what fits all.
        few = self.form == 'auto' and type(tokens) is int and tokens <= self.num_hashes * step
        over_pairs = in_one_chunk or few or self.form == 'pairs'
        if over_pairs:
            check_pairs_fit(self, q, k, (1, 3) if in_one_chunk else (3, 3))
        with no_autocast(v.device):
            query, value = upcast(q, v)
            padded = ceil_div(tokens, step) * step
            order = None if in_one_chunk else self.order(query.detach(), padded)
            if over_pairs or order is None:
                return self._over_pairs(query, value, order).to(v.dtype)
            return self._over_chunks(query, value, order).to(v.dtype)

    def _over_pairs(self, query: Tensor, value: Tensor, order: Optional[Tensor]) -> Tensor:
        """Mixed values by a weight for each pair of tokens, all of which meet without an order."""
        itself = computed_once(diagonal, query.shape[2], like=query)
        logits = query.new_zeros(())
        if order is not None:
            chunk = order.argsort(-1)[..., : query.shape[2]] // self.bucket_size
            inside = F.one_hot(chunk, order.shape[-1] // self.bucket_size).to(query.dtype)
            inside = inside.transpose(2, 3)  # (B, heads, N, R, chunks)
            ring = inside.flatten(3)
            # Those of a chunk meet it and the one before.
            meetings = (ring + ring.roll(-1, -1)) @ ring.transpose(-2, -1)
            counts = None if self.duplicates else meetings - self._between_rounds(inside)
            logits = meetings.log_()
            if counts is not None:
                logits.sub_(counts.clamp_(min=NEVER).log_())
        logits = logits.masked_fill(itself, self.to_itself)
        return softmax_attention(query, unit_vectors(query), value, logits)

    def _between_rounds(self, inside: Tensor) -> Tensor:
        """How often the ring brings tokens from the last chunk of a round to the next round's."""
        if self.num_hashes == 1:  # the ring is this round's
            return inside.new_zeros(())
        first, last = inside[..., 0], inside[..., -1]  # (B, heads, N, R)
        return first.roll(-1, -1) @ last.transpose(-2, -1)

    def _over_chunks(self, query: Tensor, value: Tensor, order: Tensor) -> Tensor:
        """Mixed values by weights for the pairs that meet in a chunk, in each round."""
        tokens, padded = query.shape[2], order.shape[-1]
        flat = order.flatten(2)  # (B, heads, R * padded)

        def in_chunks(x: Tensor) -> Tensor:
            # Not by unflatten, after which the TorchScript exporter takes N for a constant.
            return x.view(*x.shape[:2], -1, self.bucket_size, *x.shape[3:])

        def chunks(x: Tensor) -> Tensor:
            """Tokens in the order of the rounds, ``(B, heads, chunks, b, d)``."""
            x = F.pad(x, (0, 0, 0, padded - tokens))
            return in_chunks(x.gather(2, flat.unsqueeze(-1).expand(-1, -1, -1, x.shape[-1])))

        def with_chunk_before(x: Tensor) -> Tensor:
            before = torch.cat([x[:, :, -1:], x[:, :, :-1]], dim=2)
            return torch.cat([x, before], dim=3)

        back = order.argsort(-1)  # (B, heads, R, padded)
        queries = chunks(query)
        place = in_chunks(flat)
        keys = with_chunk_before(unit_vectors(queries))
        values = with_chunk_before(chunks(value))
        key_place = with_chunk_before(place)
        # A graph for maps of any size has the mask of the padding, whether or not it pads.
        hidden = key_place >= tokens if exporting() or padded > tokens else None
        counts = None if self.duplicates else self._counts(back, place, key_place)
        out, weight = self._attend(queries, keys, values, place, key_place, hidden, counts)
        back = back[..., :tokens].unsqueeze(-1)  # (B, heads, R, N, 1)
        out = out.reshape(*out.shape[:2], self.num_hashes, padded, out.shape[-1])
        weight = weight.reshape(*weight.shape[:2], self.num_hashes, padded, 1)
        out = out.gather(3, back.expand(-1, -1, -1, -1, out.shape[-1]))
        return (out * weight.gather(3, back).softmax(2)).sum(2)

    def _counts(self, back: Tensor, q_place: Tensor, k_place: Tensor) -> Tensor:
        """In how many rounds the tokens at some places meet, ``(B, heads, chunks, b, 2 b)``."""
        chunk = back // self.bucket_size  # of each token in each round, (B, heads, R, padded)
        count: Any = 0
        chunks = chunk.shape[-1] // self.bucket_size

        def chunk_of(of_round: Tensor, place: Tensor) -> Tensor:
            return of_round.gather(2, place.flatten(2)).view(place.shape)

        for of_round in chunk.unbind(2):  # all at once would hold R times as much
            of_query = chunk_of(of_round, q_place)[..., :, None]
            before = of_query - chunk_of(of_round, k_place)[..., None, :]
            meets = (before == 0) | (before == 1)
            if self.num_hashes == 1:  # the ring is this round's
                meets = meets | (before == 1 - chunks)
            count = count + meets.to(torch.int32)
        return count

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q_place: Tensor,
        k_place: Tensor,
        hidden: Optional[Tensor],
        counts: Optional[Tensor],
    ) -> Tuple[Tensor, Tensor]:
        """Mixed values and the logarithm of the sum of the exponentials, ``(..., 1)``.

        A pass over the scores takes about as long as a product. So they change in place, and a
        channel of ones beside the values gives the sum.
        """
        scores = (q * self.head_dims**-0.5) @ k.transpose(-2, -1)
        if counts is not None:
            scores.sub_(counts.to(scores.dtype).clamp(min=NEVER).log_())
        scores.masked_fill_(q_place[..., :, None] == k_place[..., None, :], self.to_itself)
        if hidden is not None:
            scores.masked_fill_(hidden[..., None, :], float('-inf'))
        largest = scores.detach().amax(-1, keepdim=True)
        weights = scores.sub_(largest).exp_()
        mixed, total = (weights @ F.pad(v, (0, 1), value=1.0)).split([v.shape[-1], 1], dim=-1)
        return mixed / total, largest + total.log()
