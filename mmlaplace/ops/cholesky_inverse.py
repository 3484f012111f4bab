"""The exact inverse of ridged symmetric positive definite matrices."""

import functools
from typing import Any, List, Optional

import torch
from torch import Tensor

from . import _native
from ._inverse import (
    Inversion,
    add_ridge,
    check_inputs,
    check_room,
    check_rows,
    identity_like,
    mean_of_triangles,
    raise_unless_finite,
    register,
    select,
)
from .backend import exporting
from .inverse_steps import inverse_steps
from .precision import fp32_under_autocast, upcast

LARGEST_CONDITION = 1e5  # up to which products in fp32 are as accurate as Cholesky's inverse


def cholesky_inverse_reference(mat: Tensor, ridge: float, bound: Optional[float] = None) -> Tensor:
    """The specification of :func:`cholesky_inverse` in plain PyTorch."""
    ridged = add_ridge(mean_of_triangles(upcast(mat)[0]), ridge)
    if exporting():  # runtimes have no such decomposition
        largest = None if bound is None else bound + ridge
        return inverse_by_products(ridged, ridge, largest).to(mat.dtype)
    factor, info = torch.linalg.cholesky_ex(ridged)
    diagonal = factor.diagonal(dim1=-2, dim2=-1).sum(-1)  # an infinity there is no failure
    failed = (info != 0) | ~diagonal.isfinite()
    # torch.cholesky_inverse is slower on a CPU. It refuses what a failure may leave. On a GPU the
    # host waits for it.
    root = torch.linalg.solve_triangular(factor, identity_like(ridged), upper=False)
    inverse = torch.linalg.solve_triangular(factor.transpose(-2, -1), root, upper=True)
    return inverse.masked_fill(failed[..., None, None], float('nan')).to(mat.dtype)


def inverse_by_products(ridged: Tensor, smallest: float, largest: Optional[float] = None) -> Tensor:
    r"""The inverse of matrices P with eigenvalues from ``smallest``, by standard operators only.

    A Newton–Schulz step takes eigenvalues of PX in :math:`[1 - \delta, 1 + \delta]` into
    :math:`[1 - \delta^2, 1]`. Scaled so that one is in the middle again, a step multiplies the
    smallest eigenvalue by nearly four. Without this scale it multiplies it by two.

    Some runtimes round the operands and the results of products to bf16. The rounded P may then
    have a negative eigenvalue, for which the steps grow without limit. No entry of a true inverse
    is above ``1 / smallest``, so that a limit of twice that changes nothing, and keeps such an X
    finite. In bf16, an inverse of landmarks that are nearly equal still has few right digits.

    Args:
        ridged: P ``(..., m, m)``, symmetric and positive definite, at least fp32.
        smallest: The ridge in P. Up to a condition number of :math:`10^5`, the accuracy is that of
            Cholesky's inverse.
        largest: A bound of the eigenvalues of P. With it all scales are constants, and there are as
            many steps as a condition number of ``largest / smallest`` needs, such as 10 for 4,900.
            Default: None, the largest sum of a row, with 12 steps.

    Source: Pan and Schreiber, "An improved Newton iteration for the generalized inverse of a
    matrix" (1991).
    """
    # A little above the largest eigenvalue, for rounding must not take PX beyond 2.
    scale: Any = 1.001 * (
        ridged.abs().sum(-1).amax(-1)[..., None, None] if largest is None else largest
    )
    least = 1 / LARGEST_CONDITION
    if largest is not None:
        least = max(smallest / scale, least)
    ridged = ridged / scale
    start, first, *factors = scaled_steps(least)
    doubled = 2 * identity_like(ridged)
    inverse = first * start * (doubled - start * ridged)
    limit = 2 * scale / smallest if smallest else None
    return inverse_steps(ridged, inverse, doubled, factors, limit) / scale


def scaled_steps(least: float) -> List[float]:
    """The start and the factors of the steps for eigenvalues from ``least`` to 1."""
    spread = (1 - least) / (1 + least)
    factors = [2 / (1 + least)]
    while spread > 2**-24:  # half a digit of fp32
        middle = 2 - spread**2
        factors.append(2 / middle)
        spread = spread**2 / middle
    return factors


