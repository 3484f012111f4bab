"""Inference on a CPU, faster by packed weights."""

import copy
from typing import Any, Callable, Optional, Tuple

import torch
import torch.nn as nn
from torch import Tensor

from .models.layers.block import FFN, are_untouched
from .ops.backend import exporting
from .ops.gelu_ffn import block_rows, has_onednn, in_blocks, in_order, onednn_linear

DTYPES = (torch.float32, torch.bfloat16)
# oneDNN orders a weight for this many rows of tokens. The order is right for any number.
ROWS = 1024
# A weight of fewer channels stays as it is: oneDNN orders it quickly, and by the rows of each call.
CHANNELS = 64


def optimize(
    model: nn.Module, dtype: Optional[torch.dtype] = None, inplace: bool = False
) -> nn.Module:
    """A model for inference on a CPU, whose linear layers have their weights in oneDNN's order.

    Each ``torch.nn.Linear`` becomes a :class:`PackedLinear`. Each :class:`FFN` of two linears and
    GELU computes in blocks that stay in the cache. Nothing else changes. The results differ by
    rounding. The packed layers have no ``weight``: they cannot train, load weights, be saved, move
    to a GPU or be exported. Graphs of torch.compile break at them. So load the weights first, and
    call this last.

    Args:
        model: A model on the CPU, such as a backbone, or a detector of mmdet. It is put into eval
            mode.
        dtype: Of the linear layers, ``torch.float32`` or ``torch.bfloat16``. For bf16, call the
            model under ``torch.autocast('cpu', torch.bfloat16)``. Default: None, torch.float32.
        inplace: Whether the model itself changes. Otherwise it is copied first. Default: False.

    Returns:
        The model with packed layers.

    Raises:
        ValueError: For another dtype, or a weight that is not on the CPU, or neither fp32 nor bf16.
        RuntimeError: If this torch or CPU has no linears of oneDNN for the dtype.

    Examples:
        >>> import torch
        >>> import mmlaplace.cpu
        >>> from mmlaplace.models import LaplacianFormer
        >>> backbone = mmlaplace.cpu.optimize(LaplacianFormer(arch='micro'))
        >>> with torch.inference_mode():
        ...     maps = backbone(torch.randn(1, 3, 64, 64))
        >>> type(backbone.stages[0].blocks[0].attn.proj).__name__
        'PackedLinear'
    """
    dtype = dtype or torch.float32
    if dtype not in DTYPES:
        raise ValueError(f'optimize: dtype must be one of {DTYPES}, got {dtype}')
    for name, parameter in model.named_parameters():
        if parameter.device.type != 'cpu' or parameter.dtype not in DTYPES:
            raise ValueError(
                f'optimize: {name} is {parameter.dtype} on {parameter.device}, and it must be one '
                f"of {DTYPES} on the CPU; call model.float().to('cpu') first"
            )
    if not has_onednn(dtype):
        raise RuntimeError(f'optimize: torch {torch.__version__} has no oneDNN for {dtype} here')
    return _packed((model if inplace else copy.deepcopy(model)).eval(), dtype)


def _packed(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The module with packed layers, or the packed layer in its place."""
    if type(module) is FFN and module.dwconv is None and module.is_one_op(torch.empty(0)):
        return PackedFFN(module, dtype)
    if type(module) is nn.Linear and are_untouched([module]):
        return PackedLinear(module, dtype)
    for name, part in module.named_children():
        setattr(module, name, _packed(part, dtype))
    return module


class Packed(nn.Module):
    """A layer for inference that has its weights in oneDNN's order, and no parameters.

    Args:
        in_features: Channels of the tokens.
        dtype: In which it computes.
    """

    def __init__(self, in_features: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.dtype = in_features, dtype
        # Weights in oneDNN's order cannot be in graphs of torch.compile, which break here.
        self.forward = torch.compiler.disable(self.forward)

    def pack(self, linear: nn.Linear) -> Tuple[Tensor, Optional[Tensor]]:
        """The weight and the bias of a linear layer."""
        bias = None if linear.bias is None else linear.bias.detach().to(self.dtype, copy=True)
        weight = linear.weight.detach().to(self.dtype, copy=True)
        return weight if weight.shape[1] < CHANNELS else in_order(weight, ROWS), bias

    def inputs(self, x: Tensor) -> Tensor:
        """Tokens in the dtype of the weights."""
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(
                f'{type(self).__name__} takes tokens (..., {self.in_features}), got shape '
                f'{tuple(x.shape)}'
            )
        if exporting():
            raise RuntimeError(
                f'{type(self).__name__} cannot be exported: {PURPOSE}; export the model from before'
            )
        if torch.is_grad_enabled() and x.requires_grad:
            raise RuntimeError(
                f'{type(self).__name__} has no gradients: {PURPOSE}; call it in '
                'torch.inference_mode(), or train the model from before'
            )
        return x.to(self.dtype)

    def _apply(self, fn: Callable, recurse: bool = True) -> 'Packed':
        like = torch.empty(0, dtype=self.dtype)
        changed = fn(like)
        if changed.device != like.device or changed.dtype != like.dtype:
            raise RuntimeError(
                f'{type(self).__name__} stays {self.dtype} on the CPU, and it cannot become '
                f'{changed.dtype} on {changed.device}: {PURPOSE}; change the model from before'
            )
        return self

    def __deepcopy__(self, memo: dict) -> 'Packed':
        return self  # nothing of it ever changes

    def __getstate__(self) -> dict:  # of pickle
        return self._save_to_state_dict()

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f'{type(self).__name__} has no weights to save: {PURPOSE}; save the model from before'
        )

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        raise RuntimeError(
            f'{type(self).__name__} loads no weights: {PURPOSE}; load them before you call it'
        )


PURPOSE = 'mmlaplace.cpu.optimize() packed its weights for inference'


class PackedLinear(Packed):
    """``torch.nn.Linear`` with a packed weight, for inference.

    Args:
        linear: The layer that it replaces.
        dtype: In which it computes.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__(linear.in_features, dtype)
        self.out_features = linear.out_features
        self.packed, self.bias = self.pack(linear)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inputs(x)
        if x.numel() == 0:
            return x.new_empty(*x.shape[:-1], self.out_features)
        return onednn_linear(x, self.packed, self.bias)

    def extra_repr(self) -> str:
        return f'{self.in_features}, {self.out_features}, dtype={self.dtype}'


class PackedFFN(Packed):
    """:class:`FFN` of two linears and GELU with packed weights, for inference.

    Args:
        ffn: The layer that it replaces.
        dtype: In which it computes.
    """

    def __init__(self, ffn: FFN, dtype: torch.dtype) -> None:
        first, act, _, second, _ = ffn.layers
        super().__init__(first.in_features, dtype)
        self.hidden, self.out_features = first.out_features, second.out_features
        self.weights: Any = (*self.pack(first), *self.pack(second), act.approximate)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        rows = self.inputs(x).reshape(-1, self.in_features)
        if len(rows):
            step = block_rows(rows, self.hidden)
            rows = in_blocks(rows, step, *self.weights)
        return rows.view(*x.shape[:-1], self.out_features)
