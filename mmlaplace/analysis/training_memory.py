"""Memory that a training step keeps, counted on a CPU as a GPU would keep it."""

from typing import Any, Callable, Dict, List, Tuple

import torch
import torch.nn as nn
from torch.utils._python_dispatch import TorchDispatchMode

from ..models.layers.block import Block


class LayerByLayer(TorchDispatchMode):
    """A context in which FFNs and linears of a CPU run layer by layer, as on a GPU.

    They would compute in blocks and keep less, but not where a mode watches each op.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def kept_bytes(model: nn.Module, forward: Callable[[], Any]) -> Tuple[int, int]:
    """Bytes that autograd keeps for the backward pass, of all and of the largest block.

    Args:
        model: The model, whose own tensors do not count.
        forward: Function that runs it, up to a loss or a map.
    """
    weights = {
        tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())
    }
    storages: Dict[int, torch.UntypedStorage] = {}
    before: List[int] = []
    blocks: List[int] = []

    def total() -> int:
        return sum(storage.nbytes() for storage in storages.values())

    def pack(tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage  # held, or its address might come again

    def no_backward(packed: None) -> torch.Tensor:
        raise RuntimeError('there is no backward pass, which would need what was not kept')

    handles = []
    for module in model.modules():
        if isinstance(module, Block):
            handles += [
                module.register_forward_pre_hook(lambda *_: before.append(total())),
                module.register_forward_hook(lambda *_: blocks.append(total() - before.pop())),
            ]
    with torch.autograd.graph.saved_tensors_hooks(pack, no_backward), LayerByLayer():
        forward()
    for handle in handles:
        handle.remove()
    return total(), max(blocks, default=0)
