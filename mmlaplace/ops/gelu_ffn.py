"""An FFN as one op, which keeps the hidden tokens in the cache of a CPU."""

import functools
from typing import Any, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from . import _native
from ._native import Function, below_autograd, graph_gradients
from .precision import autocast_dtype

# Bytes of hidden tokens in a block, for each thread. A block stays in the second-level cache.
BLOCK_BYTES = 2 << 20
# Above this size, allocators request new memory from the system, and its first access is slow.
LARGE_BYTES = 16 << 20
OP = '_gelu_ffn'
SCHEMA = (
    f'{OP}(Tensor x, Tensor first, Tensor? first_bias, Tensor second, Tensor? second_bias, '
    'str approximate) -> Tensor'
)
Bias = Optional[Tensor]


def gelu_ffn_reference(
    x: Tensor, first: Tensor, first_bias: Bias, second: Tensor, second_bias: Bias, approximate: str
) -> Tensor:
    """``linear(gelu(linear(x)))`` by torch's own functions."""
    hidden = F.gelu(F.linear(x, first, first_bias), approximate=approximate)
    return F.linear(hidden, second, second_bias)


@functools.cache
def has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN computes linears of that dtype on this CPU.

    torch has its linears for fp32 and bf16. In builds without MKL, they may be slower than BLAS.
    """
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()):
        return False
    if dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return dtype == torch.float32


def onednn_linear(x: Tensor, weight: Tensor, bias: Bias = None) -> Tensor:
    """``x @ weight.T + bias`` of tokens ``(..., C)``. Autograd does not record it.

    Tensors may have any strides. All are fp32, or all bf16.

    Args:
        x: Tokens.
        weight: ``(out, C)``, or such a weight in oneDNN's own order.
        bias: ``(out,)``. Default: none.
    """
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()  # torch gives oneDNN its address alone, without its strides
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, 'none', [], '')


def block_rows(x: Tensor, hidden: int) -> int:
    """Rows of tokens in a block, for that many hidden channels."""
    return max(BLOCK_BYTES // (x.element_size() * hidden), 64) * torch.get_num_threads()


def fits(x: Tensor, first: Tensor, first_bias: Bias, second: Tensor, second_bias: Bias) -> bool:
    """Whether oneDNN may compute it: plain tensors of one dtype, whose shapes fit as they are.

    oneDNN reads as many values as it expects, and it does not broadcast.
    """
    if first_bias is None or second_bias is None or not has_onednn(x.dtype):
        return False
    for tensor in (x, first, first_bias, second, second_bias):
        if tensor.dtype != x.dtype or tensor.layout != torch.strided or not tensor.is_cpu:
            return False
    hidden = first_bias.shape
    return (
        x.numel() > 0
        and x.dim() > 0
        and first.shape == (*hidden, x.shape[-1])
        and second.shape == (*second_bias.shape, *hidden)
        and min(second.shape) > 0
        and first_bias.dim() == second_bias.dim() == 1
    )


def compute(
    x: Tensor, first: Tensor, first_bias: Bias, second: Tensor, second_bias: Bias, approximate: str
) -> Tensor:
    """The op on a CPU, of which nothing is recorded."""
    fit = fits(x, first, first_bias, second, second_bias)
    if first_bias is None or second_bias is None or not fit:
        return gelu_ffn_reference(x, first, first_bias, second, second_bias, approximate)
    rows, step = x.reshape(-1, x.shape[-1]), block_rows(x, len(first))
    if len(rows) > step:  # oneDNN orders the weights once for all blocks
        reorder = torch.ops.mkldnn._reorder_linear_weight
        first, second = reorder(first, step), reorder(second, step)
    # torch gives oneDNN the address of a bias alone, without its stride.
    biases = first_bias.contiguous(), second_bias.contiguous()
    out = in_blocks(rows, step, first, biases[0], second, biases[1], approximate)
    return out.view(*x.shape[:-1], -1)


def in_order(weight: Tensor, rows: int) -> Tensor:
    """A weight in oneDNN's own order, which is quick for that many rows, and right for any."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, rows)


