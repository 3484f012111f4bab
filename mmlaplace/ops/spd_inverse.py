"""Inverses of ridged symmetric positive definite matrices: Newton–Schulz and Cholesky."""

import functools
from typing import Callable, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _checks, _native
from .precision import autocast_to_fp32, upcast


def newton_schulz_inverse_reference(
    mat: Tensor, num_iters: int, ridge: float, start: Optional[Tensor] = None
) -> Tensor:
    """The specification of :func:`newton_schulz_inverse` in plain PyTorch."""
    ridged = add_ridge(mat, ridge)
    with torch.no_grad():
        inverse = start
        if start is None:
            inverse = identity_like(ridged) / ridged.abs().sum(-1).amax(-1)[..., None, None]
        for _ in range(num_iters - 1):
            inverse = newton_schulz_step(ridged, inverse)
    return newton_schulz_step(ridged, inverse).to(mat.dtype)


def newton_schulz_step(ridged: Tensor, inverse: Tensor) -> Tensor:
    """``X(2I - PX)``.

    Never ``(XP)X``, which ends two digits worse on ill-conditioned P. With X held constant, its
    derivative in P is that of the inverse, ``-X dP X``, so one differentiable step behind a
    detached iteration gives the exact gradient and keeps nothing of the iteration.
    """
    return inverse @ (2 * identity_like(ridged) - ridged @ inverse)


def add_ridge(mat: Tensor, ridge: float) -> Tensor:
    """``mat + ridge * I``, in at least fp32."""
    (mat,) = upcast(mat)
    return mat + ridge * identity_like(mat)


def identity_like(mat: Tensor) -> Tensor:
    """The identity ``(m, m)`` in the dtype and on the device of ``mat (..., m, m)``."""
    return torch.eye(mat.shape[-1], dtype=mat.dtype, device=mat.device)


def inverse_residual(mat: Tensor, inverse: Tensor, ridge: float) -> Tensor:
    """How far ``inverse`` is from inverting: ``max |I - (mat + ridge * I) inverse|`` per matrix.

    Args:
        mat: Matrices ``(..., m, m)``.
        inverse: What :func:`newton_schulz_inverse` or :func:`cholesky_inverse` gave for them.
        ridge: The ridge given there.

    Returns:
        ``(...)``, at least fp32.
    """
    ridged = add_ridge(mat, ridge)
    return (identity_like(ridged) - ridged @ upcast(inverse)[0]).abs().amax((-2, -1))


