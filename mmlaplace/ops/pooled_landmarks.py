"""Means of cells of a map of tokens."""

from typing import Any, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _checks, _native
from .backend import ceil_div, exporting
from .precision import no_autocast, upcast, wide_dtype
from .rotary import check_form, check_table, turn

OP = 'pooled_landmarks'


def pooled_landmarks_reference(
    k: Tensor,
    rotary: Optional[Tensor],
    rotary_form: str,
    height: int,
    width: int,
    rows: Optional[int],
    columns: Optional[int],
    ratio: Optional[int],
) -> Tensor:
    """The specification of :func:`pooled_landmarks` in plain PyTorch."""
    (tokens,) = upcast(k)
    if rotary is not None:
        tokens = turn(tokens, rotary, rotary_form)
    if exporting():  # pooling of dynamic sizes is in no runtime, and products are
        return _pooled_by_products(tokens, height, width, rows, columns, ratio)
    maps = tokens.flatten(0, 1).transpose(1, 2).unflatten(2, (height, width))  # (B heads, d, H, W)
    if ratio is not None:
        maps = F.avg_pool2d(maps, ratio, ceil_mode=True, count_include_pad=False)
    else:
        maps = F.adaptive_avg_pool2d(maps, (rows, columns))
    return maps.flatten(2).transpose(1, 2).unflatten(0, k.shape[:2])


def _pooled_by_products(
    tokens: Tensor,
    height: int,
    width: int,
    rows: Optional[int],
    columns: Optional[int],
    ratio: Optional[int],
) -> Tensor:
    """Means of rows and then of columns, as products with two matrices."""
    of_rows = pooling_matrix(height, rows, ratio, tokens)  # (r, H)
    of_columns = pooling_matrix(width, columns, ratio, tokens)  # (c, W)
    images, dims = tokens.shape[:2], tokens.shape[3]
    pooled = of_rows @ tokens.reshape(*images, height, width * dims)  # (B, heads, r, W * d)
    pooled = of_columns @ pooled.reshape(*images, -1, width, dims)  # (B, heads, r, c, d)
    return pooled.flatten(2, 3)


def pooling_matrix(size: int, cells: Optional[int], ratio: Optional[int], like: Tensor) -> Tensor:
    """The weights by which ``size`` tokens become means of cells, ``(cells, size)``.

    Args:
        size: Tokens of a side.
        cells: Cells of adaptive average pooling, or None.
        ratio: Tokens of a cell, of which the last may be cut, or None.
        like: A tensor with the dtype and device of the weights.
    """
    place = torch.arange(size, device=like.device)
    if ratio is not None:
        first = torch.arange(ceil_div(size, ratio), device=like.device) * ratio
        stop = (first + ratio).clamp(max=size)
    else:
        assert cells is not None
        cell = torch.arange(cells, device=like.device)
        first, stop = cell * size // cells, ceil_div((cell + 1) * size, cells)
    first, stop = first[:, None], stop[:, None]
    inside = (place >= first) & (place < stop)
    return inside.to(like.dtype) / (stop - first).to(like.dtype)


class Pool(_native.Function):
    """The compiled op, which is linear in its tokens."""

    @staticmethod
    def forward(k: Tensor, *constants: Any) -> Tensor:
        with _native.below_autograd():
            return _native.compiled(OP)(k, *constants)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        k, rotary, *ctx.constants = inputs
        # The backward needs the shape and the dtype of the tokens alone.
        ctx.save_for_backward(k.new_empty(()).expand(k.shape), rotary)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        like, rotary = ctx.saved_tensors
        return (Spread.apply(grad, like, rotary, *ctx.constants), *(None,) * 7)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, k: Tensor, *constants: Any) -> Tuple[Tensor, int]:
        joined = k.movedim(in_dims[0], 0).flatten(0, 1)
        return Pool.apply(joined, *constants).unflatten(0, (info.batch_size, -1)), 0


class Spread(_native.Function):
    """The transpose of :class:`Pool`. Its own transpose is :class:`Pool`."""

    @staticmethod
    def forward(grad: Tensor, like: Tensor, *constants: Any) -> Tensor:
        with _native.below_autograd():
            return _native.compiled(f'_{OP}_backward')(grad, like, *constants)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        grad, _, rotary, *ctx.constants = inputs
        ctx.dtype = grad.dtype
        ctx.save_for_backward(rotary)

    @staticmethod
    def backward(ctx: Any, change: Tensor) -> tuple:
        (rotary,) = ctx.saved_tensors
        return (Pool.apply(change, rotary, *ctx.constants).to(ctx.dtype), *(None,) * 8)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple, grad: Tensor, like: Tensor, *constants: Any
    ) -> Tuple[Tensor, int]:
        joined = grad.movedim(in_dims[0], 0).flatten(0, 1)
        axis = in_dims[1]
        like = like.expand(info.batch_size, *like.shape) if axis is None else like.movedim(axis, 0)
        out = Spread.apply(joined, like.flatten(0, 1), *constants)
        return out.unflatten(0, (info.batch_size, -1)), 0


