"""Linear layers by the faster library of a CPU, and functions of tokens in blocks that stay in its
cache."""

import functools
import os
import platform
from pathlib import Path
from typing import Any, Callable, List, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.modules import module as every_module

from mmlaplace.ops._checks import constant_in_graphs, has_values, is_compiling
from mmlaplace.ops._native import graph_gradients
from mmlaplace.ops.backend import in_cpu_graph
from mmlaplace.ops.onednn_linear import has_onednn_linear, onednn_linear
from mmlaplace.ops.precision import autocast_dtype, autocasting, outside_autocast

LIBRARIES = ('blas', 'onednn')
# Bytes of a block of rows, for each thread. A block fits into the second-level cache of a core.
BLOCK_BYTES = 1 << 20
# Kinds of hooks that a single module, or all modules together, may have.
HOOKS = ('_forward_hooks', '_forward_pre_hooks', '_backward_hooks', '_backward_pre_hooks')
# Other classes of tensors may support few functions.
PLAIN_TYPES = (Tensor, nn.Parameter)
# Above this size, allocators request new memory from the system, and its first access is slow.
LARGE_BYTES = 16 << 20


@constant_in_graphs  # a graph is made for one library
def linear_library() -> str:
    """Which library computes fp32 linears on this CPU, ``'blas'`` or ``'onednn'``.

    The BLAS of torch's x86 builds is MKL. On an AMD it runs at half its speed: 75 to 95 GFLOP/s on
    a core of an EPYC (Zen 5), where oneDNN has 150 to 215. On an Intel Xeon the two are equal. So
    the library is ``'onednn'`` on an AMD if torch has MKL and oneDNN, and otherwise ``'blas'``. The
    environment variable ``MMLAPLACE_LINEAR`` overrides this.

    Raises:
        ValueError: If the variable is neither ``'blas'`` nor ``'onednn'``.
    """
    return _library(os.environ.get('MMLAPLACE_LINEAR'))


@functools.cache
def _library(chosen: Optional[str]) -> str:
    """The library of a value of the variable, which is None where it is not set."""
    if chosen is not None:
        if chosen not in LIBRARIES:
            raise ValueError(f'MMLAPLACE_LINEAR must be one of {LIBRARIES}, got {chosen!r}')
        return chosen
    have_both = torch.backends.mkl.is_available() and has_onednn_linear(torch.float32)
    return 'onednn' if have_both and _vendor() == 'AuthenticAMD' else 'blas'


def _vendor() -> str:
    """The vendor that the CPU reports; empty if it is unknown."""
    info = Path('/proc/cpuinfo')
    text = info.read_text(encoding='utf-8') if info.exists() else platform.processor()
    return 'AuthenticAMD' if 'AuthenticAMD' in text else ''


def is_watched() -> bool:
    """Whether a mode of torch sees all operations, such as a counter of FLOPs.

    Such a mode knows torch's linears, and not oneDNN's.
    """
    return torch._C._len_torch_dispatch_stack() > 0


def in_blocks(x: Tensor) -> bool:
    """Whether blocks of rows of a plain tensor may be computed separately.

    This needs an fp32 tensor with values, without autocast or forward-mode derivatives, which
    nobody watches.
    """
    return (
        x.dtype == torch.float32
        and has_values(x)
        and not is_watched()
        and not autocasting(x.device)
        and forward_ad._current_level < 0
    )


def in_graph(x: Tensor) -> bool:
    """Whether a graph of torch.compile is to hold oneDNN's linears of ``x`` as nodes.

    Inductor would call BLAS. Exported graphs have torch's own linears, as they leave this machine.
    """
    return in_cpu_graph(x) and not autocasting(x.device) and linear_library() == 'onednn'


def bf16_inference(x: Tensor, *weights: Tensor) -> bool:
    """Whether a CPU computes on plain tensors in bf16, without gradients.

    It does so where autocast casts them all to bf16, or all are bf16. In other cases of mixed
    dtypes, torch's linear raises an error.
    """
    if torch.is_grad_enabled() or forward_ad._current_level >= 0:
        return False
    casts = autocasting(x.device)
    if casts and autocast_dtype(x.device) != torch.bfloat16:
        return False
    # Autocast leaves other dtypes alone.
    dtypes = (torch.bfloat16, torch.float32, torch.float16) if casts else (torch.bfloat16,)
    return (
        all(tensor.dtype in dtypes for tensor in (x, *weights))
        and has_values(x)
        and not is_watched()
        and has_onednn_linear(torch.bfloat16)
    )


