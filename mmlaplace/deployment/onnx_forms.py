"""How operations of PyTorch are written in ONNX where the exporter's own form is slow."""

import math
from typing import Any, Callable, Dict, Optional, Sequence

import torch


def cdist_of_channels(x1: Any, x2: Any, p: float = 2.0, compute_mode: Optional[int] = None) -> Any:
    """``torch.cdist`` of ``(B, heads, N or M, d)`` and p = 1 or 2 in operators of ONNX.

    It is :func:`mmlaplace.ops._pairwise.sum_over_channels` in the exporter's own terms. Captured in
    PyTorch's, its nodes are most of a graph, and with dynamic sizes each takes much time.
    """
    op = _opset()
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


def gelu(x: Any, approximate: str = 'none') -> Any:
    """GELU in the order of operators that ONNX Runtime knows as one."""
    from onnxscript.function_libs.torch_lib.ops import nn

    op = _opset()
    if approximate != 'none':
        return nn.aten_gelu(x, approximate=approximate)
    scaled = op.Div(x, _like(x, math.sqrt(2)))
    return op.Mul(op.Mul(x, op.Add(op.Erf(scaled), _like(x, 1.0))), _like(x, 0.5))


def mean_over(x: Any, dim: Sequence[int], keepdim: bool = False, dtype: int = -1) -> Any:
    """``torch.mean`` over some dimensions, over the tokens of ``(..., N, C)`` as a product."""
    from onnxscript.function_libs.torch_lib.ops import core

    op = _opset()
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
    op = _opset()
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


def _opset() -> Any:
    """The operators. Their annotations are for values, and these functions give them nodes."""
    from onnxscript import opset18

    return opset18


def _like(x: Any, value: float) -> Any:
    """A constant in the dtype of ``x``."""
    import numpy as np
    from onnxscript import ir

    return _opset().Constant(value=ir.tensor(np.array(value, x.dtype.numpy())))


def forms() -> Dict[Callable, Callable]:
    """For torch.onnx: how these operations are written."""
    aten = torch.ops.aten
    return {
        aten.cdist.default: cdist_of_channels,
        aten.gelu.default: gelu,
        aten.mean.dim: mean_over,
        aten.sum.dim_IntList: sum_over,
    }
