"""The Newton–Schulz inverse of ridged symmetric positive definite matrices."""

import functools
from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from . import _checks, _native
from ._inverse import (
    Inversion,
    add_ridge,
    check_inputs,
    check_room,
    check_rows,
    identity_like,
    raise_unless_finite,
    register,
    select,
)
from .inverse_residual import inverse_residual
from .inverse_steps import inverse_steps
from .precision import fp32_under_autocast, wide_dtype


def newton_schulz_inverse_reference(
    mat: Tensor,
    num_iters: int,
    ridge: float,
    start_scale: Optional[Tensor] = None,
    start: Optional[Tensor] = None,
) -> Tensor:
    """The specification of :func:`newton_schulz_inverse` in plain PyTorch."""
    ridged = add_ridge(mat, ridge)
    identity = identity_like(ridged)
    if start is not None:
        inverse = start
    elif start_scale is not None:
        inverse = start_scale[..., None, None] * ridged
    else:
        inverse = identity / ridged.abs().sum(-1).amax(-1)[..., None, None]
    inverse = inverse_steps(ridged, inverse, 2 * identity, [1.0] * num_iters)
    return inverse.to(mat.dtype)


def newton_schulz_inverse(
    mat: Tensor,
    num_iters: int = 20,
    ridge: float = 1e-2,
    *,
    start_scale: Optional[Union[float, Tensor]] = None,
    start: Optional[Tensor] = None,
    return_residual: bool = False,
    max_residual: Optional[float] = None,
    check: bool = True,
    backend: str = 'auto',
) -> Any:
    r"""Inverse of ridged symmetric positive definite matrices by Newton–Schulz iteration.

    .. math:: P = W + \varepsilon I, \quad X_0 = I / \lVert P \rVert_\infty, \quad
              X \leftarrow X (2I - PX)

    From this :math:`X_0`, the iteration converges for every symmetric positive definite P. It needs
    about half the steps of a start at :math:`\alpha P^T`. The order of the products matters for the
    accuracy, see the reference. The gradient is implicit, :math:`\partial W = -X^T (\partial X)
    X^T`, and exact as far as X has converged. There are derivatives of any order, but none in
    forward mode. In graphs of torch.compile there are only first derivatives. The transforms of
    ``torch.func`` (``vmap``, ``grad``, ``jacrev``) work.

    With enough steps for its condition number :math:`\kappa`, the residual of a matrix is at most
    :math:`\epsilon (m + \kappa)`, with the machine epsilon of fp32, or of fp64 for fp64. The
    compiled op stops earlier for matrices that need fewer steps. For m > 512 on a CPU and m > 128
    on a GPU, the reference computes. A matrix with a NaN or an infinity has an inverse of NaN and
    changes no other of its batch.

    With a ``start_scale`` :math:`\alpha` the iteration starts at :math:`X_0 = \alpha P`, as SOFT's
    does. For :math:`0 < \alpha < 2 / \lVert P \rVert_2^2` it then tends to the pseudo-inverse of a
    singular P, and its first steps leave out eigenvalues near zero. While an eigenvalue is left
    out, no step is skipped.

    Args:
        mat: Symmetric positive semidefinite matrices ``(..., m, m)``.
        num_iters: Steps. 11 are enough at a condition number of 212, 20 up to about 30,000, and 30
            up to a million. Default: 20.
        ridge: :math:`\varepsilon \ge 0`, added to the diagonal. Default: 1e-2.
        start_scale: :math:`\alpha` of a start at :math:`\alpha P`, a number or a tensor that
            broadcasts to ``(...)``, without a gradient. Default: None, the start above.
        start: Any other :math:`X_0`, shaped like ``mat``, without a gradient. With ``start``, the
            reference computes. Default: None.
        return_residual: Whether ``max |I - PX|`` of each matrix is returned too. Default: False.
        max_residual: The largest residual that does not raise an error. Without a limit, an inverse
            that has not converged is returned as it is. Default: None, no limit.
        check: Whether an inverse that is not finite raises. On a GPU the host waits for this. There
            is no check in recorded graphs and under ``torch.func``. Default: True.
        backend: ``'auto'`` (default: the compiled op where it can run, else the reference),
            ``'native'`` or ``'reference'``.

    Returns:
        :math:`(W + \varepsilon I)^{-1}`, shaped and typed like ``mat``; fp32 under autocast. With
        ``return_residual`` also a detached residual ``(...)`` of at least fp32.

    Raises:
        TypeError: If ``mat`` is no floating tensor, or ``ridge`` no number.
        ValueError: If it is not square, for ``num_iters < 1`` or ``ridge < 0``, for a start that
            does not fit or two of them, or if a residual is above ``max_residual``. With ``check``,
            also if ``mat`` has a value that is not finite, or if the iteration diverged because P
            is not positive definite.
        RuntimeError: For ``backend='native'`` with a ``start`` or where the compiled op cannot run.

    Source: LaplacianFormer (arXiv 2604.20368). The start and the order of products are mmlaplace's.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import newton_schulz_inverse
        >>> newton_schulz_inverse(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), ridge=0.0)
        tensor([[ 0.6667, -0.3333],
                [-0.3333,  0.6667]])
    """
    op = 'newton_schulz_inverse'
    inverse = None
    if start is None and not isinstance(ridge, Tensor):  # of an op, a tensor would be a number too
        inverse = _at_once(backend, mat, num_iters, ridge, start_scale)
    if inverse is None:
        inverse = _checked_inverse(mat, num_iters, ridge, start_scale, start, backend)
    if check:
        raise_unless_finite(inverse, op, mat, ridge)
    if not return_residual and max_residual is None:
        return inverse
    residual = inverse_residual(mat.detach(), inverse.detach(), ridge)
    if max_residual is not None:
        _check_residual(op, mat, residual, num_iters, max_residual)
    return (inverse, residual) if return_residual else inverse


