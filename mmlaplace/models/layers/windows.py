"""Square windows of a token map: apart, together again, and which tokens belong together."""

from typing import Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .feature_map import map_to_tokens, tokens_to_map


def split_windows(x: Tensor, hw_shape: Tuple[int, int], side: int, shift: int = 0) -> Tensor:
    """``(B, N, C) -> (B * windows, side * side, C)``, of the map rolled up and left by ``shift``.

    Maps whose sides are no multiples of ``side`` get zeros at the bottom and the right.
    """
    height, width = hw_shape
    maps = tokens_to_map(x, hw_shape)
    maps = F.pad(maps, (0, -width % side, 0, -height % side))
    if shift:
        maps = maps.roll((-shift, -shift), (2, 3))
    tiles = maps.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (B, C, rows, s, columns, s)
    return tiles.permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(0, 2)


def join_windows(x: Tensor, hw_shape: Tuple[int, int], side: int, shift: int = 0) -> Tensor:
    """The inverse of :func:`split_windows`: ``(B * windows, side * side, C) -> (B, N, C)``."""
    rows, columns = (-(-size // side) for size in hw_shape)
    tiles = x.unflatten(1, (side, side)).unflatten(0, (-1, rows, columns))
    maps = tiles.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
    if shift:
        maps = maps.roll((shift, shift), (2, 3))
    return map_to_tokens(maps[:, :, : hw_shape[0], : hw_shape[1]])


def shifted_window_mask(
    hw_shape: Tuple[int, int], side: int, shift: int, device: torch.device
) -> Tensor:
    """Which tokens of a window were neighbours before the shift, ``(windows, side², side²)``.

    Rolling brings rows of the top to the bottom, and columns of the left to the right; a window
    there holds tokens of both, which are not to see each other.
    """
    regions = []
    for size in hw_shape:
        padded = -(-size // side) * side
        places = torch.arange(padded, device=device)
        regions.append((places >= padded - side).int() + (places >= padded - shift).int())
    region = 3 * regions[0][:, None] + regions[1][None, :]
    tokens = map_to_tokens(region[None, None])
    windows = split_windows(tokens, region.shape, side)[..., 0]
    return windows[:, :, None] == windows[:, None, :]
