"""An FFN with GELU as one function of rows. It keeps hidden tokens in the cache of a CPU."""

from typing import Any, Iterator, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmlaplace.ops import _native
from mmlaplace.ops.bias_gelu import bias_gelu, bias_gelu_backward, has_bias_gelu

from . import linear


def fits(act: nn.Module) -> bool:
    """Whether :func:`gelu_ffn` computes an FFN of plain layers with that activation."""
    return linear.linear_library() == 'blas' and has_bias_gelu() and type(act) is nn.GELU


def gelu_ffn(x: Tensor, approximate: str, *weights: Tensor) -> Tensor:
    """``linear(gelu(linear(x)))`` of fp32 tokens ``(..., C)`` on a CPU, where it :func:`fits`.

    ``weights`` are the weight and bias of the first linear, and of the second.

    One pass applies the bias of the first linear and GELU. Blocks of rows stay in the cache.
    Training keeps the result of the first linear without its bias and without GELU. If this would
    take much memory, the backward pass computes it again.
    """
    inputs = (x.reshape(-1, x.shape[-1]), *weights)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        out = GeluFFN.apply(approximate, *inputs)
    else:
        out = _forward(approximate, None, *inputs)
    return out.view(*x.shape[:-1], -1)


class GeluFFN(torch.autograd.Function):
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
        needs_x, needs_first, needs_first_bias, needs_second, needs_bias = ctx.needs_input_grad[1:]
        of_x = torch.empty_like(x) if needs_x else None
        of_first = torch.zeros_like(first) if needs_first else None
        of_second = torch.zeros_like(second) if needs_second else None
        of_first_bias = torch.zeros_like(first_bias)
        buffers = None
        for rows in _blocks(x, first):
            part, part_grad = x[rows], grad[rows]
            if buffers is None:
                buffers = x.new_empty(2, len(part), len(first))
            activated, of_hidden = buffers[:, : len(part)]
            if hidden is None:
                before = torch.mm(part, first.t(), out=activated)
            else:
                before = hidden[rows]
            torch.mm(part_grad, second, out=of_hidden)
            of_first_bias += bias_gelu_backward(
                of_hidden, before, first_bias, ctx.approximate, activated
            )
            if of_second is not None:
                of_second.addmm_(part_grad.t(), activated)
            if of_first is not None:
                of_first.addmm_(of_hidden.t(), part)
            if of_x is not None:
                torch.mm(of_hidden, first, out=of_x[rows])
        return (
            None, of_x, of_first, of_first_bias if needs_first_bias else None, of_second,
            grad.sum(0) if needs_bias else None,
        )  # fmt: skip


def _blocks(x: Tensor, first: Tensor) -> Iterator[slice]:
    """Blocks of rows, each computed at a time."""
    size = linear.block_rows(len(first))
    for start in range(0, len(x), size):
        yield slice(start, min(start + size, len(x)))


def _forward(
    approximate: str, hidden: Optional[Tensor],
    x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor,
) -> Tensor:  # fmt: skip
    """The result. ``hidden``, if given, gets the result of the first linear without its bias."""
    out, buffer = x.new_empty(len(x), len(second)), None
    for rows in _blocks(x, first):
        part = x[rows]
        if buffer is None:
            buffer = x.new_empty(len(part), len(first))
        activated = buffer[: len(part)]
        before = torch.mm(part, first.t(), out=activated if hidden is None else hidden[rows])
        bias_gelu(before, first_bias, approximate, activated)
        torch.addmm(second_bias, activated, second.t(), out=out[rows])
    return out
