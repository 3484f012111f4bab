"""Inference on a CPU, faster by packed weights."""

import copy
from types import MethodType
from typing import Any, Callable, Dict, Optional, Tuple

import torch
import torch.nn as nn
from mmengine.model import BaseDataPreprocessor
from torch import Tensor
from torch._C import _functorch
from torch.autograd import forward_ad

from .models.layers.block import FFN, TORCHS_FORWARDS, are_untouched, has_hooks
from .ops.backend import exporting
from .ops.gelu_ffn import PLAIN, block_rows, has_onednn, in_blocks, in_order, onednn_linear

DTYPES = (torch.float32, torch.bfloat16)
# oneDNN orders a weight for this many rows of tokens. The order is right for any number.
ROWS = 1024
# A weight of fewer channels stays as it is: oneDNN orders it quickly, and by the rows of each call.
CHANNELS = 64
FFN_FORWARD = FFN.forward


def optimize(
    model: nn.Module, dtype: Optional[torch.dtype] = None, inplace: bool = False
) -> nn.Module:
    """A model for inference on a CPU, whose linear layers have their weights in oneDNN's order.

    Each ``torch.nn.Linear`` becomes a :class:`PackedLinear`. Each :class:`FFN` of two linears and
    GELU computes in blocks that stay in the cache. Nothing else changes. The results differ by
    rounding.

    A layer stays as it is if a user has changed it: by a hook of any kind, another ``forward``, a
    subclass, a parametrization, a parameter of its own, or a weight of another class of tensors. So
    do the linears of ``torch.nn.TransformerEncoderLayer``, which computes with their weights and
    does not call them.

    The packed layers have no parameters: they cannot train, load weights, be saved, move to a GPU
    or be exported, and they have no derivatives. Graphs of torch.compile break at them. So load the
    weights first, and call this last.

    Args:
        model: A model on the CPU, such as a backbone, or a detector of mmdet. It is put into eval
            mode.
        dtype: Of the linear layers, ``torch.float32`` or ``torch.bfloat16``. For bf16, call the
            model under ``torch.autocast('cpu', torch.bfloat16)``, or give a model of bf16. Linears
            that an attention computes in fp32 under any autocast stay fp32. Default: None,
            torch.float32.
        inplace: Whether the model itself changes. Otherwise it is copied first. Default: False.

    Returns:
        The model with packed layers.

    Raises:
        ValueError: For another dtype, a weight that is not on the CPU, or neither fp32 nor bf16,
            and for a linear of bf16 that would become fp32. The model is then unchanged.
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
    packed: Dict[nn.Module, Packed] = {}
    pack_parts(model, dtype, packed)  # all of them before anything changes
    if model in packed:
        return packed[model].eval()
    if inplace:
        for part in [*model.modules()]:
            for name, child in part._modules.items():
                if child in packed:
                    part._modules[name] = packed[child]
    else:
        # Instead of a copy of a layer, the packed one.
        memo: Dict[int, Any] = {id(layer): new for layer, new in packed.items()}
        for part in model.modules():
            for value in vars(part).values():
                if isinstance(value, Tensor) and not value.is_leaf:
                    memo[id(value)] = value.detach().clone()  # which torch does not copy
        model = copy.deepcopy(model, memo)
    for part in model.modules():
        if not isinstance(part, Packed) and any(isinstance(p, Packed) for p in part.modules()):
            part.__dict__['_apply'] = MethodType(convert_all_or_none, part)
            part._register_load_state_dict_pre_hook(refuse_weights)
    return model.eval()


def pack_parts(
    module: nn.Module,
    dtype: Optional[torch.dtype],
    packed: Dict[nn.Module, 'Packed'],
    name: str = '',
) -> None:
    """Add to ``packed`` the new layer of each part of a module that can have one.

    Args:
        module: The module, which does not change.
        dtype: Of the new layers. None leaves each its own.
        packed: The new layers by the old ones.
        name: Of the module in the model. Default: ''.

    Raises:
        ValueError: For a linear of bf16 that would become fp32.
    """
    if module in packed:
        return
    if can_be_packed(module):
        for path, part in module.named_modules(prefix=name):
            if not isinstance(part, nn.Linear):
                continue
            dtype = dtype or part.weight.dtype
            if part.weight.dtype == torch.bfloat16 != dtype:
                raise ValueError(
                    f'optimize: the weight of {path or "the model"} is {part.weight.dtype}, and '
                    f'dtype is {dtype}; pass dtype={part.weight.dtype}, or call model.float() first'
                )
        kind: Any = PackedFFN if isinstance(module, FFN) else PackedLinear
        packed[module] = kind(module, dtype)
        return
    for child_name, child in module.named_children():
        # In eval mode, torch computes with the weights of these, and calls none of them.
        if isinstance(child, nn.Linear) and isinstance(module, nn.TransformerEncoderLayer):
            continue
        in_fp32 = child_name in getattr(module, 'parts_in_fp32', ())
        path = f'{name}.{child_name}'.lstrip('.')
        pack_parts(child, None if in_fp32 else dtype, packed, path)


def can_be_packed(module: nn.Module) -> bool:
    """Whether a module is a linear layer or an FFN that a packed layer can take the place of."""
    if not are_untouched([module]) or any(map(has_hooks, module.modules())):
        return False
    parts = {*module._parameters, *module._buffers, *module._modules}
    if type(module) is nn.Linear:
        own = parts <= {'weight', 'bias'} and nn.Linear.forward is TORCHS_FORWARDS[0]
        return own and has_plain_weights(module)
    if type(module) is not FFN or parts != {'layers'} or FFN.forward is not FFN_FORWARD:
        return False
    if not module.is_one_op(torch.empty(0), in_eval=True):
        return False
    first, _, _, second, _ = module.layers
    return (
        has_plain_weights(first)
        and has_plain_weights(second)
        and first.weight.shape[0] == second.weight.shape[1]
    )


def has_plain_weights(linear: Any) -> bool:
    """Whether a linear layer has tensors that oneDNN can take, which torch takes too.

    oneDNN reads as many values as it expects.
    """
    tensors = [linear.weight] if linear.bias is None else [linear.weight, linear.bias]
    for tensor in tensors:
        if (
            type(tensor) not in PLAIN
            or tensor.layout != torch.strided
            or tensor.device.type != 'cpu'
            or tensor.dtype not in DTYPES
            or tensor.dtype != linear.weight.dtype
        ):
            return False
    weight = linear.weight
    return (
        weight.dim() == 2
        and min(weight.shape) > 0
        and (linear.bias is None or linear.bias.shape == weight.shape[:1])
    )


def convert_all_or_none(self: nn.Module, fn: Callable, *args: Any, **kwargs: Any) -> nn.Module:
    """``_apply`` of a module with packed layers: if one of these refuses, nothing changes."""
    parts = [*self.modules()]
    try:
        for part in parts:
            if isinstance(part, Packed):
                part.check_conversion(fn)
    except RuntimeError:
        for part in parts:
            if isinstance(part, BaseDataPreprocessor):
                part.cpu()  # whose device mmengine's models have changed by now
        raise
    return type(self)._apply(self, fn, *args, **kwargs)


def refuse_weights(*_: Any) -> None:
    """A hook that keeps a module with packed layers from loading a part of its weights."""
    raise RuntimeError(
        f'a model with packed layers loads no weights: {PURPOSE}; load them before you call it'
    )


class Packed(nn.Module):
    """A layer for inference that has its weights in oneDNN's order, and no parameters.

    Args:
        linear: The layer that gets the tokens.
        dtype: In which it computes.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.dtype = linear.weight.shape[1], dtype
        # Weights in oneDNN's order cannot be in graphs of torch.compile, which break here.
        self.outside_of_graphs = torch.compiler.disable(self.compute)

    def compute(self, x: Tensor) -> Tensor:
        """The output ``(..., out)`` of tokens ``(..., C)``."""
        raise NotImplementedError

    def packed_weights(self) -> Tuple[Tensor, ...]:
        """The weights in oneDNN's order, which never change."""
        raise NotImplementedError

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
        if forward_ad._current_level >= 0 and has_tangent(x):
            raise RuntimeError(
                f'{type(self).__name__} has no forward-mode derivatives: {PURPOSE}; take those of '
                'the model from before'
            )
        return x.to(self.dtype)

    def check_conversion(self, fn: Callable) -> None:
        """Raise a RuntimeError if a function of tensors changes their dtype or device."""
        like = torch.empty(0, dtype=self.dtype)
        changed = fn(like)
        if changed.device != like.device or changed.dtype != like.dtype:
            raise RuntimeError(
                f'{type(self).__name__} stays {self.dtype} on the CPU, and it cannot become '
                f'{changed.dtype} on {changed.device}: {PURPOSE}; change the model from before'
            )

    def _apply(self, fn: Callable, recurse: bool = True) -> 'Packed':
        self.check_conversion(fn)
        return self

    def __deepcopy__(self, memo: dict) -> 'Packed':
        """A layer of its own, with hooks of its own, that shares the packed weights."""
        new = memo[id(self)] = type(self).__new__(type(self))
        memo.update({id(weight): weight for weight in self.packed_weights()})
        state = {**self.__dict__, 'outside_of_graphs': None}
        new.__dict__.update(copy.deepcopy(state, memo))
        new.outside_of_graphs = torch.compiler.disable(new.compute)
        return new

    def __getstate__(self) -> dict:  # of pickle
        return self._save_to_state_dict()

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            f'{type(self).__name__} has no weights to save: {PURPOSE}; save the model from before'
        )

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        refuse_weights()


