"""Checks of options that many attentions share."""

from typing import Any


def check_counts(**counts: Any) -> None:
    """Raise a ValueError unless each value is an integer of at least 1.

    Examples:
        >>> from mmlaplace.models.layers.checks import check_counts
        >>> check_counts(num_landmarks=49)
        >>> check_counts(num_landmarks=49, num_iters=2.5)
        Traceback (most recent call last):
        ...
        ValueError: num_iters must be an integer of at least 1, got 2.5
    """
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f'{name} must be an integer of at least 1, got {value!r}')
