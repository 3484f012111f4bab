from typing import Tuple

import torch
from torch import Tensor


def tokens_to_map(x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
    """``(B, N, C) -> (B, C, H, W)`` for ``N = H * W``, row by row."""
    return x.transpose(1, 2).unflatten(2, tuple(hw_shape))


def map_to_tokens(x: Tensor) -> Tensor:
    """``(B, C, H, W) -> (B, N, C)`` with ``N = H * W``, row by row."""
    return x.flatten(2).transpose(1, 2)


def memory_format_of(x: Tensor) -> torch.memory_format:
    """``torch.channels_last`` for maps ``(B, C, H, W)`` in that order, else contiguous."""
    if x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous():
        return torch.channels_last
    return torch.contiguous_format