def newton_schulz_inverse(
    mat: Tensor,
    num_iters: int = 20,
    ridge: float = 1e-2,
    *,
    start: Optional[Tensor] = None,
    return_residual: bool = False,
    max_residual: Optional[float] = None,
    backend: str = 'auto',
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    r"""Inverse of ridged symmetric positive definite matrices by Newton–Schulz iteration.

    .. math:: P = W + \varepsilon I, \quad X_0 = I / \lVert P \rVert_\infty, \quad
              X \leftarrow X (2I - PX)

    The start converges for every symmetric positive definite P and needs about half the steps of
    :math:`\alpha P^T`. The product order decides the accuracy, see the reference. The gradient is
    implicit, :math:`\partial W = -X^T (\partial X) X^T`, exact as far as X has converged; there is
    no second derivative.

    With enough steps for its condition number :math:`\kappa`, the residual of a matrix is at most
    :math:`\epsilon (m + \kappa)`, with the machine epsilon of fp32 (of fp64 for fp64). Matrices
    that need fewer steps take fewer in the compiled op.

    Args:
        mat: Symmetric positive semidefinite matrices ``(..., m, m)``.
        num_iters: Steps; 20 are enough up to a condition number of about 30,000 (11 at 212), 30 up
            to a million.
        ridge: :math:`\varepsilon \ge 0`, added to the diagonal.
        start: Another :math:`X_0`, shaped and typed like ``mat``, without a gradient. From
            :math:`\alpha P`, :math:`0 < \alpha < 2 / \lVert P \rVert_2^2`, the iteration tends to
            the pseudo-inverse of a singular P, and after few steps leaves out what has eigenvalues
            near zero. The compiled op has the default alone, so this computes by the
            reference. Default: None, the one above.
        return_residual: Also return ``max |I - PX|`` of each matrix.
        max_residual: Raise if the residual of a matrix is larger. Default: None, no limit; without
            it an inverse that has not converged is returned as it is.
        backend: ``'auto'`` (the compiled op where it can run, else the reference), ``'native'``
            or ``'reference'``.

    Returns:
        :math:`(W + \varepsilon I)^{-1}`, shaped and typed like ``mat`` (fp32 under autocast), and
        with ``return_residual`` a detached residual ``(...)`` of at least fp32.

    Raises:
        TypeError: If ``mat`` is no floating tensor.
        ValueError: If it is not square or has a value that is not finite, for ``num_iters < 1``
            or ``ridge < 0``, if the iteration diverged because P is not positive definite, or if
            a residual is above ``max_residual``.
        RuntimeError: For ``backend='native'`` with a ``start`` or where the compiled op cannot run.

    Source: LaplacianFormer (arXiv 2604.20368); the start and the order are ours.
    """
    op = 'newton_schulz_inverse'
    _check_inverse_inputs(op, mat, ridge)
    if num_iters < 1:
        raise ValueError(f'{op}: num_iters must be at least 1, got {num_iters}')
    if start is None:
        compute = _native.select(op, newton_schulz_inverse_reference, mat.device, backend)
    else:
        compute = _from(start, mat, backend)
    with autocast_to_fp32(mat) as (mat,):
        inverse = compute(mat, num_iters, float(ridge))
        _raise_unless(torch.isfinite(inverse).all(), op, mat, ridge)
        if not return_residual and max_residual is None:
            return inverse
        residual = inverse_residual(mat.detach(), inverse.detach(), ridge)
        if max_residual is not None:
            _check_residual(op, mat, residual, num_iters, max_residual)
    return (inverse, residual) if return_residual else inverse


def cholesky_inverse(mat: Tensor, ridge: float = 1e-2) -> Tensor:
    r"""Exact inverse of ridged symmetric positive definite matrices by Cholesky factorisation.

    .. math:: (W + \varepsilon I)^{-1} = (L L^T)^{-1}

    On a CPU it beats twenty Newton–Schulz steps; LU is no choice there (batches of large matrices
    fail in some builds of oneMKL). The gradient is that of :func:`newton_schulz_inverse`.

    Args:
        mat: Symmetric positive semidefinite matrices ``(..., m, m)``.
        ridge: :math:`\varepsilon \ge 0`, added to the diagonal.

    Returns:
        The inverse, shaped and typed like ``mat`` (fp32 under autocast).

    Raises:
        TypeError: If ``mat`` is no floating tensor.
        ValueError: If it is not square, has a value that is not finite, for ``ridge < 0``, or if
            ``mat + ridge * I`` is not positive definite.
    """
    _check_inverse_inputs('cholesky_inverse', mat, ridge)
    with autocast_to_fp32(mat) as (mat,):
        ridged = add_ridge(mat, float(ridge))
        factor, info = torch.linalg.cholesky_ex(ridged.detach())
        inverse = newton_schulz_step(ridged, torch.cholesky_inverse(factor)).to(mat.dtype)
        succeeded = torch.isfinite(inverse).all() & (info == 0).all()
        _raise_unless(succeeded, 'cholesky_inverse', mat, ridge)
        return inverse


def _from(start: Tensor, mat: Tensor, backend: str) -> Callable:
    """The reference that starts at another matrix."""
    op = 'newton_schulz_inverse'
    if start.shape != mat.shape:
        raise ValueError(
            f'{op}: start must be shaped like mat, {tuple(mat.shape)}, got {tuple(start.shape)}'
        )
    if backend == 'native':
        raise RuntimeError(f"{op}: the compiled op takes no start; use backend='reference'")
    backend = 'reference' if backend == 'auto' else backend
    compute = _native.select(op, newton_schulz_inverse_reference, mat.device, backend)
    return functools.partial(compute, start=upcast(start)[0])


def _check_inverse_inputs(op: str, mat: Tensor, ridge: float) -> None:
    _checks.check_square(op, mat)
    if not 0 <= ridge < float('inf'):
        raise ValueError(f'{op}: ridge must be finite and not negative, got {ridge}')


def _check_residual(
    op: str, mat: Tensor, residual: Tensor, num_iters: int, max_residual: float
) -> None:
    if not _checks.has_values(residual) or (residual <= max_residual).all():
        return
    worst = residual.flatten().argmax().item()
    raise ValueError(
        f'{op}: after {num_iters} steps the residual of {int((residual > max_residual).sum())} of '
        f'{residual.numel()} matrices of shape {tuple(mat.shape)} is above max_residual '
        f'({max_residual}), the largest {residual.flatten()[worst].item():.3g} of matrix {worst}; '
        'raise num_iters or ridge, or use cholesky_inverse'
    )


def _raise_unless(succeeded: Tensor, op: str, mat: Tensor, ridge: float) -> None:
    """Say what is wrong with ``mat``; one value is read, as each is a wait on a GPU."""
    if not _checks.has_values(succeeded) or succeeded:
        return
    _checks.check_finite(op, 'mat', mat)
    smallest = torch.linalg.eigvalsh(mat.detach().double()).min().item() + ridge
    raise ValueError(
        f'{op}: mat + {ridge} * I of shape {tuple(mat.shape)} is not positive definite, its '
        f'smallest eigenvalue is {smallest:.3g}; raise ridge'
    )


@_native.shapes_of('newton_schulz_inverse')
def _inverse_shapes(mat: Tensor, num_iters: int, ridge: float) -> Tensor:
    return mat.new_empty(mat.shape)


@_native.shapes_of('_newton_schulz_inverse_backward')
def _inverse_gradient_shapes(grad: Tensor, inverse: Tensor) -> Tensor:
    return inverse.new_empty(inverse.shape)