def in_blocks(
    rows: Tensor,
    step: int,
    first: Tensor,
    first_bias: Bias,
    second: Tensor,
    second_bias: Bias,
    approximate: str,
) -> Tensor:
    """The op of rows ``(rows, C)``, for ``step`` rows at a time."""
    linear = torch.ops.mkldnn._linear_pointwise
    if len(rows) <= step:
        hidden = linear(rows, first, first_bias, 'gelu', [], approximate)
        return linear(hidden, second, second_bias, 'none', [], '')
    out = rows.new_empty(len(rows), second.shape[0])
    for part, to in zip(rows.split(step), out.split(step)):
        hidden = linear(part, first, first_bias, 'gelu', [], approximate)
        to.copy_(linear(hidden, second, second_bias, 'none', [], ''))
    return out


def differentiable(
    x: Tensor, first: Tensor, first_bias: Bias, second: Tensor, second_bias: Bias, approximate: str
) -> Tensor:
    """The op above autograd."""
    weights = first, first_bias, second, second_bias
    in_graph = type(x) not in PLAIN
    # These look inside of an op. torch's own functions have what they look for.
    looked_into = not in_graph and (
        torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    )
    recorded = False
    if torch.is_grad_enabled():
        tensors = [tensor for tensor in (x, *weights) if tensor is not None]
        recorded = any(tensor.requires_grad for tensor in tensors)
    if not looked_into and not recorded:
        with below_autograd():
            return gelu_ffn(x, *weights, approximate)
    if looked_into or x.dtype != torch.float32 or not fits(x, *weights):
        return gelu_ffn_reference(x, *weights, approximate)
    return (GraphFFN if in_graph else GeluFFN).apply(x, *weights, approximate)


