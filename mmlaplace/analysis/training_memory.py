"""Memory that a training step keeps, counted on a CPU as a GPU would keep it."""

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch
import torch.nn as nn
from mmengine.config import Config
from mmengine.registry import MODELS
from torch.utils._python_dispatch import TorchDispatchMode

from ..models.layers.block import Block
from ..toolboxes import image_channels


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


def estimate_training(
    cfg: Config, batch: int, image_size: Optional[Tuple[int, int]] = None
) -> Dict[str, int]:
    """Estimate, without a GPU, the memory that training a backbone takes on one GPU in fp32.

    Activations are the tensors that autograd saves: their storages in forward passes of 2 and 3
    images on the CPU, extrapolated linearly to the batch. The estimate is for layers and compiled
    ops as a GPU has them. A CPU's own FFNs keep less. It leaves out neck and heads, temporaries,
    the buckets of DistributedDataParallel, the CUDA context, workspaces and fragmentation. No
    figure of it was measured on a GPU.

    Args:
        cfg: The config of the model.
        batch: Number of images on the GPU.
        image_size: Height and width of the images. Default: None, the ``img_size`` of the backbone.

    Returns:
        ``height`` and ``width``, and in bytes: ``states``, which are weights, gradients, AdamW's
        two moments and, if the config averages weights, the averages; ``activations``; and
        ``activations_with_cp``, with which blocks keep their inputs alone, and the largest block is
        computed again in the backward pass.
    """
    kept, channels = [], image_channels(cfg.model.backbone)
    for with_cp in (False, True):
        options = {**cfg.model.backbone, 'init_cfg': None, 'with_cp': with_cp}
        backbone = MODELS.build(options).train()
        height, width = image_size or backbone.img_size
        # A single image is no measure: some copies are spared where a dimension is 1.
        two, three = (
            kept_bytes(backbone, partial(backbone, torch.rand(count, channels, height, width)))
            for count in (2, 3)
        )
        kept.append([of_2 + (batch - 2) * (of_3 - of_2) for of_2, of_3 in zip(two, three)])
    (activations, largest_block), (inputs_of_blocks, _) = kept
    averaged = any(hook.type == 'EMAHook' for hook in cfg.get('custom_hooks', []))
    parameters = sum(parameter.numel() for parameter in backbone.parameters())
    return dict(
        height=height,
        width=width,
        states=(5 if averaged else 4) * 4 * parameters,
        activations=activations,
        activations_with_cp=inputs_of_blocks + largest_block,
    )
