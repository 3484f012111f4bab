"""Rows of attention matrices: how much weight a query gives to each key, and how far away.

Attentions mix values linearly, ``out = A v``, though most never store the N x N matrix A. Row i of
A is the gradient of ``out[i]`` with respect to ``v``. The gradient is exact. Its cost is linear in
N where that of the attention is.
"""

import math
from functools import partial
from typing import Dict, List, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor

from ..models import (
    BaseAttention,
    LaplacianAttention,
    PolaAttention,
    SOFTAttention,
    WindowAttention,
)
from ..models.layers import split_windows
from ..ops.precision import upcast
from .recording import Mixed

# Distances between query and key, in units of the map's longer side: 2 and 6 of 16 tokens.
NEAR, FAR = 1 / 8, 3 / 8


class RowStatistics(NamedTuple):
    """Statistics of one row of weights. A key's share is ``|a_j| / sum_j |a_j|``.

    Attributes:
        near: Sum of the shares of keys that are at most 1/8 of the map's longer side away.
        middle: Sum of the shares of keys that are farther than 1/8, and at most 3/8 away.
        far: Sum of the shares of keys that are farther than 3/8 away.
        entropy: Entropy of the shares divided by log n. Equal shares have 1.
        negative: Sum of the shares of keys with a negative weight.
    """

    near: float
    middle: float
    far: float
    entropy: float
    negative: float


def places(hw_shape: Sequence[int]) -> Tensor:
    """Centres of the cells of a map, ``(H * W, 2)``, as fractions of its height and width."""
    axes = [(torch.arange(side).double() + 0.5) / side for side in hw_shape]
    return torch.cartesian_prod(*axes).view(-1, 2)


def attention_row(mixed: Mixed, query: int, head: int, channel: int = 0, window: int = 0) -> Tensor:
    """The weights ``(n_keys,)`` by which a query mixes one channel of the values.

    In most attentions, all channels of a head have the same weights. In PolaAttention, the first
    half of the channels has the weights of pairs of the same sign, and the second half those of
    pairs of opposite signs. In HydraAttention each channel has its own weights.

    Args:
        mixed: The recorded queries, keys and values of an attention, as :func:`mixed_by` gives
            them.
        query: Number of the query among the tokens.
        head: Number of the head.
        channel: Channel of the head. Default: 0.
        window: Number of the window in :class:`WindowAttention`. Default: 0.

    Raises:
        ValueError: If the attention has no matrix of tokens by tokens.
    """
    check_rows(mixed.attention)
    with torch.enable_grad():
        value = mixed.v.detach().requires_grad_()
        out = mixed.attention.mix(mixed.q, mixed.k, value, mixed.hw_shape, **mixed.options)
        (gradient,) = torch.autograd.grad(out[window, head, query, channel], value)
    return gradient[window, head, :, channel]


def check_rows(attention: BaseAttention) -> None:
    """Raise a ValueError if the attention has no matrix of tokens by tokens that mixes values."""
    if not attention.mixes_tokens:
        raise ValueError(
            f'{type(attention).__name__} mixes channels, or its output is no weighted sum of '
            'tokens, so there is no map of weights to draw; choose another attention'
        )


def nystrom_row(mixed: Mixed, query: int, head: int, window: int = 0) -> Tensor:
    """One row ``(n_keys,)`` of LaplacianAttention's Nyström matrix, before whitening.

    ``Ĝ = k(Q, L) (k(L, L) + ridge I)^-1 k(L, K)`` with landmarks L.
    """
    attention, hw_shape = mixed.attention, mixed.hw_shape
    kernel = partial(attention.kernel_fn, bandwidth=attention.bandwidth)
    of_map = mixed.k[:, :, attention.num_prefix_tokens :]
    landmarks = attention.landmarks(of_map, hw_shape, attention.rotary)
    q, k = upcast(mixed.q, mixed.k)
    if attention.rotary is not None:  # LaplacianAttention turns queries and keys as it mixes
        q, k = (attention.turn_behind_prefix(x, hw_shape) for x in (q, k))
    inverse = attention.invert(kernel(landmarks, landmarks))
    row = kernel(q[:, :, query : query + 1], landmarks) @ inverse
    return (row @ kernel(landmarks, k))[window, head, 0]


