"""Statistics of the attention matrices of a backbone, and the size of its attention terms."""

import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn as nn
from torch import Tensor

from mmlaplace.analysis.attention_rows import FAR, NEAR, places
from mmlaplace.analysis.recording import (
    attention_matrix,
    mixed_by,
    root_mean_square,
    steps_watched,
)
from mmlaplace.models import BaseAttention, HydraAttention, PolaAttention, QKVAttention

RANK_TOLERANCE = 1e-3  # of the largest singular value


class Statistics(NamedTuple):
    """Statistics of a matrix A of weights: means over rows, heads, blocks and images.

    Where the channels of a head have different weights, these are means over some channels too.
    A key's share of row i is ``|A_ij| / sum_j |A_ij|``.

    Attributes:
        row_sum: Sum of the weights of a row.
        row_sum_deviation: Standard deviation of these sums over the rows.
        negative: Sum of the shares of keys with a negative weight.
        entropy: Entropy of the shares divided by log n. Equal shares have 1.
        sharpness: The largest share of a row.
        rank: Fraction of the singular values that are above a thousandth of the largest one.
        row_distance: Half the sum of the absolute differences between the shares of two rows, as a
            mean over all pairs of queries. It is 0 if all queries have the same shares, and at
            most 1.
        near: Sum of the shares of keys that are at most 1/8 of the map's longer side away.
        middle: Sum of the shares of keys that are farther than 1/8, and at most 3/8 away.
        far: Sum of the shares of keys that are farther than 3/8 away.
    """

    row_sum: float
    row_sum_deviation: float
    negative: float
    entropy: float
    sharpness: float
    rank: float
    row_distance: float
    near: float
    middle: float
    far: float


def statistics_of(
    matrix: Tensor,
    query_shape: Tuple[int, int],
    key_shape: Tuple[int, int],
    longest: Optional[int] = None,
) -> Statistics:
    """The statistics of matrices ``(..., N, n)`` for the N queries and n keys of two maps.

    Args:
        matrix: The matrices. All axes before the last two count as heads.
        query_shape: Height and width of the map of queries. Their product is N.
        key_shape: Height and width of the map of keys. Their product is n.
        longest: The longer side of the whole map, if the queries are a window of it. Default: that
            of ``query_shape``.
    """
    matrix = matrix.double().flatten(0, -3)
    total = matrix.abs().sum(-1, keepdim=True)
    # A query that no key answers has a row of zeros, without shares. It counts as uniform.
    uniform = torch.full_like(matrix, 1 / matrix.shape[-1])
    shares = torch.where(total > 0, matrix.abs() / total, uniform)
    scale = torch.tensor(query_shape).double() / (longest or max(query_shape))
    distance = torch.cdist(places(query_shape) * scale, places(key_shape) * scale)
    sums = matrix.sum(-1)
    values = torch.linalg.svdvals(matrix)
    entropy = -torch.xlogy(shares, shares).sum(-1) / math.log(max(2, matrix.shape[-1]))
    apart = torch.stack([torch.cdist(one, one, p=1).mean() / 2 for one in shares])
    queries = matrix.shape[-2]
    apart *= queries / max(1, queries - 1)  # without the pairs of a row with itself
    figures = dict(
        row_sum=sums,
        row_sum_deviation=sums.std(-1, unbiased=False),
        negative=(shares * (matrix < 0)).sum(-1),
        entropy=entropy,
        sharpness=shares.amax(-1),
        rank=(values > RANK_TOLERANCE * values[..., :1]).double().mean(-1),
        row_distance=apart,
        near=(shares * (distance <= NEAR)).sum(-1),
        middle=(shares * ((distance > NEAR) & (distance <= FAR))).sum(-1),
        far=(shares * (distance > FAR)).sum(-1),
    )
    return Statistics(**{name: values.mean().item() for name, values in figures.items()})


def channels_of(attention: nn.Module) -> Sequence[int]:
    """The channels of a head whose weights represent those of all its channels."""
    if isinstance(attention, HydraAttention):
        return range(0, attention.head_dims, max(1, attention.head_dims // 4))  # a sample
    if isinstance(attention, PolaAttention):
        return 0, attention.head_dims - 1  # one of each half
    return (0,)


def statistics_by_stage(backbone: nn.Module, images: List[Tensor]) -> List[Dict[str, float]]:
    """Mean statistics of the attention matrices of each stage, over its blocks and the images.

    Args:
        backbone: The backbone.
        images: Normalised images, each ``(1, 3, H, W)``.

    Returns:
        A dict for each stage: ``stage`` counts from 1, ``tokens`` is the number of tokens, and the
        other keys are those of :class:`Statistics`. In windows, they are of the first window.
        Stages with a single token, with a class token or without a matrix of tokens by tokens are
        left out.
    """
    by_stage: Dict[int, List[Statistics]] = {}
    tokens = {}
    for image in images:
        for mixed in mixed_by(backbone, BaseAttention, image):
            attention = mixed.attention
            prefix = getattr(attention, 'num_prefix_tokens', 0)
            if not attention.mixes_tokens or prefix or math.prod(mixed.hw_shape) < 2:
                continue
            shapes = mixed.hw_shape, attention.kv_shape(mixed.hw_shape)
            matrices = [attention_matrix(mixed, channel) for channel in channels_of(attention)]
            statistics = statistics_of(torch.stack(matrices), *shapes, max(mixed.map_shape))
            by_stage.setdefault(mixed.stage, []).append(statistics)
            tokens[mixed.stage] = math.prod(mixed.map_shape)
    rows = []
    for stage, of_blocks in sorted(by_stage.items()):
        row: Dict[str, float] = dict(stage=stage + 1, tokens=tokens[stage])
        for name in Statistics._fields:
            row[name] = sum(getattr(one, name) for one in of_blocks) / len(of_blocks)
        rows.append(row)
    return rows


def term_sizes(backbone: nn.Module, images: List[Tensor]) -> List[Dict[str, Any]]:
    """Root mean squares of V, of the mixed values and of the local branch, for each attention.

    Args:
        backbone: The backbone.
        images: Normalised images, each ``(1, 3, H, W)``.

    Returns:
        A dict for each attention, with means over the images: ``attention`` is its name in the
        backbone, ``values`` is for V, ``mixed`` for the mixed values, and ``local`` for the local
        branch, if the attention has one.
    """
    sizes: Dict[str, Dict[str, List[float]]] = {}

    def note(name: str, term: str, value: Tensor) -> None:
        sizes.setdefault(name, {}).setdefault(term, []).append(root_mean_square(value))

    def see(name, attention, step, arguments, output):
        if step == 'mix':
            note(name, 'mixed', output)
            note(name, 'values', arguments[2])
        elif output is not None:
            note(name, 'local', output)

    with steps_watched(backbone, QKVAttention, ('mix', 'local_branch'), see), torch.no_grad():
        for image in images:
            backbone(image)
    return [
        dict(attention=name, **{term: sum(v) / len(v) for term, v in terms.items()})
        for name, terms in sizes.items()
    ]