def pooled_landmarks(
    k: Tensor,
    hw_shape: Tuple[int, int],
    *,
    cells: Optional[Tuple[int, int]] = None,
    ratio: Optional[int] = None,
    rotary: Optional[Tensor] = None,
    rotary_form: str = 'half',
    backend: str = 'auto',
) -> Tensor:
    r"""Landmarks: the mean of the tokens of each cell of a map.

    .. math:: L_a = \frac{1}{|Z_a|} \sum_{j \in Z_a} R_j k_j

    with the cells Z and the rotations R of the tokens' rotary positions. The compiled op never
    stores rotated tokens. It has derivatives of any order.

    Args:
        k: Tokens ``(B, heads, N, d)`` of a map of N = H * W.
        hw_shape: (H, W).
        cells: Rows and columns of cells, as in adaptive average pooling. Give this or ``ratio``.
        ratio: Side r of the cells, in tokens. The last of a row or column may be shorter.
        rotary: Cosines and sines ``(2, pairs, N)``, see :func:`nystrom_attention`. Default: none.
        rotary_form: ``'half'`` (default) or ``'pairs'``.
        backend: ``'auto'`` (default: the compiled op where it can run, else the reference),
            ``'native'`` or ``'reference'``.

    Returns:
        ``(B, heads, m, d)``, row by row, at least fp32.

    Raises:
        TypeError: If ``k`` or ``rotary`` is no floating tensor.
        ValueError: For shapes that do not fit, for both of ``cells`` and ``ratio``, or for neither.
        RuntimeError: For ``backend='native'`` where the compiled op cannot run.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import pooled_landmarks
        >>> pooled_landmarks(torch.randn(1, 2, 20 * 30, 8), (20, 30), cells=(7, 7)).shape
        torch.Size([1, 2, 49, 8])
    """
    sides = (None, None) if cells is None else cells
    landmarks = _at_once(backend, k, rotary, rotary_form, *hw_shape, *sides, ratio)
    if landmarks is not None:
        return landmarks
    _check(k, hw_shape, cells, ratio, rotary, rotary_form)
    compute = _native.select(OP, pooled_landmarks_reference, k.device, backend)
    if compute is not pooled_landmarks_reference and not _checks.is_recording():
        compute = Pool.apply
    with no_autocast(k.device):
        return compute(k, rotary, rotary_form, *hw_shape, *sides, ratio)


def _check(
    k: Tensor,
    hw_shape: Tuple[int, int],
    cells: Optional[Tuple[int, int]],
    ratio: Optional[int],
    rotary: Optional[Tensor],
    rotary_form: str,
) -> None:
    _checks.check_floating(OP, 'k', k)
    height, width = hw_shape
    if min(height, width) < 1:
        raise ValueError(f'{OP}: hw_shape must be positive, got {tuple(hw_shape)}')
    if k.dim() != 4 or k.shape[2] != height * width:
        raise ValueError(
            f'{OP}: k must be (B, heads, {height * width}, d) for hw_shape {tuple(hw_shape)}, got '
            f'{tuple(k.shape)}'
        )
    if (cells is None) == (ratio is None):
        raise ValueError(f'{OP}: give one of cells ({cells}) and ratio ({ratio})')
    rows, columns = (1, 1) if cells is None else cells
    # One by one, as a minimum of dynamic sizes would be a condition of the graph.
    if any(number < 1 for number in (rows, columns)) or (ratio is not None and ratio < 1):
        raise ValueError(f'{OP}: cells ({cells}) and ratio ({ratio}) must be positive')
    check_form(OP, rotary_form)
    if rotary is not None:
        check_table(OP, rotary, k)


def _can_run(
    k: Tensor,
    rotary: Optional[Tensor],
    rotary_form: str,
    height: int,
    width: int,
    rows: Optional[int],
    columns: Optional[int],
    ratio: Optional[int],
) -> None:
    if (rows is None) != (columns is None):
        raise ValueError(f'{OP}: give rows ({rows}) and columns ({columns}) of cells, or neither')
    cells = None if rows is None or columns is None else (rows, columns)
    _check(k, (height, width), cells, ratio, rotary, rotary_form)


def _fake(
    k: Tensor,
    rotary: Optional[Tensor],
    rotary_form: str,
    height: int,
    width: int,
    rows: Optional[int],
    columns: Optional[int],
    ratio: Optional[int],
) -> Tensor:
    _can_run(k, rotary, rotary_form, height, width, rows, columns, ratio)
    if ratio is not None:
        rows, columns = -(-height // ratio), -(-width // ratio)
    assert rows is not None and columns is not None
    wide = wide_dtype(k)
    return k.new_empty((*k.shape[:2], rows * columns, k.shape[3]), dtype=wide)


def _fake_gradient(grad: Tensor, k: Tensor, *constants: Any) -> Tensor:
    _checks.check_floating(OP, 'the gradient', grad)
    like = _fake(k, *constants)
    _checks.check_like(OP, 'the gradient', grad.to(like.dtype), like)
    batch, heads, tokens, dims = k.shape
    return k.new_empty((batch, tokens, heads, dims)).transpose(1, 2)


_native.register(OP, _fake, Pool.apply, widen=False)
_at_once = _native.door(OP, _can_run)
_native.register(f'_{OP}_backward', _fake_gradient, Spread.apply, widen=False)
