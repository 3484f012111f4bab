from typing import Tuple

from torch import Tensor


def tokens_to_map(x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
    """``(B, N, C) -> (B, C, H, W)`` for ``N = H * W``, row by row."""
    return x.transpose(1, 2).unflatten(2, tuple(hw_shape))


def map_to_tokens(x: Tensor) -> Tensor:
    """``(B, C, H, W) -> (B, N, C)`` with ``N = H * W``, row by row."""
    return x.flatten(2).transpose(1, 2)
