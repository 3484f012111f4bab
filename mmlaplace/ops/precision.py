"""The precision rules of the ops: kernels, inverses and normalisers never run in half precision."""

import functools
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, ContextManager, Iterator, Optional, Tuple

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def upcast(*tensors: Tensor) -> Tuple[Tensor, ...]:
    """Tensors of fp16 and bf16 in fp32. Tensors of fp32 and fp64 are returned as they are."""
    wide = []
    for tensor in tensors:
        wide.append(tensor.float() if tensor.dtype in HALVES else tensor)
    return tuple(wide)


def one_dtype(*tensors: Optional[Tensor]) -> tuple:
    """Tensors in the dtype that all of them promote to. None stays None."""
    dtypes = []
    for tensor in tensors:
        if tensor is not None:
            dtypes.append(tensor.dtype)
    if dtypes.count(dtypes[0]) == len(dtypes):
        return tensors
    shared = functools.reduce(torch.promote_types, dtypes)
    return tuple(None if tensor is None else tensor.to(shared) for tensor in tensors)


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype that :func:`upcast` gives a tensor."""
    return torch.float32 if tensor.dtype in HALVES else tensor.dtype


def no_autocast(device: torch.device) -> ContextManager:
    """A context in which autocast is off for ``device``."""
    if device.type in ('cpu', 'cuda') or has_autocast(device):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def has_autocast(device: torch.device) -> bool:
    """Whether torch has autocast for ``device``.

    The ``meta`` device has none, nor has ``mps`` in older versions of torch.
    """
    if device.type in ('cpu', 'cuda', 'meta'):
        return device.type != 'meta'
    if hasattr(torch.amp, 'is_autocast_available'):  # torch >= 2.4
        return torch.amp.is_autocast_available(device.type)
    return device.type in ('xpu', 'hpu', 'ipu', 'xla')


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for ``device``."""
    if not has_autocast(device):
        return False
    if hasattr(torch.amp, 'is_autocast_available'):  # torch >= 2.4 asks by device
        return torch.is_autocast_enabled(device.type)
    if device.type == 'cpu':
        return torch.is_autocast_cpu_enabled()
    return device.type == 'cuda' and torch.is_autocast_enabled()


def autocast_dtype(device: torch.device) -> torch.dtype:
    """The dtype that autocast has for ``device``."""
    if hasattr(torch, 'get_autocast_dtype'):  # torch >= 2.4
        return torch.get_autocast_dtype(device.type)
    return (
        torch.get_autocast_cpu_dtype() if device.type == 'cpu' else torch.get_autocast_gpu_dtype()
    )


@contextmanager
def full_fp32(device: torch.device) -> Iterator[None]:
    """A context in which products in fp32 on a GPU never use TF32.

    Its ten bits of mantissa are not enough for an inverse. The setting is that of the process.
    """
    if device.type != 'cuda':
        yield
        return
    settings = torch.backends.cuda.matmul
    # The first is there from torch 2.9 on, where the second raises after a use of the first.
    name, full = (
        ('fp32_precision', 'ieee')
        if hasattr(torch._C, '_set_fp32_precision_setter')
        else ('allow_tf32', False)
    )
    before = getattr(settings, name)
    setattr(settings, name, full)
    try:
        yield
    finally:
        setattr(settings, name, before)


def outside_autocast(function: Callable, change: Optional[Callable] = None) -> Callable:
    """The function with autocast off, on the device of the first tensor that it gets.

    Args:
        function: The function.
        change: Changes each argument where autocast is on. Default: None, no change.
    """

    @functools.wraps(function)
    def under_any_autocast(*args, **kwargs):
        given = (*args, *kwargs.values())
        device = next((value.device for value in given if isinstance(value, Tensor)), None)
        if device is None or not autocasting(device):
            return function(*args, **kwargs)
        with no_autocast(device):
            if change is not None:
                args = tuple(map(change, args))
                kwargs = {name: change(value) for name, value in kwargs.items()}
            return function(*args, **kwargs)

    return under_any_autocast


def fp32_under_autocast(function: Callable) -> Callable:
    """The autocast rule of the ops: under autocast, inputs of fp16 or bf16 become fp32.

    The result is then fp32 too. So tensors of mixed dtypes fit, as in torch's own products. Without
    autocast the result has the dtype of the input: the op accumulates in fp32 and rounds once.
    """
    return outside_autocast(function, widened)


def widened(value: Any) -> Any:
    """A tensor of fp16 or bf16 in fp32, and anything else as it is."""
    return upcast(value)[0] if isinstance(value, Tensor) else value
