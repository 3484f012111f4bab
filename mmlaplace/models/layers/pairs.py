"""Values for each pair of tokens: a table of their offsets, and a check of memory."""

from typing import Sequence, Tuple

import torch
from torch import Tensor

from mmlaplace.ops import exporting

MOST_BYTES = 4e9  # may be set to another


def of_each_pair(table: Tensor, hw_shape: Sequence[int]) -> Tensor:
    """The values of a table for the offset of each pair of tokens of a map.

    Args:
        table: By offsets of rows and of columns, ``(1, heads, 2 * H - 1, 2 * W - 1)``.
        hw_shape: Height and width of the map.

    Returns:
        ``(1, heads, N, N)`` with ``N = H * W``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.pairs import of_each_pair
        >>> of_each_pair(torch.arange(3.0).view(1, 1, 1, 3), (1, 2))
        tensor([[[[1., 0.],
                  [2., 1.]]]])
    """
    height, width = hw_shape
    rows = torch.arange(height, device=table.device).repeat_interleave(width)
    columns = torch.arange(width, device=table.device).repeat(height)
    return table[
        :,
        :,
        rows[:, None] - rows[None, :] + height - 1,
        columns[:, None] - columns[None, :] + width - 1,
    ]


def check_pairs_fit(attention: object, q: Tensor, k: Tensor, matrices: Tuple[int, int]) -> None:
    """Raise a ValueError if matrices of queries by keys would take more than 4 GB.

    Args:
        attention: The attention that the message names.
        q: Queries ``(B, heads, N, d)``.
        k: Keys ``(B, heads, n, d)``.
        matrices: Number of matrices in memory at a time, without and with gradients, as measured.
    """
    if exporting():  # a graph need not know its sizes
        return
    batch, heads, queries = q.shape[:3]
    training = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    count = matrices[1] if training else matrices[0]
    one = batch * heads * queries * k.shape[2] * max(q.element_size(), 4)  # fp32 at least
    if count * one > MOST_BYTES:
        images = f'{batch} images' if batch > 1 else f'{batch} image'
        raise ValueError(
            f'{type(attention).__name__} has a weight for each pair of tokens: {images} x {heads} '
            f'heads x {queries} queries x {k.shape[2]} keys are '
            f'{one / 1e9:.1f} GB, and with {count} such matrices at a time {count * one / 1e9:.1f} '
            f'GB, more than {MOST_BYTES / 1e9:.0f} GB; take smaller images or batches, '
            'an attention that is linear in the tokens or, where the attention has it, sr_ratio, '
            f'or raise {__name__}.MOST_BYTES'
        )
