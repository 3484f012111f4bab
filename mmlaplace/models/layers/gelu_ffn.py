"""An FFN with GELU as one function of rows. It keeps hidden tokens in the cache of a CPU."""

from typing import Any, Iterator, Optional, Sequence, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmlaplace.ops import _native
from mmlaplace.ops.bias_gelu import bias_gelu, bias_gelu_backward, has_bias_gelu
from mmlaplace.ops.onednn_linear import (
    block_rows,
    onednn_gelu_ffn,
    onednn_linear,
    onednn_weight_grad,
)

from . import linear


def fits(act: nn.Module) -> bool:
    """Whether :func:`gelu_ffn` computes an FFN of plain layers with that activation."""
    return has_bias_gelu() and type(act) is nn.GELU


def gelu_ffn(x: Tensor, approximate: str, *weights: Tensor) -> Tensor:
    """``linear(gelu(linear(x)))`` of fp32 tokens ``(..., C)`` on a CPU, where it :func:`fits`.

    ``weights`` are the weight and bias of the first linear, and of the second.

    One pass applies the bias of the first linear and GELU. Blocks of rows stay in the cache. The
    products are those of :func:`~.linear.linear_library`. Training keeps the result of the first
    linear without its bias and without GELU. If this would take much memory, the backward pass
    computes it again.
    """
    if not linear.records(x, *weights):
        return _on_rows(approximate, x, *weights)
    out = GeluFFN.apply(approximate, x.reshape(-1, x.shape[-1]), *weights)
    return out.view(*x.shape[:-1], -1)


