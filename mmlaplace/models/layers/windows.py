"""Windows of a token map: splitting, joining, and the mask of shifted windows.

A side or a shift is one number for both axes, or a pair for rows and columns.
"""

from typing import Any, NamedTuple, Optional, Tuple, Union

import torch
from torch import Tensor

from mmlaplace.ops._checks import is_compiling
from mmlaplace.ops.backend import ceil_div, exporting

from .tables import computed_once

Sides = Union[int, Tuple[int, int]]


class Windows(NamedTuple):
    """How the tokens of a map lie in its windows.

    Attributes:
        size: How many places a window has.
        tokens: The token at each place of all windows, ``(windows * size,)``. A place without a
            token has 0. None if the map is one window as it is.
        empty: Which places have no token, ``(windows * size, 1)``. None if all have one.
        places: The place of each token, ``(N,)``. None as for ``tokens``.
    """

    size: int
    tokens: Optional[Tensor]
    empty: Optional[Tensor]
    places: Optional[Tensor]

    def split(self, x: Tensor) -> Tensor:
        """``(B, N, C) -> (B * windows, size, C)``, with zeros in empty places."""
        if self.tokens is None or self.places is None:
            return x
        if torch.is_grad_enabled() and x.requires_grad and not exporting():
            out = Rearrange.apply(x, self.tokens, self.empty, self.places, None)
        else:
            out = take_rows(x, self.tokens, self.empty)
        return out.reshape(out.shape[0] * (out.shape[1] // self.size), self.size, out.shape[2])

    def split_apart(self, x: Tensor) -> Tensor:
        """``(B, N, C) -> (B, windows, size, C)``, as :meth:`split`. ``B`` may be 0."""
        windows = 1 if self.tokens is None else self.tokens.shape[0] // self.size
        return self.split(x).unflatten(0, (-1, windows))

    def join(self, x: Tensor) -> Tensor:
        """``(B * windows, size, C) -> (B, N, C)``."""
        if self.tokens is None or self.places is None:
            return x
        windows = self.tokens.shape[0] // self.size
        x = x.reshape(x.shape[0] // windows, windows * x.shape[1], x.shape[2])
        if torch.is_grad_enabled() and x.requires_grad and not exporting():
            return Rearrange.apply(x, self.places, None, self.tokens, self.empty)
        return x.index_select(1, self.places)


def windows_of(
    hw_shape: Tuple[int, int], side: Sides, shift: Sides, device: torch.device
) -> Windows:
    """The windows of a map that is padded at the end, then rolled up and left by ``shift``.

    A negative shift rolls down and right, so some of the padding is before the map.
    """
    side, shift = _pair(side), _pair(shift)
    size = side[0] * side[1]
    if side == hw_shape and shift == (0, 0):
        return Windows(size, None, None, None)
    height, width = hw_shape
    padded = [ceil_div(length, step) * step for length, step in zip(hw_shape, side)]
    # The row and the column at each place of the windows. Beyond the map, they are padding.
    row, column = (
        wrapped(torch.arange(whole, device=device) + step, whole)
        for whole, step in zip(padded, shift)
    )
    inside = (row < height)[:, None] & (column < width)
    tokens = _cut(torch.where(inside, row[:, None] * width + column, -1), side).flatten()

    # The place of each row and each column, and the number of that place in the order of windows.
    row, column = (
        wrapped(torch.arange(length, device=device) - step, whole)
        for length, whole, step in zip(hw_shape, padded, shift)
    )
    numbers = torch.arange(tokens.shape[0], device=device)
    numbers = numbers.view(-1, padded[1] // side[1], *side).transpose(1, 2).reshape(-1, padded[1])
    places = numbers.index_select(0, row).index_select(1, column).flatten()

    if tokens.shape[0] <= places.shape[0]:
        return Windows(size, tokens, None, places)
    return Windows(size, tokens.clamp(min=0), tokens.lt(0)[:, None], places)


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
    return computed_once(windows_of, tuple(hw_shape), side, shift, like=x).split(x)


def join_windows(x: Tensor, hw_shape: Tuple[int, int], side: Sides, shift: Sides = 0) -> Tensor:
    """The inverse of :func:`split_windows`: ``(B * windows, h * w, C) -> (B, N, C)``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import join_windows
        >>> join_windows(torch.randn(6, 49, 64), (10, 15), side=7).shape
        torch.Size([1, 150, 64])
    """
    return computed_once(windows_of, tuple(hw_shape), side, shift, like=x).join(x)


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
    side = _pair(side)
    parts = []  # of each axis: 0 before the last window, 1 in it, 2 after the border
    for size, length, step in zip(hw_shape, side, _pair(shift)):
        padded = ceil_div(size, length) * length
        place = torch.arange(padded, device=device)
        parts.append((place >= padded - length).int() + (place >= padded - step).int())
    windows = _cut(3 * parts[0][:, None] + parts[1][None, :], side)
    return windows[:, :, None] == windows[:, None, :]


def wrapped(places: Tensor, size: int) -> Tensor:
    """Places from ``-size`` to ``2 * size - 1`` on a side that is a ring.

    It is ``places % size``, which the ONNX exporters do not know for a dynamic size.
    """
    places = torch.where(places < 0, places + size, places)
    return torch.where(places >= size, places - size, places)


def take_rows(x: Tensor, rows: Tensor, empty: Optional[Tensor]) -> Tensor:
    """Rows of ``(B, N, C)`` by their numbers, with zeros where ``empty`` is true."""
    out = x.index_select(1, rows)
    if empty is None:
        return out
    if is_compiling():  # torch 2.11 gives an output that was changed in place wrong derivatives
        return out.masked_fill(empty, 0)
    return out.masked_fill_(empty, 0)


class Rearrange(torch.autograd.Function):
    """:func:`take_rows` where each row of x is taken once, so that the derivative moves rows back.

    The derivative of torch's indexing would add each row to a zero. Exported graphs have it, as
    they know no such class.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, rows: Tensor, empty: Optional[Tensor], back: Tensor, empty_back: Optional[Tensor]
    ) -> Tensor:
        """``back`` and ``empty_back`` are the way back."""
        return take_rows(x, rows, empty)

    @staticmethod
    def setup_context(ctx: Any, inputs: Tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        rows, empty, back, empty_back = ctx.saved_tensors
        return Rearrange.apply(grad, back, empty_back, rows, empty), None, None, None, None


def _cut(padded: Tensor, side: Tuple[int, int]) -> Tensor:
    """``(H, W) -> (windows, h * w)`` of a map that windows divide."""
    height, width = side
    rows = padded.view(-1, height, padded.shape[1] // width, width)
    return rows.transpose(1, 2).reshape(-1, height * width)


def _pair(value: Sides) -> Tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
