"""Pairs of tokens: their offsets, and a check of the memory of a value for each."""

from typing import Tuple

import torch
from torch import Tensor

from mmlaplace.ops import exporting
from mmlaplace.ops._checks import is_compiling

MOST_BYTES = 4e9  # may be set to another


def offsets_of_pairs(height: int, width: int, device: torch.device) -> Tuple[Tensor, Tensor]:
    """How far apart the tokens of each pair are, as indices of a table of offsets.

    Returns:
        Rows and columns, ``(N, N)`` each with ``N = height * width``. They are 0 for the smallest
        offset, ``1 - height`` or ``1 - width``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.pairs import offsets_of_pairs
        >>> rows, columns = offsets_of_pairs(1, 2, torch.device('cpu'))
        >>> torch.arange(3.0).view(1, 3)[rows, columns]
        tensor([[1., 0.],
                [2., 1.]])
    """
    rows = torch.arange(height, device=device).repeat_interleave(width)
    columns = torch.arange(width, device=device).repeat(height)
    return (
        rows[:, None] - rows[None, :] + height - 1,
        columns[:, None] - columns[None, :] + width - 1,
    )


def check_pairs_fit(attention: object, q: Tensor, k: Tensor, matrices: Tuple[int, int]) -> None:
    """Raise a ValueError if matrices of queries by keys would take more than 4 GB.

    Args:
        attention: The attention that the message names.
        q: Queries ``(B, heads, N, d)``.
        k: Keys ``(B, heads, n, d)``.
        matrices: Number of matrices in memory at a time, without and with gradients, as measured.
    """
    if (is_compiling() or torch.jit.is_tracing()) and exporting():
        return  # a graph need not know its sizes
    batch, heads, queries = q.shape[:3]
    training = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    count = matrices[1] if training else matrices[0]
    one = batch * heads * queries * k.shape[2] * max(q.element_size(), 4)  # fp32 at least
    if count * one > MOST_BYTES:
        raise ValueError(
            f'{type(attention).__name__} has a weight for each pair of tokens: {batch} '
            f'image{"s" * (batch > 1)} x {heads} heads x {queries} queries x {k.shape[2]} keys are '
            f'{one / 1e9:.1f} GB, and with {count} such matrices at a time {count * one / 1e9:.1f} '
            f'GB, more than {MOST_BYTES / 1e9:.0f} GB; take smaller images or batches, '
            'an attention that is linear in the tokens or, where the attention has it, sr_ratio, '
            f'or raise {__name__}.MOST_BYTES'
        )