class GeluFFN(_native.Function):
    """``linear(gelu(linear(x)))`` of rows ``(rows, C)``."""

    @staticmethod
    def forward(ctx: Any, approximate: str, x: Tensor, *weights: Tensor) -> Tensor:
        hidden = None
        if 4 * len(x) * len(weights[0]) < linear.LARGE_BYTES:
            hidden = x.new_empty(len(x), len(weights[0]))
        ctx.approximate = approximate
        ctx.save_for_backward(hidden, x, *weights)
        return _forward(approximate, hidden, x, *weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        hidden, *inputs = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives need a graph

            def formula(x, first, first_bias, second, second_bias):
                hidden = F.gelu(F.linear(x, first, first_bias), approximate=ctx.approximate)
                return F.linear(hidden, second, second_bias)

            needed = ctx.needs_input_grad[1:]
            return None, *_native.graph_gradients(formula, needed, grad, *inputs)
        x, first, first_bias, second, _ = inputs
        return None, *_backward(
            ctx.approximate, hidden, ctx.needs_input_grad[1:], grad, x, first, first_bias, second
        )


class GraphFFN(_native.Function):
    """:class:`GeluFFN` in a graph of torch.compile, which has only first derivatives."""

    @staticmethod
    def forward(ctx: Any, approximate: str, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.approximate = approximate
        ctx.save_for_backward(x, *weights[:3])
        with _native.below_autograd():
            return torch.ops.mmlaplace._gelu_ffn(approximate, x, *weights)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        compute = torch.ops.mmlaplace._gelu_ffn_backward
        return None, *compute(ctx.approximate, grad, *ctx.saved_tensors)


def _backward(
    approximate: str, hidden: Optional[Tensor], needs: Sequence[bool],
    grad: Tensor, x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor,
) -> Tuple[Optional[Tensor], ...]:  # fmt: skip
    """The gradients of x and of both weights and biases, of those that are needed."""
    needs_x, needs_first, needs_first_bias, needs_second, needs_bias = needs
    # All are contiguous, as compiled graphs expect.
    of_x = x.new_empty(x.shape) if needs_x else None
    of_first = first.new_zeros(first.shape) if needs_first else None
    of_second = second.new_zeros(second.shape) if needs_second else None
    of_first_bias = first_bias.new_zeros(first_bias.shape)
    buffers = None
    for rows in _blocks(x, first):
        part, part_grad = x[rows], grad[rows]
        if buffers is None:
            buffers = x.new_empty(2, len(part), len(first))
        activated, buffer = buffers[:, : len(part)]
        before = _product(part, first, activated) if hidden is None else hidden[rows]
        of_hidden = _product(part_grad, second.t(), buffer)
        of_first_bias += bias_gelu_backward(of_hidden, before, first_bias, approximate, activated)
        if of_second is not None:
            _add_weight_grad(of_second, part_grad, activated)
        if of_first is not None:
            _add_weight_grad(of_first, of_hidden, part)
        if of_x is not None:
            _put(_product(of_hidden, first.t(), of_x[rows]), of_x[rows])
    return (
        of_x, of_first, of_first_bias if needs_first_bias else None, of_second,
        grad.sum(0) if needs_bias else None,
    )  # fmt: skip


def _product(x: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """``x @ weight.T``. BLAS writes it to ``out``. oneDNN makes a new tensor."""
    if linear.linear_library() == 'onednn':
        return onednn_linear(x, weight)
    return torch.mm(x, weight.t(), out=out)


def _put(result: Tensor, out: Tensor) -> None:
    if result.data_ptr() != out.data_ptr():
        out.copy_(result)


def _add_weight_grad(total: Tensor, grad: Tensor, x: Tensor) -> None:
    """Add ``grad.T @ x`` to ``total``."""
    if linear.linear_library() == 'onednn':
        total += onednn_weight_grad(grad, x)
    else:
        total.addmm_(grad.t(), x)


def _blocks(x: Tensor, first: Tensor) -> Iterator[slice]:
    """Blocks of rows, each computed at a time."""
    if linear.linear_library() == 'onednn':
        size = block_rows(x, first)
    else:
        size = linear.block_rows(len(first))
    for start in range(0, len(x), size):
        yield slice(start, min(start + size, len(x)))


def _forward(
    approximate: str, hidden: Optional[Tensor],
    x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor,
) -> Tensor:  # fmt: skip
    """The result. ``hidden``, if given, gets the result of the first linear without its bias."""
    if hidden is None and linear.linear_library() == 'onednn':
        return onednn_gelu_ffn(approximate, x, first, first_bias, second, second_bias)
    out, buffer = x.new_empty(len(x), len(second)), None
    for rows in _blocks(x, first):
        part = x[rows]
        if buffer is None:
            buffer = x.new_empty(len(part), len(first))
        activated = buffer[: len(part)]
        if hidden is None:
            before = _product(part, first, activated)
        else:
            before = hidden[rows]
            _put(_product(part, first, before), before)
        bias_gelu(before, first_bias, approximate, activated)
        if linear.linear_library() == 'onednn':
            out[rows] = onednn_linear(activated, second, second_bias)
        else:
            torch.addmm(second_bias, activated, second.t(), out=out[rows])
    return out


def _on_rows(approximate: str, x: Tensor, *weights: Tensor) -> Tensor:
    out = _forward(approximate, None, x.reshape(-1, x.shape[-1]), *weights)
    return out.view(*x.shape[:-1], out.shape[-1])  # also of no rows


def _backward_on_rows(
    approximate: str, grad: Tensor, x: Tensor, *weights: Tensor
) -> Tuple[Tensor, ...]:
    rows = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
    grads: Any = _backward(approximate, None, [True] * 5, *rows, *weights)
    return grads[0].view(x.shape), *grads[1:]


def _fake(
    approximate: str, x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, *_: Tensor
) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(second))


def _fake_backward(
    approximate: str, grad: Tensor, x: Tensor, *weights: Tensor
) -> Tuple[Tensor, ...]:
    like = (x, *weights, weights[-1][:, 0])  # the last bias is as long as the last weight
    return tuple(tensor.new_empty(tensor.shape) for tensor in like)


# Ops for graphs of torch.compile, which hold an FFN as one node.
_WEIGHTS = 'Tensor first, Tensor first_bias, Tensor second'
_native.define(
    f'_gelu_ffn(str approximate, Tensor x, {_WEIGHTS}, Tensor second_bias) -> Tensor',
    _on_rows,
    _fake,
    GraphFFN.apply,
)
_native.define(
    f'_gelu_ffn_backward(str approximate, Tensor grad, Tensor x, {_WEIGHTS}) -> '
    '(Tensor, Tensor, Tensor, Tensor, Tensor)',
    _backward_on_rows,
    _fake_backward,
)
