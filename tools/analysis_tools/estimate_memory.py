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

from functools import partial
from typing import Optional, Tuple

import torch
from rich.progress import track

from mmlaplace import get_model
from mmlaplace.analysis.training_memory import kept_bytes
from mmlaplace.commands.command_line import ToolParser, positive, write_json
from mmlaplace.commands.terminal import print_table
from mmlaplace.model_zoo import find_models, get_config
from mmlaplace.toolboxes import TOOLBOXES


def estimate(name: str, batch: Optional[int], image_size: Optional[Tuple[int, int]]) -> dict:
    """A row of the table."""
    config = get_config(name)
    batch = batch or config.train_dataloader.batch_size
    kept = []
    for with_cp in (False, True):
        backbone = get_model(name, backbone_only=True, with_cp=with_cp).train()
        side = image_size or backbone.img_size
        # A single image is no measure: some copies are spared where a dimension is 1.
        two, three = (
            kept_bytes(backbone, partial(backbone, torch.rand(count, 3, *side))) for count in (2, 3)
        )
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
        '--image-size',
        nargs=2,
        type=positive,
        metavar=('H', 'W'),
        help="default: the backbone's img_size, which a classifier's images have",
    )
    parser.add_output('--out', help='write the bytes into this .json')
    args = parser.parse_args()
    names = {}
    for pattern in args.names:
        found = [model.name for model in find_models(pattern) if model.task in TOOLBOXES]
        if not found:
            parser.error(
                f'no model of the metafiles matches {pattern!r}; docs/model_zoo.md lists all'
            )
        names.update(dict.fromkeys(found))

    torch.manual_seed(0)
    rows = [estimate(name, args.batch, args.image_size) for name in track(names, transient=True)]
    columns = ('config', 'batch', 'states', 'activations', 'with_cp', 'in all', 'with_cp')
    cells = []
    for row in rows:
        states, plain, with_cp = (
            row[key] / 2**30 for key in ('states', 'activations', 'activations with_cp')
        )
        figures = (states, plain, with_cp, states + plain, states + with_cp)
        cells.append([row['config'], str(row['batch']), *(f'{figure:.2f}' for figure in figures)])
    print_table(columns, cells, 'estimated GiB in fp32, not measured on a GPU')
    if args.out is not None:
        write_json(args.out, dict(unit='bytes', torch=torch.__version__, rows=rows))
        print('wrote', args.out)


if __name__ == '__main__':
    main()
