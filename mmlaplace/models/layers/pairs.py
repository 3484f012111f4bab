"""Attentions that have a value for each pair of tokens say so before they take the memory."""

from torch import Tensor

MOST_BYTES = 4e9


def check_pairs_fit(attention: object, q: Tensor, k: Tensor) -> None:
    """Raise a ValueError if a matrix of queries by keys would take more than 4 GB.

    Args:
        attention: Whose it is, for the message.
        q: Queries ``(B, heads, N, d)``.
        k: Keys ``(B, heads, n, d)``.
    """
    batch, heads, queries = q.shape[:3]
    needed = batch * heads * queries * k.shape[2] * max(q.element_size(), 4)  # fp32 at least
    if needed > MOST_BYTES:
        raise ValueError(
            f'{type(attention).__name__} has a weight for each pair of tokens: {batch} images x '
            f'{heads} heads x {queries} queries x {k.shape[2]} keys need {needed / 1e9:.1f} GB, '
            f'more than {MOST_BYTES / 1e9:.0f} GB; take smaller images or batches, sr_ratio, or '
            'an attention that is linear in the tokens'
        )
