"""The powers of PolaFormer's features in one pass, for a CPU. Only graphs record them."""

from typing import Any, Tuple

import torch
from torch import Tensor

from . import _native
from ._checks import has_values
from .backend import in_cpu_graph

OP = '_signed_powers'


def fits(x: Tensor) -> bool:
    """Whether the compiled op computes ``x``: fp32 on a CPU, with values."""
    return (
        x.device.type == 'cpu'
        and x.dtype == torch.float32
        and has_values(x)
        and _native.computes(OP, 'cpu')
    )


def fits_graph(x: Tensor) -> bool:
    """Whether a graph of torch.compile is to hold the compiled op as a node."""
    return in_cpu_graph(x) and _native.computes(OP, 'cpu')


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
    with _native.below_autograd():
        return _native.compiled(OP)(x, power, shift)


def signed_powers_backward(
    grad: Tensor, x: Tensor, power: Tensor, shift: Tensor
) -> Tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, power and shift. They are zero where ``x`` is."""
    return _native.compiled(f'{OP}_backward')(grad, x, power, shift)


class _InGraph(_native.Function):
    """The derivatives of the compiled op in a graph, which has only the first ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, power: Tensor, shift: Tensor) -> Tensor:
        ctx.save_for_backward(x, power, shift)
        return signed_powers(x, power, shift)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Tensor, Tensor, Tensor]:
        return signed_powers_backward(grad, *ctx.saved_tensors)


def _fake(x: Tensor, power: Tensor, shift: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], 2 * x.shape[-1])


def _fake_backward(
    grad: Tensor, x: Tensor, power: Tensor, shift: Tensor
) -> Tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), power.new_empty(power.shape), shift.new_empty(shift.shape)


_native.register(OP, _fake, _InGraph.apply, widen=False)
_native.register(f'{OP}_backward', _fake_backward)
