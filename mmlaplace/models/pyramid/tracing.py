"""The steps that a symbolic trace of torch.fx records of a backbone."""

from functools import wraps
from typing import Any, Callable

import torch.nn as nn
from torch.fx import Proxy

from ..layers.block import Block, StageLayers


def record_layers(backbone: nn.Module, tracer: Any) -> None:
    """Have a tracer of torch.fx record each layer of a backbone as one step.

    A layer chooses its path by the shape and dtype of its input and by autocast. A symbolic trace
    has none of these. As a step the layer runs as it is, so the graph is correct for images of any
    size. Stages and blocks are traced through: norms, attention and FFN are steps. A block that
    recomputes its activations (``with_cp``) is one step.

    Only this tracer changes. Backbones call it, so ``torch.fx.symbolic_trace`` and torchvision's
    ``create_feature_extractor`` need no list of leaf modules.

    Args:
        backbone: The backbone that is traced.
        tracer: The ``torch.fx.Tracer``, or one of a subclass.

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LaplacianFormer
        >>> graph = torch.fx.symbolic_trace(LaplacianFormer('micro')).graph
        >>> [node.target for node in graph.nodes if node.op == 'call_module'][:3]
        ['stages.0.patch_embed', 'stages.0.blocks.0.norm1', 'stages.0.blocks.0.attn']
    """
    modules = list(backbone.modules())
    traced = {m for m in modules if isinstance(m, Block) and not m.with_cp}
    traced |= {m for m in modules if isinstance(m, StageLayers)}
    layers = set(modules) - traced - {backbone}
    is_leaf = tracer.is_leaf_module

    def is_layer_or_leaf(module: nn.Module, name: str) -> bool:
        return module in layers or is_leaf(module, name)

    tracer.is_leaf_module = is_layer_or_leaf


def one_step(forward: Callable) -> Callable:
    """A forward that a tracer of torch.fx records as one step, as those of torch's own modules."""

    @wraps(forward)
    def step(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for x in (*args, *kwargs.values()):
            if isinstance(x, Proxy):
                tracer: Any = x.tracer
                place = tracer.path_of_module(self)
                return tracer.create_proxy('call_module', place, args, kwargs)
        return forward(self, *args, **kwargs)

    return step
