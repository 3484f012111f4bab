"""Windows of a token map: splitting, joining, and the mask of shifted windows.

A side or a shift is one number for both axes, or a pair for rows and columns.
"""

from typing import Any, Tuple, Union

import torch
from torch import Tensor

from mmlaplace.ops._checks import is_compiling
from mmlaplace.ops.backend import ceil_div, exporting

from .feature_map import shape_of_map

Sides = Union[int, Tuple[int, int]]


def split_windows(x: Tensor, hw_shape: Tuple[int, int], side: Sides, shift: Sides = 0) -> Tensor:
    """``(B, N, C) -> (B * windows, h * w, C)`` for windows of ``side = (h, w)`` tokens.

    Before the split, the map is rolled up and left by ``shift``. A map whose sides are no multiples
    of ``side`` gets zeros at the bottom and the right. Tokens are copied once.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import join_windows, split_windows
        >>> tokens = torch.randn(1, 10 * 15, 64)
        >>> windows = split_windows(tokens, (10, 15), side=7, shift=3)
        >>> windows.shape, torch.equal(join_windows(windows, (10, 15), side=7, shift=3), tokens)
        (torch.Size([6, 49, 64]), True)
        >>> split_windows(tokens, (10, 15), side=(5, 8)).shape
        torch.Size([4, 40, 64])
    """
    side, shift = _pair(side), _pair(shift)
    if side == tuple(hw_shape) and shift == (0, 0):
        return x
    out = _rearrange(x, *_places(hw_shape, side, shift, x.device))
    places = side[0] * side[1]
    return out.reshape(out.shape[0] * (out.shape[1] // places), places, out.shape[2])


def join_windows(x: Tensor, hw_shape: Tuple[int, int], side: Sides, shift: Sides = 0) -> Tensor:
    """The inverse of :func:`split_windows`: ``(B * windows, h * w, C) -> (B, N, C)``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import join_windows
        >>> join_windows(torch.randn(6, 49, 64), (10, 15), side=7).shape
        torch.Size([1, 150, 64])
    """
    side, shift = _pair(side), _pair(shift)
    if side == tuple(hw_shape) and shift == (0, 0):
        return x
    token, place = _places(hw_shape, side, shift, x.device)
    windows = token.shape[0] // (side[0] * side[1])
    x = x.reshape(x.shape[0] // windows, windows * x.shape[1], x.shape[2])
    return _rearrange(x, place, token)


def shifted_window_mask(
    hw_shape: Tuple[int, int], side: Sides, shift: Sides, device: torch.device
) -> Tensor:
    """Which tokens of a window were neighbours before the shift, ``(windows, h * w, h * w)``.

    The shift moves rows of the top to the bottom, and columns of the left to the right. A window
    there holds tokens of both borders, and a mask keeps these apart.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import shifted_window_mask
        >>> mask = shifted_window_mask((14, 14), side=7, shift=3, device=torch.device('cpu'))
        >>> mask.shape, mask[0].all().item(), mask[-1].all().item()
        (torch.Size([4, 49, 49]), True, False)
    """
    regions = []
    for size, length, step in zip(hw_shape, _pair(side), _pair(shift)):
        padded = ceil_div(size, length) * length
        places = torch.arange(padded, device=device)
        regions.append((places >= padded - length).int() + (places >= padded - step).int())
    region = 3 * regions[0][:, None] + regions[1][None, :]
    windows = split_windows(region.view(1, -1, 1), shape_of_map(region), side)[..., 0]
    return windows[:, :, None] == windows[:, None, :]


class Rearrange(torch.autograd.Function):
    """Rows of ``(B, N, C)`` in another order, and zeros between them.

    The derivative moves the rows back. The derivative of torch's indexing would add each row to a
    zero.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, taken: Tensor, back: Tensor) -> Tensor:
        """``taken`` has the old row of each new one, -1 for zeros, and ``back`` the reverse."""
        if len(taken) <= len(back):
            return x.index_select(1, taken)
        rows, empty = x.index_select(1, taken.clamp(min=0)), taken.lt(0)[:, None]
        if is_compiling():  # torch 2.11 gives an output that was changed in place wrong derivatives
            return rows.masked_fill(empty, 0)
        return rows.masked_fill_(empty, 0)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, None, None]:
        taken, back = ctx.saved_tensors
        return Rearrange.apply(grad, back, taken), None, None


def _rearrange(x: Tensor, taken: Tensor, back: Tensor) -> Tensor:
    if exporting():  # such graphs have no Function
        return Rearrange.forward(x, taken, back)
    return Rearrange.apply(x, taken, back)


def _places(
    hw_shape: Tuple[int, int], side: Tuple[int, int], shift: Tuple[int, int], device: torch.device
) -> Tuple[Tensor, Tensor]:
    """The token at each place of the windows, -1 for padding, and the place of each token."""
    width = hw_shape[1]
    rows, columns = (ceil_div(size, length) for size, length in zip(hw_shape, side))
    padded = rows * side[0], columns * side[1]
    row, column = (
        wrapped(torch.arange(size, device=device) + step, size) for size, step in zip(padded, shift)
    )
    inside = (row < hw_shape[0])[:, None] & (column < width)
    token = torch.where(inside, row[:, None] * width + column, -1)
    token = token.view(rows, side[0], columns, side[1]).transpose(1, 2).flatten()
    row, column = (
        wrapped(torch.arange(size, device=device) - step, whole)
        for size, whole, step in zip(hw_shape, padded, shift)
    )
    window = (row // side[0] * columns)[:, None] + column // side[1]
    place = window * (side[0] * side[1]) + (row % side[0] * side[1])[:, None] + column % side[1]
    return token, place.flatten()


def wrapped(places: Tensor, size: int) -> Tensor:
    """Places from ``-size`` to ``2 * size - 1`` on a side that is a ring.

    It is ``places % size``, which the ONNX exporters do not know for a dynamic size.
    """
    places = torch.where(places < 0, places + size, places)
    return torch.where(places >= size, places - size, places)


def _pair(value: Sides) -> Tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