def cells_of_keys(mixed: Mixed) -> List[Tensor]:
    """For each row of tokens the row of its cell, and the same for the columns.

    A cell has the tokens of a key. Where there are fewer tokens than keys, as after pooling of a
    small map, it has one token, and several keys.
    """
    attention, ratio = mixed.attention, mixed.attention.frame.sr_ratio
    few = attention.kv_shape(mixed.hw_shape)
    if ratio > 1:
        return [torch.arange(side) // ratio for side in mixed.hw_shape]
    # Means over cells: all have the same number of tokens, or one more.
    return [torch.arange(side) * min(n, side) // side for side, n in zip(mixed.hw_shape, few)]


def on_tokens(mixed: Mixed, row: Tensor) -> Tensor:
    """A row of weights on the map of tokens, where each key fills its cell. Keys of one add up."""
    weights = row.view(mixed.attention.kv_shape(mixed.hw_shape))
    for axis, (cells, side) in enumerate(zip(cells_of_keys(mixed), mixed.hw_shape)):
        keys = weights.shape[axis]
        if keys > side:
            shape = list(weights.shape)
            shape[axis] = side
            token_of_key = torch.arange(keys) * side // keys
            weights = weights.new_zeros(shape).index_add(axis, token_of_key, weights)
        else:
            weights = weights.index_select(axis, cells)
    return weights


def tokens_beside(mixed: Mixed, place: Tuple[int, int]) -> Tuple[Tensor, int]:
    """The windows ``(n, tokens)`` and the number of that of a query at ``place``.

    They have the numbers of their tokens, from 0, and -1 for padding. Without windows, the map is
    one.
    """
    numbers = torch.arange(math.prod(mixed.map_shape))
    if not isinstance(mixed.outer, WindowAttention):
        return numbers[None], 0
    layout = (mixed.map_shape, *mixed.outer.window_and_shift(mixed.map_shape))
    windows = split_windows(1 + numbers[None, :, None], *layout)[..., 0] - 1
    query = place[0] * mixed.map_shape[1] + place[1]
    return windows, int((windows == query).nonzero()[0, 0])


def attention_map(
    mixed: Mixed, place: Tuple[int, int], head: int, channel: int = 0, matrix: str = 'whitened'
) -> Tensor:
    """The weights of the query at ``place`` for all keys, drawn as a map ``(H, W)``.

    Args:
        mixed: The recorded queries, keys and values of an attention.
        place: Row and column of the query.
        head: Number of the head.
        channel: Channel of the head. Default: 0.
        matrix: ``'whitened'`` for the weights that the attention applies, or ``'nystrom'`` for
            :func:`nystrom_row` of LaplacianAttention. Default: 'whitened'.

    Returns:
        The map. It is NaN outside of the query's window. Where keys come from a reduced map, each
        key fills the cells of its tokens.

    Raises:
        ValueError: If the attention has no matrix of tokens by tokens.
    """
    attention = mixed.attention
    windows, window = tokens_beside(mixed, place)
    tokens = windows[window]
    query = int((tokens == place[0] * mixed.map_shape[1] + place[1]).nonzero()[0, 0])
    prefix = getattr(attention, 'num_prefix_tokens', 0)
    if matrix == 'nystrom' and isinstance(attention, LaplacianAttention):
        row = nystrom_row(mixed, prefix + query, head, window)[prefix:]
    else:
        row = attention_row(mixed, prefix + query, head, channel, window)[prefix:]
    weights = on_tokens(mixed, row).flatten()
    real = tokens >= 0  # without the padding of the window
    drawn = weights.new_full((math.prod(mixed.map_shape),), math.nan)
    drawn[tokens[real]] = weights[real]
    return drawn.view(mixed.map_shape)


def matrices_of(attention: BaseAttention) -> Dict[str, dict]:
    """Names of the attention's matrices, each with its options for :func:`attention_map`."""
    if isinstance(attention, PolaAttention):
        return {'same signs': dict(channel=0), 'opposite signs': dict(channel=-1)}
    if isinstance(attention, LaplacianAttention):
        return {'Z': {}, 'Ĝ': dict(matrix='nystrom')}
    if isinstance(attention, SOFTAttention):
        return {'C W⁺ Cᵀ': {}}
    return {type(attention).__name__.replace('Attention', '').lower(): {}}


def row_statistics(mixed: Mixed, weights: Tensor, place: Tuple[int, int]) -> RowStatistics:
    """Statistics of the row ``weights`` that :func:`attention_map` returns for ``place``."""
    windows, window = tokens_beside(mixed, place)
    tokens = windows[window]
    down, across = cells_of_keys(mixed)
    cells = (down[:, None] * (int(across.max()) + 1) + across).flatten()
    real = tokens >= 0  # without the padding of the window
    tokens = tokens[real]
    _, cells = cells[real].unique(return_inverse=True)
    # A cell of several tokens counts once, at its centre.
    scale = torch.tensor(mixed.map_shape).double() / max(mixed.map_shape)
    weights_and_places = torch.cat(
        [weights.double().view(-1, 1), places(mixed.map_shape) * scale], dim=1
    )
    sums = torch.zeros(int(cells.max()) + 1, 3, dtype=torch.double)
    sums = sums.index_add(0, cells, weights_and_places[tokens])
    means = sums / cells.bincount()[:, None]
    query = weights_and_places[place[0] * mixed.map_shape[1] + place[1], 1:]
    row = means[:, 0]
    distance = (means[:, 1:] - query).norm(dim=-1)
    total = row.abs().sum()
    # A query that no key answers has a row of zeros, without shares. It counts as uniform.
    shares = row.abs() / total if total > 0 else torch.full_like(row, 1 / len(row))
    return RowStatistics(
        near=shares[distance <= NEAR].sum().item(),
        middle=shares[(distance > NEAR) & (distance <= FAR)].sum().item(),
        far=shares[distance > FAR].sum().item(),
        entropy=-torch.xlogy(shares, shares).sum().item() / math.log(max(2, len(row))),
        negative=shares[row < 0].sum().item(),
    )


def influence_map(
    attention: BaseAttention, x: Tensor, hw_shape: Tuple[int, int], place: Tuple[int, int]
) -> Tensor:
    """How strongly each input token changes the output of one query.

    This works for every attention, also for those without a matrix of tokens by tokens. For each
    token j it takes ``norm(d out_i / d x_j)``, the Frobenius norm of a C x C matrix. It needs C
    backward passes.

    Args:
        attention: The attention of a block.
        x: The input of the attention, ``(1, N, C)``, with prefix tokens if it has them.
        hw_shape: Height and width of the map.
        place: Row and column of the query. Prefix tokens do not count.

    Returns:
        The norms ``(H, W)``.
    """
    prefix = getattr(attention, 'num_prefix_tokens', 0)
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        out = attention(x, hw_shape)[0, prefix + place[0] * hw_shape[1] + place[1]]
        square = x.new_zeros(x.shape[1])
        for channel in out:
            (gradient,) = torch.autograd.grad(channel, x, retain_graph=True)
            square += gradient[0].square().sum(-1)
    return square[prefix:].sqrt().view(hw_shape)
