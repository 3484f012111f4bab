"""Linears of tokens by oneDNN on a CPU, with GELU in the same pass.

torch has the computation, so they need no compiled library of mmlaplace.
"""

from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor

from ._native import Function, below_autograd, define

# Bytes of hidden tokens in a block, for each thread: they stay in the second-level cache.
BLOCK_BYTES = 2 << 20


def has_onednn_linear(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes linears of that dtype on this CPU. It does so for fp32 and bf16."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32


def block_rows(x: Tensor, first: Tensor) -> int:
    """Rows of tokens ``x`` in a block, for a first linear of weight ``(hidden, C)``."""
    return max(BLOCK_BYTES // (x.element_size() * len(first)), 64) * torch.get_num_threads()


def onednn_linear(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    """``x @ weight.T + bias`` of tokens ``(..., C)``. Autograd does not record it.

    Tensors may have any strides.

    Args:
        x: Tokens in fp32 or bf16.
        weight: ``(out, C)``, in the dtype of x.
        bias: ``(out,)``, in the dtype of x. Default: none.
    """
    return _linear_pointwise(x, weight, bias, 'none', '')


def _linear_pointwise(
    x: Tensor, weight: Tensor, bias: Optional[Tensor], function: str, algorithm: str
) -> Tensor:
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()  # torch gives oneDNN its address alone, without its strides
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, function, [], algorithm)


def onednn_gelu_ffn(
    approximate: str, x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor,
    second_bias: Tensor,
) -> Tensor:  # fmt: skip
    """``linear(gelu(linear(x)))`` of tokens ``(..., C)``. Autograd does not record it.

    Args:
        approximate: ``'none'`` or ``'tanh'``, as in ``torch.nn.GELU``.
        x: Tokens in fp32 or bf16.
        first, first_bias: Weight ``(hidden, C)`` and bias of the first linear, in the dtype of x.
        second, second_bias: Weight and bias of the second linear.
    """
    rows, size = x.reshape(-1, x.shape[-1]), block_rows(x, first)
    if len(rows) <= size:
        hidden = _linear_pointwise(rows, first, first_bias, 'gelu', approximate)
        return onednn_linear(hidden, second, second_bias).view(*x.shape[:-1], len(second_bias))
    reorder = torch.ops.mkldnn._reorder_linear_weight  # for oneDNN, once for all blocks
    first, second = reorder(first, size), reorder(second, size)
    out = rows.new_empty(len(rows), len(second_bias))
    for part, to in zip(rows.split(size), out.split(size)):
        hidden = _linear_pointwise(part, first, first_bias, 'gelu', approximate)
        to.copy_(onednn_linear(hidden, second, second_bias))
    return out.view(*x.shape[:-1], -1)


def onednn_weight_grad(grad: Tensor, x: Tensor, linear: Callable = onednn_linear) -> Tensor:
    """``grad.T @ x`` of rows ``(rows, out)`` and ``(rows, in)``, by a ``linear`` of oneDNN.

    It takes half the time if the first factor is the smaller one.
    """
    if x.shape[1] < grad.shape[1]:
        return linear(x.T, grad.T).T
    return linear(grad.T, x.T)


class OneDNNLinear(Function):
    """The derivatives of the linear in a graph of torch.compile, which has only the first ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
        ctx.save_for_backward(x, weight)
        with below_autograd():
            return torch.ops.mmlaplace._onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, *of_bias = ctx.needs_input_grad  # two where there is no bias
        linear = torch.ops.mmlaplace._onednn_linear
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            linear(grad, weight.T) if of_x else None,
            onednn_weight_grad(rows, x.reshape(-1, x.shape[-1]), linear) if of_weight else None,
            rows.sum(0) if any(of_bias) else None,
        )


def _fake(x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(weight))


define(
    '_onednn_linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor',
    onednn_linear,
    _fake,
    OneDNNLinear.apply,
)
