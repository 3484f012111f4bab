"""Inverses of ridged symmetric positive definite matrices: Newton–Schulz and Cholesky."""

import functools
from typing import Callable, Optional, Tuple, Union

import torch
from torch import Tensor

from . import _checks, _native
from .precision import fp32_under_autocast, upcast


def newton_schulz_inverse_reference(
    mat: Tensor, num_iters: int, ridge: float, start: Optional[Tensor] = None
) -> Tensor:
    """The specification of :func:`newton_schulz_inverse` in plain PyTorch."""
    ridged = add_ridge(mat, ridge)
    identity = identity_like(ridged)
    inverse = start
    if start is None:
        inverse = identity / ridged.abs().sum(-1).amax(-1)[..., None, None]
    for _ in range(num_iters):
        # Never (XP)X, which ends two digits worse on ill-conditioned P.
        inverse = inverse @ (2 * identity - ridged @ inverse)
    return inverse.to(mat.dtype)


class Inverse(_native.Function):
    """``X = compute(mat, *start)`` with the derivative of an inverse, ``dX = -X dP X``.

    The derivative is a function of X alone, however ``compute`` found X. So are all further
    derivatives. X is kept for them.
    """

    @staticmethod
    def forward(compute: Callable, mat: Tensor, *start: Tensor) -> Tensor:
        with _native.below_autograd():
            return compute(mat, *start)

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.constants = len(inputs) - 2

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple:
        (inverse,) = ctx.saved_tensors
        return (None, inverse_gradient(grad, inverse), *[None] * ctx.constants)

    @staticmethod
    def vmap(info, in_dims: tuple, compute: Callable, *mats: Tensor) -> Tuple[Tensor, int]:
        mats = (
            mat.expand(info.batch_size, *mat.shape) if axis is None else mat.movedim(axis, 0)
            for mat, axis in zip(mats, in_dims[1:])
        )
        return Inverse.apply(compute, *mats), 0


def inverse_gradient(grad: Tensor, inverse: Tensor) -> Tensor:
    """``-X^T G X^T``, the gradient of the matrix that X inverts."""
    compute = _native.find('_newton_schulz_inverse_backward')
    if compute is not None and not torch.is_grad_enabled():
        return compute(grad, inverse)  # on a GPU always in full fp32
    transposed = inverse.transpose(-2, -1)
    return -(transposed @ grad @ transposed)


def invert(compute: Callable, mat: Tensor, *start: Tensor) -> Tensor:
    """``compute(mat, *start)`` in at least fp32, differentiable as an inverse."""
    (wide,) = upcast(mat)
    return Inverse.apply(compute, wide, *start).to(mat.dtype)


def invert_in_graph(compute: Callable, mat: Tensor, *start: Tensor) -> Tensor:
    """:func:`invert` for graphs of torch.compile. It has the first derivative alone."""
    (wide,) = upcast(mat)
    inverse = compute(wide.detach(), *start)
    if torch.is_grad_enabled() and wide.requires_grad:
        # Adds a zero whose derivative is that of the inverse.
        inverse = inverse - inverse @ (wide - wide.detach()) @ inverse
    return inverse.to(mat.dtype)


def invert_as_is(compute: Callable, mat: Tensor, *start: Tensor) -> Tensor:
    """``compute(mat, *start)`` as it is, because torch knows its derivative."""
    return compute(mat, *start)


def how_to_invert(compiled_op: bool) -> Callable:
    """One of the three functions above, because recorded graphs take no autograd Function."""
    if not _checks.is_recording():
        return invert
    return invert_as_is if compiled_op or torch.jit.is_tracing() else invert_in_graph


def add_ridge(mat: Tensor, ridge: float) -> Tensor:
    """``mat + ridge * I``, in at least fp32."""
    (mat,) = upcast(mat)
    return mat + ridge * identity_like(mat)


def identity_like(mat: Tensor) -> Tensor:
    """The identity ``(m, m)`` in the dtype and on the device of ``mat (..., m, m)``."""
    return torch.eye(mat.shape[-1], dtype=mat.dtype, device=mat.device)


@fp32_under_autocast
def inverse_residual(mat: Tensor, inverse: Tensor, ridge: float) -> Tensor:
    """The residual of an inverse, ``max |I - (mat + ridge * I) inverse|``, per matrix.

    Args:
        mat: Matrices ``(..., m, m)``.
        inverse: Their inverses ``(..., m, m)``, as :func:`newton_schulz_inverse` and
            :func:`cholesky_inverse` return them.
        ridge: The ridge that these were called with.

    Returns:
        ``(...)``, at least fp32.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import inverse_residual
        >>> inverse_residual(torch.eye(2), torch.eye(2), ridge=0.25)
        tensor(0.2500)
    """
    ridged = add_ridge(mat, ridge)
    return (identity_like(ridged) - ridged @ upcast(inverse)[0]).abs().amax((-2, -1))