def cholesky_inverse(
    mat: Tensor,
    ridge: float = 1e-2,
    *,
    bound: Optional[float] = None,
    check: bool = True,
    backend: str = 'auto',
) -> Tensor:
    r"""Exact inverse of ridged symmetric positive definite matrices by elimination.

    .. math:: (W + \varepsilon I)^{-1} = (L L^T)^{-1}

    The reference computes Cholesky's factor L and solves twice. The compiled op makes the same
    elimination by Gauss–Jordan steps without pivoting, in place and in registers. Its pivots are
    the squares of the diagonal of L, so both fail for the same matrices. It is faster, and closer
    where landmarks are nearly the same. For m > 512 on a CPU and m > 64 on a GPU, the reference
    computes, as LAPACK and cuSOLVER are faster.

    Graphs for a runtime have neither. There the reference is a Newton–Schulz iteration, which needs
    only products, with the rounding errors of such an iteration. It gives no NaN for a matrix that
    is not positive definite.

    LU is not used, because in some builds of oneMKL it fails for batches of large matrices.
    Derivatives are those of :func:`newton_schulz_inverse`.

    Args:
        mat: Symmetric positive semidefinite matrices ``(..., m, m)``. For a matrix W that is not
            symmetric, the op inverts :math:`(W + W^T) / 2`. Newton–Schulz inverts W as it is.
        ridge: :math:`\varepsilon \ge 0`, added to the diagonal. Default: 1e-2.
        bound: An upper bound of the eigenvalues of ``mat``, such as m for a kernel matrix, whose
            entries are at most 1. Only graphs for a runtime read it, and then need fewer products.
            Default: None, unknown.
        check: Whether an inverse that is not finite raises, see :func:`newton_schulz_inverse`.
            Default: True.
        backend: ``'auto'`` (default: the compiled op where it can run, else the reference),
            ``'native'`` or ``'reference'``.

    Returns:
        The inverse, shaped and typed like ``mat``; fp32 under autocast. It is NaN for a matrix that
        has a NaN or an infinity, or is not positive definite.

    Raises:
        TypeError: If ``mat`` is no floating tensor, or ``ridge`` no number.
        ValueError: If it is not square, for ``ridge < 0`` or ``bound <= 0``. With ``check``, also
            if ``mat`` has a value that is not finite, or if ``mat + ridge * I`` is not positive
            definite.
        RuntimeError: For ``backend='native'`` where the compiled op cannot run.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import cholesky_inverse
        >>> cholesky_inverse(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), ridge=0.0)
        tensor([[ 0.6667, -0.3333],
                [-0.3333,  0.6667]])
    """
    if bound is not None and not bound > 0:
        raise ValueError(f'cholesky_inverse: bound must be positive, got {bound}')
    inverse = None
    if not isinstance(ridge, Tensor):  # of an op, a tensor would be a number too
        inverse = _at_once(backend, mat, ridge)
    if inverse is None:
        inverse = _checked_inverse(mat, ridge, bound, backend)
    if check:
        raise_unless_finite(inverse, 'cholesky_inverse', mat, ridge)
    return inverse


@fp32_under_autocast
def _checked_inverse(mat: Tensor, ridge: float, bound: Optional[float], backend: str) -> Tensor:
    check_inputs('cholesky_inverse', mat, ridge)
    compute = select('cholesky_inverse', cholesky_inverse_reference, mat, backend)
    compiled = compute is not cholesky_inverse_reference
    compute = functools.partial(compute, ridge=float(ridge))
    if not compiled:
        compute = functools.partial(compute, bound=bound)
    return Inversion(compute, of_mean=True, compiled=compiled)(mat)


@fp32_under_autocast
def _can_run(mat: Tensor, ridge: float) -> None:
    check_inputs('cholesky_inverse', mat, ridge)
    check_room('cholesky_inverse', mat)


def _fake(mat: Tensor, ridge: float) -> Tensor:
    check_inputs('cholesky_inverse', mat, ridge)
    check_rows('cholesky_inverse', mat)
    return mat.new_empty(mat.shape)


register('cholesky_inverse', _fake, of_mean=True)
_at_once = _native.door('cholesky_inverse', _can_run)
