"""Checks of the inputs that all ops share."""

import numbers
from typing import Callable, Sequence

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from .precision import HALVES

FLOATING = (torch.float64, torch.float32, *HALVES)
# Whether torch.compile or torch.export is tracing. torch 2.1 has it elsewhere, and it takes seconds
# to import that in later versions.
is_compiling: Callable[[], bool] = getattr(
    torch.compiler, 'is_compiling', lambda: torch._dynamo.is_compiling()
)


def constant_in_graphs(function: Callable) -> Callable:
    """Make graphs of torch.compile take the result of one call, as a constant.

    It is ``torch.compiler.assume_constant_result``, which imports all of dynamo. That took a fifth
    of ``import mmlaplace``.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as torch's own does
    return function


def _is_transforming_in_torch_2_1() -> bool:
    return not is_compiling() and torch._C._are_functorch_transforms_active()


# Whether a transform of torch.func, such as ``vmap``, is active. torch 2.1 cannot ask in a graph.
is_transforming: Callable[[], bool] = (
    torch._C._are_functorch_transforms_active
    if hasattr(torch.compiler, 'is_compiling')
    else _is_transforming_in_torch_2_1
)


def check_query_key(op: str, query: Tensor, key: Tensor) -> None:
    """Raise unless query is ``(B, heads, N, d)`` and key ``(B, heads, M, d)``, alike otherwise."""
    for name, tensor in (('q', query), ('k', key)):
        check_tensor(op, name, tensor)
        if tensor.dim() != 4:
            raise ValueError(
                f'{op}: {name} must have the four axes (B, heads, N, d), got shape '
                f'{tuple(tensor.shape)}'
            )
        check_floating(op, name, tensor)
    if query.shape[:2] != key.shape[:2] or query.shape[3] != key.shape[3]:
        raise ValueError(
            f'{op}: q {tuple(query.shape)} and k {tuple(key.shape)} must agree in every axis but '
            'the third'
        )
    if query.dtype != key.dtype or query.device != key.device:
        raise ValueError(
            f'{op}: q ({query.dtype}, {query.device}) and k ({key.dtype}, {key.device}) must '
            'share dtype and device'
        )


def check_tensor(op: str, name: str, tensor: Tensor) -> None:
    """Raise unless it is a tensor."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f'{op}: {name} must be a tensor, got {type(tensor).__name__}')


def check_floating(op: str, name: str, tensor: Tensor) -> None:
    """Raise unless it is a tensor of fp64, fp32, fp16 or bf16."""
    if not isinstance(tensor, Tensor):
        check_tensor(op, name, tensor)
    if tensor.dtype not in FLOATING:
        raise TypeError(
            f'{op}: {name} must be float64, float32, float16 or bfloat16, got {tensor.dtype}'
        )


def check_like(op: str, name: str, tensor: Tensor, like: Tensor) -> None:
    """Raise unless it has the shape and the dtype of ``like``."""
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise ValueError(
            f'{op}: {name} must be {tuple(like.shape)} of {like.dtype}, got {tuple(tensor.shape)} '
            f'of {tensor.dtype}'
        )


def check_number(op: str, name: str, value: float) -> None:
    """Raise unless it is a number. A tensor is none, as the ops would give it no gradient."""
    if isinstance(value, (int, float)):
        return
    if isinstance(value, Tensor):
        raise TypeError(
            f'{op}: {name} must be a number, got a tensor of shape {tuple(value.shape)}, which '
            f'would get no gradient; give float({name})'
        )
    if not isinstance(value, (numbers.Real, torch.SymInt, torch.SymFloat)):
        raise TypeError(
            f'{op}: {name} must be a number, got {value!r} of type {type(value).__name__}'
        )


def check_positive(op: str, name: str, value: float) -> None:
    """Raise unless ``0 < value < inf``."""
    check_number(op, name, value)
    if not 0 < value < float('inf'):
        raise ValueError(f'{op}: {name} must be positive and finite, got {value}')


def check_not_negative(op: str, name: str, value: float) -> None:
    """Raise unless ``0 <= value < inf``."""
    check_number(op, name, value)
    if not 0 <= value < float('inf'):
        raise ValueError(f'{op}: {name} must be finite and not negative, got {value}')


def broadcasts(tensor: Tensor, shape: Sequence[int]) -> bool:
    """Whether the tensor broadcasts to ``shape``, where a graph may have symbols as sizes."""
    return tensor.dim() <= len(shape) and all(
        size == 1 or size == other for size, other in zip(tensor.shape[::-1], shape[::-1])
    )


def check_square(op: str, mat: Tensor) -> None:
    """Raise unless mat is a floating ``(..., m, m)`` tensor."""
    check_tensor(op, 'mat', mat)
    if mat.dim() < 2 or mat.shape[-1] != mat.shape[-2] or mat.shape[-1] == 0:
        raise ValueError(
            f'{op}: mat must hold square matrices (..., m, m), got shape {tuple(mat.shape)}'
        )
    check_floating(op, 'mat', mat)


def check_finite(op: str, name: str, tensor: Tensor) -> None:
    """Raise if a value is NaN or infinite."""
    if not has_values(tensor):
        return
    finite = torch.isfinite(tensor)
    if not finite.all():
        bad = (~finite).nonzero()[0].tolist()
        raise ValueError(
            f'{op}: {name} has {int((~finite).sum())} values that are not finite, the first '
            f'{tensor[tuple(bad)].item()} at {bad} of shape {tuple(tensor.shape)}; its inputs '
            'overflowed or the training diverged'
        )


def has_values(tensor: Tensor) -> bool:
    """Whether values can be read. They cannot in meta and fake tensors, graphs and torch.func."""
    return not (
        tensor.is_meta
        or isinstance(tensor, FakeTensor)
        or is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
    )


def is_recording() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace is recording a graph."""
    return is_compiling() or torch.jit.is_tracing()
