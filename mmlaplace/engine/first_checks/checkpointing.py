"""Whether parts of a model that recompute their activations get gradients."""

from typing import Any, Sequence, Union

import torch
import torch.nn as nn
from torch import Tensor
from torch.utils._pytree import tree_flatten

from .errors import FirstCheckError


def watch_checkpointing(model: nn.Module, names: Union[str, Sequence[str]]) -> None:
    """Have the first step refuse a part under activation checkpointing that gets no gradient.

    mmengine checkpoints reentrantly. Then the output of a part whose inputs need no gradient, such
    as images, needs none either, and no parameter of the part trains. torch warns of it, and trains
    on.

    Args:
        model: The model, whose parts are under activation checkpointing by now.
        names: Of these parts, as in ``activation_checkpointing`` of a config.
    """
    for name in [names] if isinstance(names, str) else names:
        _watch(model.get_submodule(name), name)


def _watch(part: nn.Module, name: str) -> None:
    def refuse_without_gradients(module: nn.Module, inputs: Any, out: Any) -> None:
        if not torch.is_grad_enabled():  # of a forward that trains nothing
            return
        handle.remove()
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return
        if any(isinstance(x, Tensor) and x.requires_grad for x in tree_flatten(out)[0]):
            return
        raise FirstCheckError(
            f'activation_checkpointing names {name!r}, and no parameter of it would get a gradient:'
            " its input needs none, and mmengine's checkpointing is reentrant; leave it out, and "
            'set model.backbone.with_cp=True, or name only parts after the first that trains, such '
            "as 'backbone.stages.1'"
        )

    handle = part.register_forward_hook(refuse_without_gradients)