@fp32_under_autocast
def newton_schulz_inverse(
    mat: Tensor,
    num_iters: int = 20,
    ridge: float = 1e-2,
    *,
    start: Optional[Tensor] = None,
    return_residual: bool = False,
    max_residual: Optional[float] = None,
    check: bool = True,
    backend: str = 'auto',
) -> Union[Tensor, Tuple[Tensor, Tensor]]:
    r"""Inverse of ridged symmetric positive definite matrices by Newton–Schulz iteration.

    .. math:: P = W + \varepsilon I, \quad X_0 = I / \lVert P \rVert_\infty, \quad
              X \leftarrow X (2I - PX)

    The start converges for every symmetric positive definite P. It needs about half the steps of
    :math:`\alpha P^T`. The order of the products decides the accuracy, see the reference. The
    gradient is implicit, :math:`\partial W = -X^T (\partial X) X^T`, and exact as far as X has
    converged. There are derivatives of any order, but none in forward mode. In graphs of
    torch.compile there are only first ones. The transforms of ``torch.func`` (``vmap``, ``grad``,
    ``jacrev``) work.

    With enough steps for its condition number :math:`\kappa`, the residual of a matrix is at most
    :math:`\epsilon (m + \kappa)`, with the machine epsilon of fp32, or of fp64 for fp64. The
    compiled op stops earlier for matrices that need fewer steps. A matrix with a NaN or an infinity
    has an inverse of NaN and changes no other of its batch.

    Args:
        mat: Symmetric positive semidefinite matrices ``(..., m, m)``.
        num_iters: Steps. 11 are enough at a condition number of 212, 20 up to about 30,000, and 30
            up to a million. Default: 20.
        ridge: :math:`\varepsilon \ge 0`, added to the diagonal. Default: 1e-2.
        start: Another :math:`X_0`, shaped and typed like ``mat``, without a gradient. From
            :math:`\alpha P`, :math:`0 < \alpha < 2 / \lVert P \rVert_2^2`, the iteration tends to
            the pseudo-inverse of a singular P, and its first steps leave eigenvalues near zero out.
            With a start the reference computes, because the compiled op has the default alone.
            Default: None, the start above.
        return_residual: Whether ``max |I - PX|`` of each matrix is returned too. Default: False.
        max_residual: The largest residual that does not raise. Without a limit, an inverse that has
            not converged is returned as it is. Default: None, no limit.
        check: Whether an inverse that is not finite raises. On a GPU the host waits for this. There
            is no check in recorded graphs and under ``torch.func``. Default: True.
        backend: ``'auto'`` (default: the compiled op where it can run, else the reference),
            ``'native'`` or ``'reference'``.

    Returns:
        :math:`(W + \varepsilon I)^{-1}`, shaped and typed like ``mat``; fp32 under autocast. With
        ``return_residual`` also a detached residual ``(...)`` of at least fp32.

    Raises:
        TypeError: If ``mat`` is no floating tensor.
        ValueError: If it is not square, for ``num_iters < 1`` or ``ridge < 0``, or if a residual is
            above ``max_residual``. With ``check``, also if ``mat`` has a value that is not finite,
            or if the iteration diverged because P is not positive definite.
        RuntimeError: For ``backend='native'`` with a ``start`` or where the compiled op cannot run.

    Source: LaplacianFormer (arXiv 2604.20368). The start and the order are ours.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import newton_schulz_inverse
        >>> newton_schulz_inverse(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), ridge=0.0)
        tensor([[ 0.6667, -0.3333],
                [-0.3333,  0.6667]])
    """
    op = 'newton_schulz_inverse'
    _check_inverse_inputs(op, mat, ridge)
    if num_iters < 1:
        raise ValueError(f'{op}: num_iters must be at least 1, got {num_iters}')
    if start is not None:
        backend = _check_start(start, mat, backend)
    compute = _native.select(op, newton_schulz_inverse_reference, mat.device, backend)
    compiled_op = compute is not newton_schulz_inverse_reference
    starts = () if start is None else (upcast(start.detach())[0],)
    iterate = functools.partial(_iterate, compute, num_iters, float(ridge))
    inverse = how_to_invert(compiled_op)(iterate, mat, *starts)
    if check:
        _raise_unless_finite(inverse, op, mat, ridge)
    if not return_residual and max_residual is None:
        return inverse
    residual = inverse_residual(mat.detach(), inverse.detach(), ridge)
    if max_residual is not None:
        _check_residual(op, mat, residual, num_iters, max_residual)
    return (inverse, residual) if return_residual else inverse


