"""Sequences of a batch without their padding."""

from typing import Iterator, List, Tuple

import torch
from torch import Tensor


def equal_lengths(lengths: Tensor) -> Iterator[Tuple[int, Tensor]]:
    """Each length that sequences of a batch have, and the rows ``(r,)`` that have it.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.padding import equal_lengths
        >>> list(equal_lengths(torch.tensor([5, 3, 5])))
        [(3, tensor([1])), (5, tensor([0, 2]))]
    """
    sizes: List[int] = lengths.tolist()
    for size in sorted(set(sizes)):
        rows = [row for row, other in enumerate(sizes) if other == size]
        yield size, torch.tensor(rows, device=lengths.device)


def places_of(place: Tensor, like: Tensor) -> Tensor:
    """Places ``(r, size)`` of tokens as an index of ``(r, heads, size, d)``."""
    return place[:, None, :, None].expand(-1, like.shape[1], -1, like.shape[3])


def taken(x: Tensor, rows: Tensor, place: Tensor) -> Tensor:
    """Tokens ``(r, heads, size, d)`` at places of rows of ``(B, heads, N, d)``."""
    return x[rows].gather(2, places_of(place, x))