def has_tangent(x: Tensor) -> bool:
    """Whether forward-mode derivatives pass through a tensor, in a level of these."""
    while _functorch.is_batchedtensor(x):  # of torch.vmap, which has no rule for the question
        x = _functorch.get_unwrapped(x)
    return forward_ad.unpack_dual(x).tangent is not None


PURPOSE = 'mmlaplace.cpu.optimize() packed its weights for inference'


class PackedLinear(Packed):
    """``torch.nn.Linear`` with a packed weight, for inference.

    Modules that compute with ``weight`` and ``bias`` instead of a call find them: ``weight`` is a
    new tensor each time, and cannot be changed in place.

    Args:
        linear: The layer that it replaces.
        dtype: In which it computes.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__(linear, dtype)
        self.out_features = linear.weight.shape[0]
        self.packed, self.bias = self.pack(linear)

    @property
    def weight(self) -> Tensor:
        """The weight ``(out, C)``."""
        with torch.inference_mode():  # whose tensors refuse changes that would be lost
            return self.packed.to_dense() if self.packed.is_mkldnn else self.packed.clone()

    def packed_weights(self) -> Tuple[Tensor, ...]:
        return (self.packed,)

    def forward(self, x: Tensor) -> Tensor:
        return self.outside_of_graphs(x)

    def compute(self, x: Tensor) -> Tensor:
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
        super().__init__(first, dtype)
        self.hidden, self.out_features = first.weight.shape[0], second.weight.shape[0]
        self.approximate = act.approximate
        self.first, self.first_bias = self.pack(first)
        self.second, self.second_bias = self.pack(second)

    def packed_weights(self) -> Tuple[Tensor, ...]:
        return self.first, self.second

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        return self.outside_of_graphs(x)

    def compute(self, x: Tensor) -> Tensor:
        rows = self.inputs(x).reshape(-1, self.in_features)
        if len(rows):
            step = block_rows(rows, self.hidden)
            rows = in_blocks(
                rows,
                step,
                self.first,
                self.first_bias,
                self.second,
                self.second_bias,
                self.approximate,
            )
        return rows.view(*x.shape[:-1], self.out_features)