def block_rows(channels: int) -> int:
    """Rows of fp32 ``channels`` in a block."""
    return max(BLOCK_BYTES // (4 * channels), 64) * torch.get_num_threads()


def are_plain(x: Tensor, *weights: Any) -> bool:
    """Whether tokens and weights are plain tensors on a CPU, for linears one after the other.

    Quantised weights and those of sharded models are of other classes. A weight may be a tensor
    that is no parameter, such as a part of a flattened one. Sparse and nested tensors are not
    plain. Shapes must fit without broadcasting, as oneDNN reads as many values as it expects.

    Args:
        x: Tokens ``(..., C)``, of which there is at least one.
        *weights: Weight ``(out, in)`` and bias ``(out,)`` of each linear. A None is not plain.
    """
    compiling = is_compiling()
    for tensor in (x, *weights):
        if type(tensor) not in PLAIN_TYPES or tensor.device.type != 'cpu':
            return False
        # torch.compile of torch < 2.3 cannot ask for these.
        if not compiling and (tensor.layout != torch.strided or tensor.is_nested):
            return False
    if x.dim() == 0 or x.numel() == 0:
        return False
    channels = x.shape[-1:]
    for index, weight in enumerate(weights):
        if index % 2 == 0:
            if weight.shape[1:] != channels or weight.numel() == 0:
                return False
            channels = weight.shape[:1]
        elif weight.shape != channels:
            return False
    return True


def are_fp32(*weights: Tensor) -> bool:
    """Whether all weights are fp32."""
    return all(weight.dtype == torch.float32 for weight in weights)


def records(*tensors: Optional[Tensor]) -> bool:
    """Whether autograd records a function of these tensors."""
    return torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in tensors
    )


def does_more(module: nn.Module) -> bool:
    """Whether a module or a part of it has a hook, or another forward than its class."""
    return any(getattr(every_module, f'_global{hooks}') for hooks in HOOKS) or any(
        'forward' in vars(part) or any(getattr(part, hooks) for hooks in HOOKS)
        for part in module.modules()
    )


