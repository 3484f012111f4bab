"""Inverses that papers compare with the Newton iteration, in plain PyTorch."""

import functools

import torch
from torch import Tensor

from mmlaplace.ops._inverse import Inversion, add_ridge, check_inputs, identity_like
from mmlaplace.ops.precision import outside_autocast, upcast


@outside_autocast
def svd_inverse(mat: Tensor, ridge: float = 0.0) -> Tensor:
    r"""The Moore–Penrose inverse of symmetric matrices, by singular value decomposition.

    .. math:: (W + \varepsilon I)^\dagger = V \Sigma^\dagger U^T

    Singular values below :math:`m` times the machine epsilon, times the largest, count as zero. On
    a GPU the host waits for the decomposition.

    Args:
        mat: W, symmetric positive semidefinite matrices ``(..., m, m)``.
        ridge: :math:`\varepsilon \ge 0`. Default: 0.

    Returns:
        ``(..., m, m)``, in at least fp32. A matrix with a NaN or an infinity has an inverse of NaN
        and changes no other of its batch.

    Raises:
        ValueError: If ``mat`` is not square, or for a negative ridge.

    Source: SOFT++ (arXiv 2207.03341), where it is the alternative to the iteration.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.solvers import svd_inverse
        >>> svd_inverse(torch.ones(2, 2))  # which is singular
        tensor([[0.2500, 0.2500],
                [0.2500, 0.2500]])
    """
    check_inputs('svd_inverse', mat, ridge)
    ridged = add_ridge(mat, ridge)
    # LAPACK raises for a batch with a single value that is not finite.
    finite = ridged.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    inverse = torch.linalg.pinv(ridged.where(finite, torch.zeros_like(ridged)), hermitian=True)
    return inverse.where(finite, torch.full_like(inverse, float('nan')))


@outside_autocast
def conjugate_gradient_inverse(mat: Tensor, num_iters: int = 20, ridge: float = 1e-2) -> Tensor:
    r"""Inverse of ridged symmetric positive definite matrices by conjugate gradients.

    It solves :math:`(W + \varepsilon I)\, x_j = e_j` for all columns of all matrices at once, from
    zero, with ``num_iters`` steps. A column that has converged stays as it is. The gradient is
    implicit, :math:`\partial W = -X^T (\partial X) X^T`, for any number of steps.

    Without rounding, m steps are exact. Fewer steps give an approximation that is not symmetric.
    Its accuracy depends on the eigenvalues: each outlier takes about one step.

    Args:
        mat: W, symmetric positive semidefinite matrices ``(..., m, m)``.
        num_iters: Steps. Default: 20.
        ridge: :math:`\varepsilon \ge 0`. Default: 1e-2.

    Returns:
        X, shaped and typed like ``mat``. A matrix with a NaN has an X of NaN and changes no other.

    Raises:
        ValueError: If ``mat`` is not square, for ``num_iters < 1``, or for a negative ridge.

    Source: the ablation of solvers in LaplacianFormer (arXiv 2604.20368).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.solvers import conjugate_gradient_inverse
        >>> conjugate_gradient_inverse(torch.tensor([[2.0, 1.0], [1.0, 2.0]]), ridge=0.0)
        tensor([[ 0.6667, -0.3333],
                [-0.3333,  0.6667]])
    """
    check_inputs('conjugate_gradient_inverse', mat, ridge)
    if num_iters < 1:
        raise ValueError(
            f'conjugate_gradient_inverse: num_iters must be at least 1, got {num_iters}'
        )
    return Inversion(functools.partial(_solve, num_iters, ridge))(mat)


def _solve(num_iters: int, ridge: float, mat: Tensor) -> Tensor:
    """The columns of the inverse, each by conjugate gradients of its own."""
    ridged = add_ridge(upcast(mat)[0], ridge)
    residual = identity_like(ridged).expand_as(ridged)  # of columns that are zero
    inverse, direction = torch.zeros_like(ridged), residual
    length = residual.square().sum(-2, keepdim=True)  # (..., 1, m), of the residuals, squared
    converged = torch.finfo(ridged.dtype).eps ** 2
    for _ in range(num_iters):
        image = ridged @ direction
        done = length <= converged  # also keeps 0 / 0 out; a NaN is not done
        step = torch.where(done, 0, length / (direction * image).sum(-2, keepdim=True))
        inverse = inverse + step * direction
        residual = residual - step * image
        before, length = length, residual.square().sum(-2, keepdim=True)
        direction = residual + torch.where(done, 0, length / before) * direction
    return inverse.to(mat.dtype)
