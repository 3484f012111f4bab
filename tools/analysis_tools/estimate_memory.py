"""Estimate, without a GPU, the memory that training a backbone takes on one GPU in fp32.

  states       weights, gradients, AdamW's two moments and, if the config averages weights, the
               averages
  activations  the tensors that autograd saves for the backward pass: their storages in forward
               passes of 2 and 3 images on the CPU, extrapolated linearly to the batch
  with_cp      the same with model.backbone.with_cp=True: blocks keep their inputs alone, and the
               largest block is computed again in the backward pass

The estimate is for layers and compiled ops as a GPU has them. A CPU's own FFNs keep less. It leaves
out neck and heads, temporaries, DistributedDataParallel's buckets (gradients once more), the CUDA
context, workspaces and fragmentation. No figure of it was measured on a GPU.

Examples:
  python tools/analysis_tools/estimate_memory.py laplacianformer-tiny_8xb128_in1k 'softpp-*_in1k'
  python tools/analysis_tools/estimate_memory.py retinanet_softpp-tiny --batch 2 \\
      --image-size 800 1344
"""

from typing import Optional, Tuple

import torch
import torch.nn as nn
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

from mmlaplace import get_model
from mmlaplace.commands.command_line import ToolParser, positive, write_json
from mmlaplace.model_zoo import find_models, get_config
from mmlaplace.models.layers.block import Block
from mmlaplace.toolboxes import TOOLBOXES


class LayerByLayer(TorchDispatchMode):
    """A context in which FFNs and linears of a CPU run layer by layer, as on a GPU.

    They would compute in blocks and keep less, but not where a mode watches each op.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def kept_bytes(backbone: nn.Module, images: torch.Tensor) -> Tuple[int, int]:
    """Bytes that autograd keeps for the backward pass, of all and of the largest block."""
    weights = {
        tensor.untyped_storage().data_ptr()
        for tensor in (*backbone.parameters(), *backbone.buffers())
    }
    storages, before, blocks = {}, [], []

    def total() -> int:
        return sum(storage.nbytes() for storage in storages.values())

    def pack(tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage  # held, or its address might come again

    handles = []
    for module in backbone.modules():
        if isinstance(module, Block):
            handles += [
                module.register_forward_pre_hook(lambda *_: before.append(total())),
                module.register_forward_hook(lambda *_: blocks.append(total() - before.pop())),
            ]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda _: None), LayerByLayer():
        backbone(images)
    for handle in handles:
        handle.remove()
    return total(), max(blocks)


def estimate(name: str, batch: Optional[int], image_size: Optional[Tuple[int, int]]) -> dict:
    """A row of the table."""
    config = get_config(name)
    batch = batch or config.train_dataloader.batch_size
    kept = []
    for with_cp in (False, True):
        backbone = get_model(name, backbone_only=True, with_cp=with_cp).train()
        side = image_size or backbone.img_size
        # A single image is no measure: some copies are spared where a dimension is 1.
        two, three = (kept_bytes(backbone, torch.rand(count, 3, *side)) for count in (2, 3))
        kept.append([of_2 + (batch - 2) * (of_3 - of_2) for of_2, of_3 in zip(two, three)])
    (activations, largest_block), (inputs_of_blocks, _) = kept
    averaged = any(hook.type == 'EMAHook' for hook in config.get('custom_hooks', []))
    parameters = sum(parameter.numel() for parameter in backbone.parameters())
    return {
        'config': name,
        'image size': list(side),
        'batch': batch,
        'states': (5 if averaged else 4) * 4 * parameters,
        'activations': activations,
        'activations with_cp': inputs_of_blocks + largest_block,
    }


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('names', nargs='+', help='of configs, parts of them, or patterns with *')
    parser.add_argument('--batch', type=positive, help="images on a GPU; default: the config's")
    parser.add_argument(
        '--image-size', nargs=2, type=positive, metavar=('H', 'W'),
        help="default: the backbone's img_size, which a classifier's images have",
    )  # fmt: skip
    parser.add_output('--out', help='write the bytes into this .json')
    args = parser.parse_args()
    found = {
        pattern: [model.name for model in find_models(pattern) if model.task in TOOLBOXES]
        for pattern in args.names
    }
    for pattern in args.names:
        if not found[pattern]:
            parser.error(
                f'no model of the metafiles matches {pattern!r}; docs/model_zoo.md lists all'
            )
    names = list(dict.fromkeys(name for pattern in args.names for name in found[pattern]))

    torch.manual_seed(0)
    rows = [estimate(name, args.batch, args.image_size) for name in track(names, transient=True)]
    table = Table(title='estimated GiB in fp32, not measured on a GPU')
    for title in ('config', 'batch', 'states', 'activations', 'with_cp', 'in all', 'with_cp'):
        table.add_column(title, justify='left' if title == 'config' else 'right', no_wrap=True)
    for row in rows:
        states, plain, with_cp = (
            row[key] / 2**30 for key in ('states', 'activations', 'activations with_cp')
        )
        figures = (states, plain, with_cp, states + plain, states + with_cp)
        table.add_row(row['config'], str(row['batch']), *(f'{figure:.2f}' for figure in figures))
    Console(width=160).print(table)
    if args.out is not None:
        write_json(args.out, dict(unit='bytes', torch=torch.__version__, rows=rows))
        print('wrote', args.out)


if __name__ == '__main__':
    main()
