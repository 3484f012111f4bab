"""Whether users changed a layer: if not, a faster way may compute with its weights."""

from typing import Iterable, Optional

import torch.nn as nn
from torch import Tensor
from torch.nn.modules import module as every_module


def are_untouched(layers: Iterable[nn.Module]) -> bool:
    """Whether no layer has a hook, or another forward than its class."""
    if every_module._has_any_global_hook():
        return False
    for layer in layers:
        hooked = layer._forward_hooks or layer._forward_pre_hooks
        if hooked or layer._backward_hooks or layer._backward_pre_hooks:
            return False
        if 'forward' in layer.__dict__:
            return False
    return True


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has a hook of any kind, of which torch has a dict each."""
    return any(value for name, value in module.__dict__.items() if name.endswith('_hooks'))


def own_bias(linear: nn.Module) -> Optional[Tensor]:
    """The bias that a linear layer adds, or None where only a call of the layer can tell.

    Tools that prune, quantise, shard or wrap a layer change what its call computes, and often its
    attribute ``bias`` too.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.untouched import own_bias
        >>> linear = torch.nn.Linear(4, 4)
        >>> own_bias(linear) is linear.bias
        True
        >>> hook = linear.register_forward_hook(lambda module, inputs, out: 2 * out)
        >>> own_bias(linear) is None
        True
    """
    bias = linear._parameters.get('bias', linear.__dict__.get('bias'))
    return bias if isinstance(bias, Tensor) and are_untouched([linear]) else None
