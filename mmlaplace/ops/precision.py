"""The precision rules of the ops: kernels, inverses and normalisers never run in half precision."""

from contextlib import contextmanager, nullcontext
from typing import ContextManager, Iterator, Tuple

import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def upcast(*tensors: Tensor) -> Tuple[Tensor, ...]:
    """The tensors in fp32 where they were fp16 or bf16; fp32 and fp64 stay as they are."""
    return tuple(tensor.float() if tensor.dtype in HALVES else tensor for tensor in tensors)


def no_autocast(device: torch.device) -> ContextManager:
    """A context in which autocast is off for ``device``."""
    if device.type == 'meta':  # meta tensors have no autocast to leave
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def autocasting(device: torch.device) -> bool:
    """Whether autocast is on for ``device``."""
    if device.type == 'meta':
        return False
    if hasattr(torch.amp, 'is_autocast_available'):  # torch >= 2.4 asks by device
        return torch.is_autocast_enabled(device.type)
    if device.type == 'cpu':
        return torch.is_autocast_cpu_enabled()
    return device.type == 'cuda' and torch.is_autocast_enabled()


@contextmanager
def autocast_to_fp32(*tensors: Tensor) -> Iterator[Tuple[Tensor, ...]]:
    """The autocast rule of our ops: under autocast, halves enter as fp32 and so come out as fp32.

    Without autocast a half stays a half: the op accumulates in fp32 and rounds its result once.
    """
    device = tensors[0].device
    if autocasting(device):
        tensors = upcast(*tensors)
    with no_autocast(device):
        yield tensors
