"""Forwards that activation checkpointing computes again: they are no second forwards."""

from contextlib import contextmanager
from typing import Iterator

import torch
import torch.nn as nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmlaplace.ops._checks import is_compiling


def is_recomputing() -> bool:
    """Whether a forward runs inside of a backward pass.

    There, torch's activation checkpointing computes what the first forward did not keep.

    Examples:
        >>> from mmlaplace.models.layers.recomputing import is_recomputing
        >>> is_recomputing()
        False
    """
    return not is_compiling() and torch._C._current_graph_task_id() != -1


@contextmanager
def statistics_kept(module: nn.Module) -> Iterator[None]:
    """A context in which BatchNorms do not update their running statistics again."""
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    tracked = [norm.num_batches_tracked for norm in norms]
    counts = [(count, count.clone()) for count in tracked if count is not None]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        for count, before in counts:
            count.copy_(before)
