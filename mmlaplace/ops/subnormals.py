"""Zeros in place of numbers whose products are slow on a CPU."""

from typing import Any, Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from . import _native
from ._checks import has_values
from .backend import exporting_to_onnx


def without_tiny_of(mat: Tensor) -> Callable[[Tensor], Tensor]:
    """A function for the steps of an iteration on matrices, which keeps them free of tiny numbers.

    Tiny is what is below the root of the smallest normal number, 1.1e-19 in fp32. A product of two
    such numbers is subnormal, and with those a matrix product takes a CPU up to 60 times as long.
    The function puts zeros in their place, also in gradients. It changes nothing if ``mat`` has
    none, on other devices, in graphs that are recorded or exported, and in torch.func.

    Args:
        mat: The matrices, which are not negative.
    """
    if mat.device.type != 'cpu' or exporting_to_onnx() or not has_values(mat) or mat.numel() == 0:
        return _same
    return WithoutTiny.apply if mat.detach().amin().item() < limit(mat) else _same


def limit(x: Tensor) -> float:
    """The root of the smallest normal number of a dtype."""
    return torch.finfo(x.dtype).tiny ** 0.5


def _same(x: Tensor) -> Tensor:
    return x


class WithoutTiny(_native.Function):
    """Zeros in place of what is tiny, in values and in gradients of any order."""

    generate_vmap_rule = True  # of gradients in a batch

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return F.hardshrink(x, limit(x))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return WithoutTiny.apply(grad)