@fp32_under_autocast
def _checked_inverse(
    mat: Tensor,
    num_iters: int,
    ridge: float,
    start_scale: Optional[Union[float, Tensor]],
    start: Optional[Tensor],
    backend: str,
) -> Tensor:
    op, reference = 'newton_schulz_inverse', newton_schulz_inverse_reference
    _check(op, mat, num_iters, ridge)
    if start is not None:
        backend = _check_start(start, start_scale, mat, backend)
    compute = select(op, reference, mat, backend)
    iterate = functools.partial(_iterate, compute, num_iters, float(ridge), start is not None)
    constants = () if start is None else (start.detach().to(wide_dtype(mat)),)
    if start_scale is not None:
        constants = (_scale_of_each(start_scale, mat),)
    return Inversion(iterate, compiled=compute is not reference)(mat, *constants)


def _check(op: str, mat: Tensor, num_iters: int, ridge: float) -> None:
    check_inputs(op, mat, ridge)
    if not isinstance(num_iters, int) or num_iters < 1:
        raise ValueError(f'{op}: num_iters must be an integer of at least 1, got {num_iters!r}')


def _iterate(
    compute: Callable, num_iters: int, ridge: float, has_start: bool, mat: Tensor, *start: Tensor
) -> Tensor:
    """``start`` is a matrix, a scale or nothing."""
    return compute(mat, num_iters, ridge, *([None] if has_start else []), *start)


def _check_start(
    start: Tensor, start_scale: Optional[Union[float, Tensor]], mat: Tensor, backend: str
) -> str:
    """Raise unless ``start`` fits. Returns the backend that can start at another matrix."""
    op = 'newton_schulz_inverse'
    if start_scale is not None:
        raise ValueError(f'{op}: start and start_scale are two starts; give one of them')
    _checks.check_floating(op, 'start', start)
    if start.shape != mat.shape:
        raise ValueError(
            f'{op}: start must be shaped like mat, {tuple(mat.shape)}, got {tuple(start.shape)}'
        )
    if backend == 'native':
        raise RuntimeError(
            f"{op}: the compiled op takes no start; use start_scale, or backend='reference'"
        )
    return 'reference' if backend == 'auto' else backend


def _scale_of_each(start_scale: Union[float, Tensor], mat: Tensor) -> Tensor:
    """The scale of every matrix, in at least fp32."""
    dtype, shape = wide_dtype(mat), mat.shape[:-2]
    if not isinstance(start_scale, Tensor):
        return torch.full(shape, float(start_scale), dtype=dtype, device=mat.device)
    if not _checks.broadcasts(start_scale, shape):
        raise ValueError(
            f'newton_schulz_inverse: start_scale must broadcast to {tuple(shape)}, one for each '
            f'matrix, got shape {tuple(start_scale.shape)}'
        )
    return start_scale.detach().to(mat.device, dtype).expand(shape)


def _check_residual(
    op: str, mat: Tensor, residual: Tensor, num_iters: int, max_residual: float
) -> None:
    if not _checks.has_values(residual) or (residual <= max_residual).all():
        return
    worst = int(residual.flatten().argmax())
    above = int((~(residual <= max_residual)).sum())  # NaN too
    raise ValueError(
        f'{op}: after {num_iters} steps the residual of {above} of {residual.numel()} matrices of '
        f'shape {tuple(mat.shape)} is above max_residual ({max_residual}), the largest '
        f'{residual.flatten()[worst].item():.3g} of matrix {worst}; raise num_iters or ridge, or '
        'use cholesky_inverse'
    )


@fp32_under_autocast
def _can_run(
    mat: Tensor, num_iters: int, ridge: float, start_scale: Optional[Tensor] = None
) -> None:
    _fits(mat, num_iters, ridge, start_scale)
    check_room('newton_schulz_inverse', mat)


def _fits(mat: Tensor, num_iters: int, ridge: float, start_scale: Optional[Tensor]) -> None:
    """Raise unless these are inputs as the compiled op has them."""
    op = 'newton_schulz_inverse'
    _check(op, mat, num_iters, ridge)
    if start_scale is None:
        return
    _checks.check_floating(op, 'start_scale', start_scale)
    if start_scale.shape != mat.shape[:-2] or start_scale.device != mat.device:
        raise ValueError(
            f'{op}: start_scale must be {tuple(mat.shape[:-2])} on {mat.device}, one for each '
            f'matrix, got {tuple(start_scale.shape)} on {start_scale.device}'
        )


def _fake(
    mat: Tensor, num_iters: int, ridge: float, start_scale: Optional[Tensor] = None
) -> Tensor:
    _fits(mat, num_iters, ridge, start_scale)
    check_rows('newton_schulz_inverse', mat)
    return mat.new_empty(mat.shape)


register('newton_schulz_inverse', _fake, of_mean=False)
_at_once = _native.door('newton_schulz_inverse', _can_run)
