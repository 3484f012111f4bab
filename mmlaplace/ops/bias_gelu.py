"""The bias and GELU between the linears of an FFN, in one pass over its hidden tokens."""

import torch.nn.functional as F
from torch import Tensor

from . import _native

OP = '_bias_gelu'


def bias_gelu_reference(x: Tensor, bias: Tensor, approximate: str) -> Tensor:
    """The specification of :func:`bias_gelu` in plain PyTorch."""
    return F.gelu(x + bias, approximate=approximate)


def has_bias_gelu() -> bool:
    """Whether the compiled op computes on a CPU."""
    return _native.computes(OP, 'cpu')


def bias_gelu(x: Tensor, bias: Tensor, approximate: str, out: Tensor) -> None:
    """Write ``GELU(x + bias)`` to ``out``. Autograd does not record it.

    Args:
        x: Hidden tokens ``(rows, C)``, contiguous fp32 on a CPU.
        bias: ``(C,)``, of any stride.
        approximate: ``'none'`` or ``'tanh'``, as in ``torch.nn.GELU``.
        out: A tensor like ``x``. It may be ``x`` itself.
    """
    _native.compiled(OP)(x, bias.contiguous(), approximate == 'tanh', out)


def bias_gelu_backward(
    grad: Tensor, x: Tensor, bias: Tensor, approximate: str, out: Tensor
) -> Tensor:
    """The gradient of the bias ``(C,)``. The gradient of ``x`` is written over ``grad``.

    ``out`` gets the result of :func:`bias_gelu` again. It may be ``x`` itself.
    """
    backward = _native.compiled(f'{OP}_backward')
    return backward(grad, x, bias.contiguous(), approximate == 'tanh', out)
