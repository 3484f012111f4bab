"""Rows of attention matrices: from where a query takes its value, and how far away that is.

Attentions mix values linearly, ``out = A v``, though most never hold the N x N matrix A. A row of
it is the gradient of one mixed value with respect to the values, which is exact, and linear in N.
"""

import math
from functools import partial
from typing import Dict, NamedTuple, Sequence, Tuple

import torch
from torch import Tensor

from ..models import (
    BaseAttention,
    LaplacianAttention,
    PolaAttention,
    SOFTAttention,
    WindowAttention,
)
from ..models.layers import join_windows, split_windows
from .recording import Mixed

# Distances of query and key in units of the map's longer side: 2 and 6 of 16 tokens.
NEAR, FAR = 1 / 8, 3 / 8


class RowStatistics(NamedTuple):
    """Of one row of weights. Shares are those of absolute weights, ``|a_j| / sum_j |a_j|``.

    Attributes:
        near, middle, far: Shares of keys up to an eighth of the map's longer side away, up to three
            eighths, and beyond.
        entropy: Of the shares, divided by log n, so that 1 is uniform.
        negative: Share of the negative weights.
    """

    near: float
    middle: float
    far: float
    entropy: float
    negative: float


def places(hw_shape: Sequence[int]) -> Tensor:
    """Centres of the cells of a map in units of it, ``(H * W, 2)``."""
    axes = [(torch.arange(side).double() + 0.5) / side for side in hw_shape]
    return torch.cartesian_prod(*axes).view(-1, 2)


def attention_row(mixed: Mixed, query: int, head: int, channel: int = 0, window: int = 0) -> Tensor:
    """Weights of a query for all keys, ``(n_keys,)``, as the attention applies them to a channel.

    All channels have the same but those of PolaAttention, whose first half is mixed by pairs of the
    same signs and whose second half by those of opposite signs.
    """
    check_rows(mixed.attention)
    with torch.enable_grad():
        value = mixed.v.detach().requires_grad_()
        out = mixed.attention.mix(mixed.q, mixed.k, value, mixed.hw_shape, **mixed.options)
        (gradient,) = torch.autograd.grad(out[window, head, query, channel], value)
    return gradient[window, head, :, channel]


def check_rows(attention: BaseAttention) -> None:
    """Raise a ValueError where values are not mixed by a matrix of tokens by tokens."""
    if not attention.mixes_tokens:
        raise ValueError(
            f'{type(attention).__name__} mixes channels, or divides by what it mixes, so there is '
            'no map of weights to draw; take another attention'
        )


def nystrom_row(mixed: Mixed, query: int, head: int, window: int = 0) -> Tensor:
    """A row of LaplacianAttention's kernel matrix G^ = k(Q, L) (k(L, L) + ridge I)^-1 k(L, K)."""
    attention = mixed.attention
    kernel = partial(attention.kernel_fn, bandwidth=attention.bandwidth)
    landmarks = attention.landmarks(mixed.k, mixed.hw_shape)
    inverse = attention.invert(kernel(landmarks, landmarks))
    row = kernel(mixed.q[:, :, query : query + 1], landmarks) @ inverse
    return (row @ kernel(landmarks, mixed.k))[window, head, 0]


def attention_map(
    mixed: Mixed, place: Tuple[int, int], head: int, channel: int = 0, matrix: str = 'whitened'
) -> Tensor:
    """Weights of the query at (row, column) over the map ``(H, W)``, NaN outside of its window."""
    attention, (height, width) = mixed.attention, mixed.hw_shape
    query, window, tokens = place[0] * mixed.map_shape[1] + place[1], 0, None
    if isinstance(mixed.outer, WindowAttention):
        layout = (mixed.map_shape, *mixed.outer.window_and_shift(mixed.map_shape))
        # The token in every place of the windows, counted from 1; 0 is padding.
        tokens = 1 + torch.arange(math.prod(mixed.map_shape))
        tokens = split_windows(tokens[None, :, None], *layout)[..., 0]
        window, query = (tokens == 1 + query).nonzero()[0].tolist()
    prefix = getattr(attention, 'num_prefix_tokens', 0)
    if matrix == 'nystrom' and isinstance(attention, LaplacianAttention):
        row = nystrom_row(mixed, query, head, window)
    else:
        row = attention_row(mixed, prefix + query, head, channel, window)[prefix:]
    keys = row.view(attention.kv_shape((height, width)))
    ratio = attention.frame.sr_ratio
    weights = keys.repeat_interleave(ratio, 0).repeat_interleave(ratio, 1)[:height, :width]
    if tokens is None:
        return weights
    maps = torch.full(tokens.shape, math.nan, dtype=weights.dtype)
    maps[window] = weights.flatten()
    return join_windows(maps[..., None], *layout).view(mixed.map_shape)


def matrices_of(attention: BaseAttention) -> Dict[str, dict]:
    """Names of the attention's matrices, each with the options of :func:`attention_map` for it."""
    if isinstance(attention, PolaAttention):
        return {'same signs': dict(channel=0), 'opposite signs': dict(channel=-1)}
    if isinstance(attention, LaplacianAttention):
        return {'Z': {}, 'Ĝ': dict(matrix='nystrom')}
    if isinstance(attention, SOFTAttention):
        return {'C W⁺ Cᵀ': {}}
    return {type(attention).__name__.replace('Attention', '').lower(): {}}


def row_statistics(mixed: Mixed, weights: Tensor, place: Tuple[int, int]) -> RowStatistics:
    """Statistics of a row that :func:`attention_map` gives for the query at (row, column)."""
    ratio = mixed.attention.frame.sr_ratio  # a key of a reduced map covers several tokens
    keys = weights[::ratio, ::ratio].double()
    scale = torch.tensor(mixed.map_shape).double() / max(mixed.map_shape)
    query = places(mixed.map_shape)[place[0] * mixed.map_shape[1] + place[1]]
    distance = ((places(keys.shape) - query) * scale).norm(dim=-1)
    row = keys.flatten()
    inside = row.isfinite()  # of the query's window
    row, distance = row[inside], distance[inside]
    total = row.abs().sum()
    # A row of zeros, which a query gets that no key answers, has no shares. It counts as uniform.
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
    """How much a query's output changes with each token, also where no matrix mixes values.

    ``norm(d out_i / d x_j)``, the Frobenius norm of a C x C matrix for each token j, from as many
    backward passes as there are channels.

    Args:
        attention: Of a block.
        x: Its input ``(1, N, C)``.
        hw_shape: Height and width of the map.
        place: Row and column of the query.

    Returns:
        Norms ``(H, W)``.
    """
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        out = attention(x, hw_shape)[0, place[0] * hw_shape[1] + place[1]]
        square = x.new_zeros(x.shape[1])
        for channel in out:
            (gradient,) = torch.autograd.grad(channel, x, retain_graph=True)
            square += gradient[0].square().sum(-1)
    return square.sqrt().view(hw_shape)
