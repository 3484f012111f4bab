"""The powers of PolaFormer's features in one pass, for a CPU. Autograd does not record them."""

from typing import Tuple

import torch
from torch import Tensor

from . import _native
from ._checks import has_values

OP = '_signed_powers'


def fits(x: Tensor) -> bool:
    """Whether the compiled op computes ``x``: fp32 on a CPU, with values."""
    return (
        x.device.type == 'cpu'
        and x.dtype == torch.float32
        and has_values(x)
        and _native.computes(OP, 'cpu')
    )


def signed_powers(x: Tensor, power: Tensor, shift: Tensor) -> Tensor:
    r""":math:`[\mathrm{relu}(x)^p, \mathrm{relu}(-x)^p] \, e^s`, for an ``x`` that :func:`fits`.

    Results below twice the smallest normal number are 0.

    Args:
        x: ``(B, heads, N, d)``. Rows that are contiguous are not copied.
        power: p > 0, ``(heads, 1, d)``.
        shift: s, ``(heads, 1, d)``.

    Returns:
        ``(B, heads, N, 2d)``.
    """
    return _native.compiled(OP)(x, power, shift)


def signed_powers_backward(
    grad: Tensor, x: Tensor, power: Tensor, shift: Tensor
) -> Tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, power and shift. They are zero where ``x`` is."""
    return _native.compiled(f'{OP}_backward')(grad, x, power, shift)
