from torch import Tensor

from mmlaplace.ops._inverse import identity_like
from mmlaplace.ops.subnormals import without_tiny_of

from .checks import check_counts

STARTS = ('matrix', 'batch')


def pseudo_inverse(mat: Tensor, num_iters: int, start_per: str = 'matrix') -> Tensor:
    r"""Nyströmformer's iteration towards the Moore–Penrose inverse of non-negative matrices.

    .. math::
        Z_0 = A^T / c, \quad
        Z \leftarrow \tfrac{1}{4} Z \, (13 I - AZ (15 I - AZ (7 I - AZ)))

    c is the largest column sum. With row sums of 1, as a softmax has, the iteration converges for
    any A. For matrices of large condition number, six steps do not converge: they act as a
    regularised inverse. The gradient passes through all steps and c.

    Args:
        mat: A ``(..., m, m)``, at least fp32. What is below 1.1e-19 counts as zero on a CPU.
        num_iters: Steps.
        start_per: ``'matrix'`` (default): each matrix has its own c. ``'batch'``: all matrices
            share one c.

    Returns:
        ``(..., m, m)``.
    """
    without_tiny = without_tiny_of(mat)  # of landmarks far apart
    mat = without_tiny(mat)
    columns = mat.sum(-2)
    # The ONNX exporter knows no amax of all axes.
    of_batch = start_per == 'batch'
    largest = columns.flatten().amax(0) if of_batch else columns.amax(-1)[..., None, None]
    inverse = without_tiny(mat.transpose(-2, -1) / largest)
    seven, fifteen, thirteen = (number * identity_like(mat) for number in (7, 15, 13))
    for _ in range(num_iters):
        product = without_tiny(mat @ inverse)
        square = without_tiny(product @ (seven - product))
        cube = without_tiny(product @ (fifteen - square))
        inverse = without_tiny(0.25 * inverse @ (thirteen - cube))
    return inverse


def check_iteration(num_iters: int, newton_start_per: str) -> None:
    """Raise a ValueError for options that :func:`pseudo_inverse` does not take."""
    if newton_start_per not in STARTS:
        raise ValueError(f'newton_start_per must be one of {STARTS}, got {newton_start_per!r}')
    check_counts(num_iters=num_iters)
