"""How operations of PyTorch are written in ONNX where the exporter's own form is slow."""

import math
from typing import Any, Callable, Dict, Optional, Sequence

import torch

from ..ops.inverse_steps import STEPS


def cdist_of_channels(x1: Any, x2: Any, p: float = 2.0, compute_mode: Optional[int] = None) -> Any:
    """``torch.cdist`` of ``(B, heads, N or M, d)`` and p = 1 or 2 in operators of ONNX.

    It is :func:`mmlaplace.ops._pairwise.sum_over_channels` in the exporter's own terms. Captured in
    PyTorch's, its nodes are most of a graph, and with dynamic sizes each takes much time.
    """
    op = operators()
    if x1 is x2:  # landmarks with each other, which are few
        return _cdist_by_one_sum(x1, p)
    channels = x1.shape[-1]
    rows = op.Split(op.Transpose(x1, perm=[0, 1, 3, 2]), axis=-2, num_outputs=channels)
    columns = op.Split(x2, axis=-1, num_outputs=channels)
    total = None
    for row, column in zip(rows, columns):
        difference = op.Sub(row, column)
        term = op.Abs(difference) if p == 1 else op.Mul(difference, difference)
        total = term if total is None else op.Add(total, term)
    total = op.Transpose(total, perm=[0, 1, 3, 2])
    return total if p == 1 else op.Sqrt(total)


def _cdist_by_one_sum(x: Any, p: float) -> Any:
    """The distances of ``(B, heads, m, d)`` with each other.

    An inverse needs more digits of them than a kernel of tokens. In bf16, a sum that grows channel
    by channel is rounded each time, and one of all channels once.
    """
    op = operators()
    rows, columns = (op.Unsqueeze(x, op.Constant(value_ints=[axis])) for axis in (-2, -3))
    difference = op.Sub(rows, columns)  # (B, heads, m, m, d)
    terms = op.Abs(difference) if p == 1 else op.Mul(difference, difference)
    total = op.ReduceSum(terms, op.Constant(value_ints=[-1]), keepdims=0)
    return total if p == 1 else op.Sqrt(total)


def inverse_steps(
    mat: Any, start: Any, doubled: Any, factors: Sequence[float], limit: Any = None
) -> Any:
    """:func:`mmlaplace.ops.inverse_steps.steps` in operators of ONNX."""
    op = operators()
    inverse = start
    least = None if limit is None else op.Neg(limit)
    for factor in factors:
        inverse = op.MatMul(inverse, op.Sub(doubled, op.MatMul(mat, inverse)))
        if factor != 1:
            inverse = op.Mul(inverse, _like(mat, factor))
        if limit is not None:
            one = len(limit.shape) == 0  # a limit for all matrices
            inverse = (
                op.Clip(inverse, least, limit) if one else op.Min(op.Max(inverse, least), limit)
            )
    return inverse


def gelu(x: Any, approximate: str = 'none') -> Any:
    """GELU in the order of operators that ONNX Runtime knows as one."""
    from onnxscript.function_libs.torch_lib.ops import nn

    op = operators()
    if approximate != 'none':
        return nn.aten_gelu(x, approximate=approximate)
    scaled = op.Div(x, _like(x, math.sqrt(2)))
    return op.Mul(op.Mul(x, op.Add(op.Erf(scaled), _like(x, 1.0))), _like(x, 0.5))


def mean_over(x: Any, dim: Sequence[int], keepdim: bool = False, dtype: int = -1) -> Any:
    """``torch.mean`` over some dimensions, over the tokens of ``(..., N, C)`` as a product."""
    from onnxscript.function_libs.torch_lib.ops import core

    op = operators()
    if not _over_tokens(x, dim, dtype):
        return core.aten_mean_dim(x, dim, keepdim=keepdim, dtype=dtype)
    tokens = op.CastLike(op.Shape(x, start=-2, end=-1), x)
    return op.Div(_product_with_ones(x, keepdim), tokens)


def sum_over(
    x: Any, dim: Optional[Sequence[int]] = None, keepdim: bool = False, dtype: int = -1
) -> Any:
    """``torch.sum`` over some dimensions, over the tokens of ``(..., N, C)`` as a product."""
    from onnxscript.function_libs.torch_lib.ops import core

    if not _over_tokens(x, dim, dtype):
        return core.aten_sum_dim_IntList(x, dim, keepdim=keepdim, dtype=dtype)
    return _product_with_ones(x, keepdim)


def _over_tokens(x: Any, dim: Optional[Sequence[int]], dtype: Optional[int]) -> bool:
    dims = [dim] if isinstance(dim, int) else list(dim or ())
    return (
        len(x.shape) > 1
        and [each % len(x.shape) for each in dims] == [len(x.shape) - 2]
        and dtype in (-1, None)
        and x.dtype.name == 'FLOAT'  # a half cannot hold the sum, nor the number of many tokens
    )


def _product_with_ones(x: Any, keepdim: bool) -> Any:
    """The sum over N of ``(..., N, C)``. ONNX Runtime's own takes 10 to 30 times as long.

    The transposition is a part of the product, or the one that the product with the values needs.
    """
    op = operators()
    order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
    ones = op.Expand(
        _like(x, 1.0), op.Concat(op.Shape(x, start=-2, end=-1), op.Constant(value_ints=[1]), axis=0)
    )
    total = op.MatMul(op.Transpose(x, perm=order), ones)  # (..., C, 1)
    return (
        op.Transpose(total, perm=order)
        if keepdim
        else op.Squeeze(total, op.Constant(value_ints=[-1]))
    )


def operators() -> Any:
    """The operators. Their annotations are for values, and these functions give them nodes."""
    from onnxscript import opset18

    return opset18


def _like(x: Any, value: float) -> Any:
    """A constant in the dtype of ``x``."""
    import numpy as np
    from onnxscript import ir

    return operators().Constant(value=ir.tensor(np.array(value, x.dtype.numpy())))


def forms() -> Dict[Callable, Callable]:
    """For torch.onnx: how these operations are written."""
    aten = torch.ops.aten
    return {
        aten.cdist.default: cdist_of_channels,
        aten.gelu.default: gelu,
        aten.mean.dim: mean_over,
        aten.sum.dim_IntList: sum_over,
        getattr(torch.ops.mmlaplace, STEPS).default: inverse_steps,
    }
