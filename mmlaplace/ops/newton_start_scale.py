"""The start of SOFT's Newton iteration."""

from typing import Any, Callable, Tuple

import torch
from torch import Tensor

from . import _checks, _native
from ._inverse import batch_in_front, check_room, check_rows, identity_like, select
from .precision import fp32_under_autocast, upcast, wide_dtype

# An eigenvalue l of W with alpha l^2 = 2 is mapped to 0 by the first step, and never comes back.
# From 2 - 1e-3 it takes fifteen steps, and from there on rounding in fp32 does not count.
LARGEST = 1.999


def newton_start_scale_reference(
    mat: Tensor, factor: float, halve: bool, per_batch: bool
) -> Tensor:
    """The specification of :func:`newton_start_scale` in plain PyTorch."""
    (mat,) = upcast(mat)
    if not _checks.is_recording() and mat.numel() == 0:  # without a largest value
        return mat.new_empty(mat.shape[:-2])

    def largest(values: Tensor) -> Tensor:
        # The ONNX exporter knows no amax of all axes.
        return values.flatten().amax(0) if per_batch else values.amax(-1)[..., None, None]

    scale = factor / largest(mat.sum(-1)).square()
    if halve:
        identity, square = identity_like(mat), mat @ mat
        columns = largest(square.sum(-2))
        for _ in range(10):
            norm = largest((identity - scale * square).abs().sum(-2))
            halved = (norm > 1.01) | (scale * columns > LARGEST)
            scale = torch.where(halved, scale / 2, scale)
    return scale.expand(*mat.shape[:-2], 1, 1)[..., 0, 0]


class StartScale(_native.Function):
    """A scale is a constant: it has no gradient."""

    @staticmethod
    def forward(
        compute: Callable, mat: Tensor, factor: float, halve: bool, per_batch: bool
    ) -> Tensor:
        with _native.below_autograd():
            return compute(mat, factor, halve, per_batch)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:
        return (None,) * 5

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple,
        compute: Callable,
        mat: Tensor,
        factor: float,
        halve: bool,
        per_batch: bool,
    ) -> Tuple[Tensor, int]:
        (mats,) = batch_in_front(info.batch_size, in_dims[1:2], mat)
        if not per_batch:
            return StartScale.apply(compute, mats, factor, halve, per_batch), 0
        each = [StartScale.apply(compute, one, factor, halve, per_batch) for one in mats]
        return torch.stack(each), 0


def newton_start_scale(
    mat: Tensor, factor: float, *, halve: bool, per_batch: bool, backend: str = 'auto'
) -> Tensor:
    r"""SOFT's :math:`\alpha = f / r^2` for :func:`newton_schulz_inverse`, r the largest row sum.

    ``halve`` includes one halving that the authors' code of SOFT++ does not have. Without it, the
    iteration for W = I ends at 0 instead of I, and for W close to I anywhere between. The reason is
    that :math:`f = 2` starts at twice the inverse, from where a step leads to 0. Where the authors'
    start works, half of it leads to the same inverse.

    Args:
        mat: Symmetric matrices W ``(..., m, m)`` of values that are not negative.
        factor: f. For :math:`f < 2` the iteration from :math:`\alpha W` converges, and for
            :math:`f = 2` with ``halve``.
        halve: Whether :math:`\alpha` is halved, ten times at most, while
            :math:`\lVert I - \alpha W^2 \rVert_1 > 1.01`, as in SOFT++, or
            :math:`\alpha \lVert W^2 \rVert_1 > 1.999`.
        per_batch: Whether all matrices share the smallest :math:`\alpha`.
        backend: As in :func:`newton_schulz_inverse`.

    Returns:
        ``(...)`` of at least fp32, without a gradient. It is NaN for a matrix with a NaN, and for
        all matrices that share its :math:`\alpha`.

    Raises:
        TypeError: If ``mat`` is no floating tensor, or ``factor`` no number.
        ValueError: If it is not square, or for a factor that is not positive and finite.

    Source: SOFT (arXiv 2110.11945) and SOFT++ (arXiv 2207.03341), the authors' code.
    """
    if not isinstance(factor, Tensor):  # of an op, a tensor would be a number too
        scale = _at_once(backend, mat, factor, halve, per_batch)
        if scale is not None:
            return scale
    return _checked_scale(mat, factor, halve, per_batch, backend)


@fp32_under_autocast
def _checked_scale(
    mat: Tensor, factor: float, halve: bool, per_batch: bool, backend: str
) -> Tensor:
    _check(mat, factor)
    compute = select('_newton_start_scale', newton_start_scale_reference, mat, backend)
    arguments = (mat.detach(), float(factor), halve, per_batch)
    if _checks.is_recording():
        return compute(*arguments)
    return StartScale.apply(compute, *arguments)


def _check(mat: Tensor, factor: float) -> None:
    _checks.check_square('newton_start_scale', mat)
    _checks.check_positive('newton_start_scale', 'factor', factor)


@fp32_under_autocast
def _can_run(mat: Tensor, factor: float, halve: bool, per_batch: bool) -> None:
    _check(mat, factor)
    check_room('newton_start_scale', mat)


def _fake(mat: Tensor, factor: float, halve: bool, per_batch: bool) -> Tensor:
    _check(mat, factor)
    check_rows('newton_start_scale', mat)
    return mat.new_empty(mat.shape[:-2], dtype=wide_dtype(mat))


_OP = _native.find('_newton_start_scale')
_native.register('_newton_start_scale', _fake, lambda *args: StartScale.apply(_OP, *args))
_at_once = _native.door('_newton_start_scale', _can_run)