@fp32_under_autocast
def cholesky_inverse(mat: Tensor, ridge: float = 1e-2, *, check: bool = True) -> Tensor:
    r"""Exact inverse of ridged symmetric positive definite matrices by Cholesky factorisation.

    .. math:: (W + \varepsilon I)^{-1} = (L L^T)^{-1}

    On a CPU it is faster than twenty Newton–Schulz steps. LU is not used, because in some builds
    of oneMKL it fails for batches of large matrices. Derivatives are those of
    :func:`newton_schulz_inverse`.

    Args:
        mat: Symmetric positive semidefinite matrices ``(..., m, m)``. Of a matrix that is not
            symmetric, :math:`(W + W^T) / 2` is inverted. Newton–Schulz inverts W as it is.
        ridge: :math:`\varepsilon \ge 0`, added to the diagonal. Default: 1e-2.
        check: Whether an inverse that is not finite raises, see :func:`newton_schulz_inverse`.
            Default: True.

    Returns:
        The inverse, shaped and typed like ``mat``; fp32 under autocast. It is NaN for a matrix that
        has a NaN or an infinity, or is not positive definite.

    Raises:
        TypeError: If ``mat`` is no floating tensor.
        ValueError: If it is not square, or for ``ridge < 0``. With ``check``, also if ``mat`` has a
            value that is not finite, or if ``mat + ridge * I`` is not positive definite.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import cholesky_inverse
        >>> cholesky_inverse(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), ridge=0.0)
        tensor([[ 0.6667, -0.3333],
                [-0.3333,  0.6667]])
    """
    _check_inverse_inputs('cholesky_inverse', mat, ridge)
    (wide,) = upcast(mat)
    symmetric = torch.lerp(wide, wide.transpose(-2, -1), 0.5)
    by_cholesky = functools.partial(_by_cholesky, float(ridge))
    inverse = how_to_invert(compiled_op=False)(by_cholesky, symmetric).to(mat.dtype)
    if check:
        _raise_unless_finite(inverse, 'cholesky_inverse', mat, ridge)
    return inverse


def _by_cholesky(ridge: float, mat: Tensor) -> Tensor:
    """The inverse of symmetric matrices of at least fp32, or NaN for one that has none."""
    factor, info = torch.linalg.cholesky_ex(add_ridge(mat, ridge))
    diagonal = factor.diagonal(dim1=-2, dim2=-1).sum(-1)  # an infinity there is no failure
    failed = (info != 0) | ~diagonal.isfinite()
    # torch.cholesky_inverse is slower on a CPU. It refuses what a failure may leave. On a GPU the
    # host waits for it.
    root = torch.linalg.solve_triangular(factor, identity_like(mat), upper=False)
    inverse = torch.linalg.solve_triangular(factor.transpose(-2, -1), root, upper=True)
    return inverse.masked_fill(failed[..., None, None], float('nan'))


def _iterate(
    compute: Callable, num_iters: int, ridge: float, mat: Tensor, *start: Tensor
) -> Tensor:
    return compute(mat, num_iters, ridge, *start)


def _check_start(start: Tensor, mat: Tensor, backend: str) -> str:
    """Raise unless ``start`` fits. Returns the backend that can start at another matrix."""
    op = 'newton_schulz_inverse'
    if start.shape != mat.shape:
        raise ValueError(
            f'{op}: start must be shaped like mat, {tuple(mat.shape)}, got {tuple(start.shape)}'
        )
    if backend == 'native':
        raise RuntimeError(f"{op}: the compiled op takes no start; use backend='reference'")
    return 'reference' if backend == 'auto' else backend


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
    above = int((~(residual <= max_residual)).sum())  # NaN too
    raise ValueError(
        f'{op}: after {num_iters} steps the residual of {above} of {residual.numel()} matrices of '
        f'shape {tuple(mat.shape)} is above max_residual ({max_residual}), the largest '
        f'{residual.flatten()[worst].item():.3g} of matrix {worst}; raise num_iters or ridge, or '
        'use cholesky_inverse'
    )


def _raise_unless_finite(inverse: Tensor, op: str, mat: Tensor, ridge: float) -> None:
    """Say what is wrong with ``mat``. If nothing is, a single value is read."""
    if not _checks.has_values(inverse) or inverse.isfinite().all():
        return
    _checks.check_finite(op, 'mat', mat)
    good = inverse.detach().reshape(-1, *mat.shape[-2:]).isfinite().all(-1).all(-1)
    first = int((~good).nonzero()[0])
    one = mat.detach().reshape(-1, *mat.shape[-2:])[first].double()
    smallest = torch.linalg.eigvalsh((one + one.T) / 2).min().item() + ridge
    cause = (
        'so it is not positive definite; raise ridge'
        if smallest <= 0
        else 'so rounding or the start is to blame; raise ridge, or give another start'
    )
    raise ValueError(
        f'{op}: {int((~good).sum())} of {good.numel()} matrices mat + {ridge} * I of shape '
        f'{tuple(mat.shape)} have no finite inverse; the smallest eigenvalue of matrix {first} is '
        f'{smallest:.3g}, {cause}'
    )


def _fake_inverse(mat: Tensor, num_iters: int, ridge: float) -> Tensor:
    return mat.new_empty(mat.shape)


def _fake_gradient(grad: Tensor, inverse: Tensor) -> Tensor:
    return inverse.new_empty(inverse.shape)


def _inverse_autograd(mat: Tensor, num_iters: int, ridge: float) -> Tensor:
    op = _native.find('newton_schulz_inverse')
    return invert(functools.partial(_iterate, op, num_iters, ridge), mat)


_native.register('newton_schulz_inverse', _fake_inverse, _inverse_autograd)
_native.register('_newton_schulz_inverse_backward', _fake_gradient)