class Linear(nn.Linear):
    """``torch.nn.Linear``, which on a CPU takes the faster library and writes its result once.

    With oneDNN, autograd records a 1 x 1 convolution of tokens in channels-last order. With BLAS,
    torch first fills the result with the bias. Without gradients, large results are computed in
    blocks, so that this fill stays in the cache. Graphs of torch.compile hold oneDNN's linear as
    one node. Inference in bf16 takes oneDNN's too. It calls torch's linear on other devices, for
    other dtypes and for weights of another tensor class.

    Some tools look for layers whose type is exactly ``torch.nn.Linear``, such as
    ``torch.ao.quantization.quantize_dynamic``. They find these layers after
    :func:`as_torch_linears`.

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
        weights = (self.weight,) if self.bias is None else (self.weight, self.bias)
        if are_plain(x, *weights):
            if are_fp32(*weights):
                if in_graph(x):
                    return torch.ops.mmlaplace._onednn_linear(x, *weights)
                if in_blocks(x):
                    return linear(x, self.weight, self.bias)
            if bf16_inference(x, *weights):
                return onednn_linear(*(tensor.bfloat16() for tensor in (x, *weights)))
        return super().forward(x)  # its errors name the shapes and dtypes


def linear(x: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
    """:class:`Linear` of tokens that are :func:`in_blocks`, by weights that :func:`are_plain`."""
    if linear_library() == 'onednn':
        if not records(x, weight, bias):
            return onednn_linear(x, weight, bias)
        maps = x.reshape(1, -1, 1, x.shape[-1]).permute(0, 3, 1, 2)  # (1, C, rows, 1)
        out = F.conv2d(maps, weight[:, :, None, None], bias)
        return out.permute(0, 2, 3, 1).reshape(*x.shape[:-1], -1)
    rows = x.numel() // x.shape[-1]
    size = block_rows(len(weight))
    if torch.is_grad_enabled() or bias is None or rows <= size:
        return F.linear(x, weight, bias)
    out = x.new_empty(rows, len(weight))
    for part, to in zip(x.reshape(rows, -1).split(size), out.split(size)):
        torch.addmm(bias, part, weight.t(), out=to)
    return out.view(*x.shape[:-1], -1)


def as_torch_linears(model: nn.Module) -> nn.Module:
    """Make every :class:`Linear` of a model a ``torch.nn.Linear``, in place, and return the model.

    Weights, hooks and results stay the same.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LaplacianFormer
        >>> from mmlaplace.models.layers import as_torch_linears
        >>> model = as_torch_linears(LaplacianFormer(arch='tiny'))
        >>> type(model.stages[0].blocks[0].attn.proj) is torch.nn.Linear
        True
    """
    for part in model.modules():
        if type(part) is Linear:
            part.__class__ = nn.Linear  # type: ignore[assignment]  # the base of its class
    return model


class _InBlocks(torch.autograd.Function):
    """A function of rows and weights, computed again in the backward, block by block."""

    @staticmethod
    def forward(ctx: Any, function: Callable, size: int, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.function, ctx.size = function, size
        ctx.save_for_backward(x, *weights)
        return _rows_in_blocks(function, size, x, *weights)

    @staticmethod
    @outside_autocast  # as the forward was
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        x, *weights = ctx.saved_tensors
        of_x, *of_weights = needed = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():  # second derivatives need a graph
            return None, None, *graph_gradients(ctx.function, needed, grad, x, *weights)
        weights = [w.detach().requires_grad_(need) for w, need in zip(weights, of_weights)]
        grads_of_x: List[Tensor] = []
        sums: Optional[List[Tensor]] = None
        size = 4 * ctx.size  # fewer calls of autograd
        for part, part_grad in zip(x.split(size), grad.split(size)):
            part = part.detach().requires_grad_(of_x)
            wanted = [tensor for tensor in (part, *weights) if tensor.requires_grad]
            with torch.enable_grad():
                out = ctx.function(part, *weights)
            grads = list(torch.autograd.grad(out, wanted, part_grad))
            if of_x:
                grads_of_x.append(grads.pop(0))
            sums = grads if sums is None else [old.add_(new) for old, new in zip(sums, grads)]
        of_all = iter(sums or ())
        return (
            None, None, torch.cat(grads_of_x) if of_x else None,
            *(next(of_all) if need else None for need in of_weights),
        )  # fmt: skip


def _rows_in_blocks(function: Callable, size: int, x: Tensor, *weights: Tensor) -> Tensor:
    """``function`` of rows ``(rows, C)``, for ``size`` rows at a time."""
    out: Any = None
    for i, part in enumerate(x.split(size)):
        result = function(part, *weights)
        if out is None:
            out = result.new_empty(len(x), *result.shape[1:])
        out[i * size : i * size + len(part)] = result
    return out


def by_rows(function: Callable, channels: int, x: Tensor, *weights: Tensor) -> Tensor:
    """``function(x, *weights)`` of tokens ``(..., C)``. The function treats each token alone.

    Large results are computed in blocks of rows, so that intermediate values stay in the cache. If
    these would take much memory, training computes them again in the backward pass.

    Args:
        function: A function of linears and elementwise functions. It draws no random numbers, so it
            gives the same at each call. Every tensor that needs a gradient is one of its arguments.
        channels: The largest number of channels between input and output.
        x: Tokens for which :func:`in_blocks`.
        *weights: Weights of the function: the present tensors of the layers.
    """
    rows, size = x.numel() // x.shape[-1], block_rows(channels)
    if rows <= size:
        return function(x, *weights)
    flat = x.reshape(rows, -1)
    if not records(x, *weights):
        out = _rows_in_blocks(function, size, flat, *weights)
    elif 4 * rows * channels < LARGE_BYTES:
        return function(x, *weights)
    else:
        out = _InBlocks.apply(function, size, flat, *weights)
    return out.view(*x.shape[:-1], -1)
