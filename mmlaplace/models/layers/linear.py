"""Linear layers by the faster library of a CPU, and functions of tokens in blocks that stay in its
cache."""

import functools
import os
import platform
from pathlib import Path
from typing import Callable, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from mmlaplace.ops._checks import has_values
from mmlaplace.ops._native import graph_gradients
from mmlaplace.ops.precision import autocasting

LIBRARIES = ('blas', 'onednn')
# Of a block of rows, for each thread. It fits into the second cache of a core.
BLOCK_BYTES = 1 << 20
# Allocators take tensors beyond this from the system anew, whose first touch is slow.
LARGE_BYTES = 16 << 20


@functools.cache
def linear_library() -> str:
    """Which library computes fp32 linears on this CPU, ``'blas'`` or ``'onednn'``.

    The BLAS of torch's x86 builds is MKL, which runs at half its speed on an AMD: 75 to 95 GFLOP/s
    on a core of an EPYC (Zen 5), where oneDNN has 150 to 215. On an Intel Xeon they are equal. So
    it is ``'onednn'`` on an AMD where torch has MKL and oneDNN, and otherwise ``'blas'``. The
    environment variable ``MMLAPLACE_LINEAR`` chooses otherwise.

    Raises:
        ValueError: If that variable is neither.
    """
    chosen = os.environ.get('MMLAPLACE_LINEAR')
    if chosen is not None:
        if chosen not in LIBRARIES:
            raise ValueError(f'MMLAPLACE_LINEAR must be one of {LIBRARIES}, got {chosen!r}')
        return chosen
    have_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return 'onednn' if have_both and _vendor() == 'AuthenticAMD' else 'blas'


def _vendor() -> str:
    """The vendor of the CPU as it names itself; empty where nothing tells."""
    info = Path('/proc/cpuinfo')
    text = info.read_text() if info.exists() else platform.processor()
    return 'AuthenticAMD' if 'AuthenticAMD' in text else ''


def in_blocks(x: Tensor) -> bool:
    """Whether blocks of rows may be computed apart: fp32 on a CPU, with values, no autocast."""
    return (
        x.device.type == 'cpu'
        and x.dtype == torch.float32
        and has_values(x)
        and not autocasting(x.device)
    )


def block_rows(channels: int) -> int:
    """Rows of fp32 ``channels`` in a block."""
    return max(BLOCK_BYTES // (4 * channels), 64) * torch.get_num_threads()


class Linear(nn.Linear):
    """``torch.nn.Linear``, which on a CPU takes the faster library and writes its result once.

    With oneDNN it is a convolution of 1 x 1, of tokens in channels-last order. With BLAS, torch
    first fills the result with the bias. Without gradients, large results are computed in blocks,
    so that this stays in the cache. In graphs of torch.compile, under autocast, on other devices
    and for other dtypes it is torch's linear.

    Args:
        in_features, out_features, bias, device, dtype: As in ``torch.nn.Linear``.

    Source: the same weights, gradients and names as ``torch.nn.Linear``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import Linear
        >>> Linear(64, 192)(torch.randn(8, 100, 64)).shape  # (B, N, C) -> (B, N, 3 C)
        torch.Size([8, 100, 192])
    """

    def forward(self, x: Tensor) -> Tensor:
        if not in_blocks(x) or self.weight.dtype != x.dtype or x.numel() == 0:
            return super().forward(x)
        if linear_library() == 'onednn':
            maps = x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)  # (1, C, rows, 1)
            out = F.conv2d(maps, self.weight[:, :, None, None], self.bias)
            return out.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)
        rows = x.numel() // x.shape[-1]
        size = block_rows(self.out_features)
        if torch.is_grad_enabled() or self.bias is None or rows <= size:
            return super().forward(x)
        out = x.new_empty(rows, self.out_features)
        for part, to in zip(x.reshape(rows, -1).split(size), out.split(size)):
            torch.addmm(self.bias, part, self.weight.t(), out=to)
        return out.view(*x.shape[:-1], -1)


class _InBlocks(torch.autograd.Function):
    """A module of rows, computed again in the backward, block by block."""

    @staticmethod
    def forward(
        ctx, module: nn.Module, size: int, names: Tuple[str, ...], x: Tensor, *weights: Tensor
    ) -> Tensor:
        ctx.module, ctx.size, ctx.names = module, size, names
        ctx.save_for_backward(x, *weights)
        return rows_in_blocks(module, size, x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        x, *weights = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives need a graph

            def formula(x, *weights):
                return functional_call(ctx.module, dict(zip(ctx.names, weights)), (x,))

            needed = ctx.needs_input_grad[3:]
            return None, None, None, *graph_gradients(formula, needed, grad, x, *weights)
        of_x, of_weights = [], [None] * len(weights)
        size = 4 * ctx.size  # fewer calls of autograd
        for part, part_grad in zip(x.split(size), grad.split(size)):
            part = part.detach().requires_grad_(ctx.needs_input_grad[3])
            with torch.enable_grad():
                out = ctx.module(part)
            wanted = [part, *weights] if ctx.needs_input_grad[3] else weights
            grads = list(torch.autograd.grad(out, wanted, part_grad))
            if ctx.needs_input_grad[3]:
                of_x.append(grads.pop(0))
            of_weights = [
                new if old is None else old.add_(new) for old, new in zip(of_weights, grads)
            ]
        return None, None, None, torch.cat(of_x) if of_x else None, *of_weights


def rows_in_blocks(function: Callable[[Tensor], Tensor], size: int, x: Tensor) -> Tensor:
    """``function`` of rows ``(rows, C)``, for ``size`` rows at a time."""
    out = None
    for i, part in enumerate(x.split(size)):
        result = function(part)
        if out is None:
            out = result.new_empty(len(x), *result.shape[1:])
        out[i * size : i * size + len(part)] = result
    return out


def is_hooked(module: nn.Module) -> bool:
    """Whether it or a part of it has hooks, which expect to see all tokens."""
    return any(
        part._forward_hooks
        or part._forward_pre_hooks
        or part._backward_hooks
        or part._backward_pre_hooks
        for part in module.modules()
    )


def by_rows(module: nn.Module, channels: int, x: Tensor) -> Tensor:
    """``module`` of tokens ``(..., C)``, which treats each token alone.

    On a CPU, large results are computed in blocks of rows, so that what lies between input and
    output stays in the cache. Where that would take much memory, training computes it again in the
    backward instead of keeping it.

    Args:
        module: Linears and elementwise layers, without dropout that is active.
        channels: The largest number of channels between input and output.
        x: Tokens.
    """
    if not in_blocks(x):
        return module(x)
    rows, size = x.numel() // x.shape[-1], block_rows(channels)
    if rows <= size or is_hooked(module):
        return module(x)
    flat = x.reshape(rows, -1)
    weights = {name: w for name, w in module.named_parameters() if w.requires_grad}
    if not torch.is_grad_enabled() or not (weights or x.requires_grad):
        return rows_in_blocks(module, size, flat).view(*x.shape[:-1], -1)
    if 4 * rows * channels < LARGE_BYTES:
        return module(x)
    out = _InBlocks.apply(module, size, tuple(weights), flat, *weights.values())
    return out.view(*x.shape[:-1], -1)
