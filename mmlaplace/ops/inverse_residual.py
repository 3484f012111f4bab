"""The residual of an inverse."""

from torch import Tensor

from ._checks import check_floating
from ._inverse import add_ridge, check_inputs, identity_like
from .precision import fp32_under_autocast, upcast


@fp32_under_autocast
def inverse_residual(mat: Tensor, inverse: Tensor, ridge: float) -> Tensor:
    """The residual of an inverse, ``max |I - (mat + ridge * I) inverse|``, per matrix.

    Args:
        mat: Matrices ``(..., m, m)``.
        inverse: Their inverses ``(..., m, m)``, as :func:`newton_schulz_inverse` and
            :func:`cholesky_inverse` return them.
        ridge: The ridge that was given to these functions.

    Returns:
        ``(...)``, at least fp32.

    Raises:
        TypeError: If ``mat`` or ``inverse`` is no floating tensor, or ``ridge`` no number.
        ValueError: If ``mat`` is not square, ``inverse`` has another shape, or for ``ridge < 0``.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import inverse_residual
        >>> inverse_residual(torch.eye(2), torch.eye(2), ridge=0.25)
        tensor(0.2500)
    """
    op = 'inverse_residual'
    check_inputs(op, mat, ridge)
    check_floating(op, 'inverse', inverse)
    if inverse.shape != mat.shape:
        raise ValueError(
            f'{op}: inverse must be shaped like mat, {tuple(mat.shape)}, got {tuple(inverse.shape)}'
        )
    ridged = add_ridge(mat, ridge)
    return (identity_like(ridged) - ridged @ upcast(inverse)[0]).abs().amax((-2, -1))