class GeluFFN(Function):
    """Training in fp32. It keeps the hidden tokens before GELU.

    If these would take much memory, the backward pass computes them again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        first: Tensor,
        first_bias: Tensor,
        second: Tensor,
        second_bias: Tensor,
        approximate: str,
    ) -> Tensor:
        rows, hidden = x.reshape(-1, x.shape[-1]), None
        if 4 * len(rows) * len(first) < LARGE_BYTES:
            hidden = onednn_linear(rows, first, first_bias)
            activated = F.gelu(hidden, approximate=approximate)
            out = onednn_linear(activated, second, second_bias).view(*x.shape[:-1], len(second))
        else:
            out = compute(x, first, first_bias, second, second_bias, approximate)
        ctx.save_for_backward(x, first, first_bias, second, second_bias, hidden)
        ctx.approximate = approximate
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        x, first, first_bias, second, second_bias, hidden = ctx.saved_tensors
        needs = ctx.needs_input_grad[:5]
        if torch.is_grad_enabled():  # second derivatives need a graph
            formula = functools.partial(gelu_ffn_reference, approximate=ctx.approximate)
            inputs = x, first, first_bias, second, second_bias
            return *graph_gradients(formula, needs, grad, *inputs), None
        grads = gradients(grad, x, first, first_bias, second, hidden, ctx.approximate, needs)
        return *grads, None


class GraphFFN(Function):
    """Training in a graph of torch.compile, which has only the first derivatives."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, ctx.approximate = inputs
        ctx.save_for_backward(*tensors[:4])
        with below_autograd():
            return gelu_ffn(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        compute_grads = torch.ops.mmlaplace._gelu_ffn_backward
        return *compute_grads(grad, *ctx.saved_tensors, ctx.approximate), None


def all_gradients(
    grad: Tensor, x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, approximate: str
) -> Tuple[Tensor, ...]:
    """The gradients of all tensors, for graphs."""
    grads: Any = gradients(grad, x, first, first_bias, second, None, approximate, [True] * 5)
    return grads


def gradients(
    grad: Tensor,
    x: Tensor,
    first: Tensor,
    first_bias: Tensor,
    second: Tensor,
    hidden: Optional[Tensor],
    approximate: str,
    needs: Sequence[bool],
) -> Tuple[Optional[Tensor], ...]:
    """The gradients of x and of the weights and biases, of those that are needed."""
    needs_x, needs_first, needs_first_bias, needs_second, needs_second_bias = needs
    rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    of_x = rows.new_empty(rows.shape) if needs_x else None
    of_first, of_second = (
        weight.new_zeros(weight.shape) if need else None
        for weight, need in ((first, needs_first), (second, needs_second))
    )
    of_first_bias = first_bias.new_zeros(first_bias.shape) if needs_first_bias else None
    step = block_rows(x, len(first))
    for start in range(0, len(rows), step):
        block = slice(start, start + step)
        part, part_grad = rows[block], grads[block]
        before = onednn_linear(part, first, first_bias) if hidden is None else hidden[block]
        if of_second is not None:
            of_second += weight_gradient(part_grad, F.gelu(before, approximate=approximate))
        if of_x is None and of_first is None and of_first_bias is None:
            continue
        of_hidden = torch.ops.aten.gelu_backward(
            onednn_linear(part_grad, second.t()), before, approximate=approximate
        )
        if of_first is not None:
            of_first += weight_gradient(of_hidden, part)
        if of_first_bias is not None:
            of_first_bias += of_hidden.sum(0)
        if of_x is not None:
            of_x[block] = onednn_linear(of_hidden, first.t())
    return (
        None if of_x is None else of_x.view(x.shape),
        of_first,
        of_first_bias,
        of_second,
        grads.sum(0) if needs_second_bias else None,
    )


def weight_gradient(grad: Tensor, x: Tensor) -> Tensor:
    """``grad.T @ x`` of rows ``(rows, out)`` and ``(rows, in)``.

    It takes half the time if the first factor is the smaller one.
    """
    if x.shape[1] < grad.shape[1]:
        return onednn_linear(x.T, grad.T).T
    return onednn_linear(grad.T, x.T)


def in_half(x: Tensor, *weights_and_form: Any) -> Tensor:
    """The op under autocast: in its half precision as a whole, as torch's linears are."""
    dtype = autocast_dtype(x.device)
    *weights, approximate = weights_and_form
    cast = [
        tensor.to(dtype) if tensor is not None and tensor.dtype in AUTOCAST_FROM else tensor
        for tensor in (x, *weights)
    ]
    with torch.autocast('cpu', enabled=False):
        return torch.ops.mmlaplace._gelu_ffn(*cast, approximate)


def _fake(x: Tensor, first: Tensor, first_bias: Bias, second: Tensor, *_: Any) -> Tensor:
    return x.new_empty(*x.shape[:-1], len(second))


def _fake_gradients(
    grad: Tensor, x: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, approximate: str
) -> Tuple[Tensor, ...]:
    like = (x, first, first_bias, second, second[:, 0])  # the last bias is as long
    return tuple(tensor.new_empty(tensor.shape) for tensor in like)


PLAIN = (Tensor, torch.nn.Parameter)
AUTOCAST_FROM = (torch.float32, torch.bfloat16, torch.float16)  # autocast leaves fp64 alone
_native.define(
    SCHEMA,
    compute,
    _fake,
    Autograd=differentiable,
    AutocastCPU=in_half,
    FuncTorchBatched=gelu_ffn_reference,
)
_native.define(
    f'{OP}_backward(Tensor grad, Tensor x, Tensor first, Tensor first_bias, Tensor second, '
    'str approximate) -> (Tensor, Tensor, Tensor, Tensor, Tensor)',
    all_gradients,
    _fake_gradients,
)
gelu_ffn = torch.ops.mmlaplace._gelu_ffn.default
