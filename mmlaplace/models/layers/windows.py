"""Square windows of a token map: splitting, joining, and the mask of shifted windows."""

from typing import Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .feature_map import map_to_tokens, tokens_to_map


def split_windows(x: Tensor, hw_shape: Tuple[int, int], side: int, shift: int = 0) -> Tensor:
    """``(B, N, C) -> (B * windows, side * side, C)``.

    Before the split, the map is rolled up and left by ``shift``. A map whose sides are no multiples
    of ``side`` gets zeros at the bottom and the right.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import join_windows, split_windows
        >>> tokens = torch.randn(1, 10 * 15, 64)
        >>> windows = split_windows(tokens, (10, 15), side=7, shift=3)
        >>> windows.shape, torch.equal(join_windows(windows, (10, 15), side=7, shift=3), tokens)
        (torch.Size([6, 49, 64]), True)
    """
    height, width = hw_shape
    maps = tokens_to_map(x, hw_shape)  # (B, C, H, W)
    maps = F.pad(maps, (0, -width % side, 0, -height % side))
    if shift:
        maps = maps.roll((-shift, -shift), (2, 3))
    tiles = maps.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (B, C, rows, s, columns, s)
    return tiles.permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(0, 2)


def join_windows(x: Tensor, hw_shape: Tuple[int, int], side: int, shift: int = 0) -> Tensor:
    """The inverse of :func:`split_windows`: ``(B * windows, side * side, C) -> (B, N, C)``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import join_windows
        >>> join_windows(torch.randn(6, 49, 64), (10, 15), side=7).shape
        torch.Size([1, 150, 64])
    """
    rows, columns = (-(-size // side) for size in hw_shape)
    tiles = x.unflatten(1, (side, side)).unflatten(0, (-1, rows, columns))
    maps = tiles.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)  # (B, C, rows s, columns s)
    if shift:
        maps = maps.roll((shift, shift), (2, 3))
    return map_to_tokens(maps[:, :, : hw_shape[0], : hw_shape[1]])


def shifted_window_mask(
    hw_shape: Tuple[int, int], side: int, shift: int, device: torch.device
) -> Tensor:
    """Which tokens of a window were neighbours before the shift, ``(windows, side², side²)``.

    Rolling brings rows of the top to the bottom, and columns of the left to the right. A window
    there holds tokens of both borders, which must not see each other.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import shifted_window_mask
        >>> mask = shifted_window_mask((14, 14), side=7, shift=3, device=torch.device('cpu'))
        >>> mask.shape, mask[0].all().item(), mask[-1].all().item()
        (torch.Size([4, 49, 49]), True, False)
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
