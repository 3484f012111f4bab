"""Parameters, MACs, images a second and memory of any config, of this project or of a toolbox.

Parameters and MACs (multiply-accumulates of one image) need no memory and no weights. 'weight_macs'
are those of convolutions and linears, 'macs' have the products of the attention too, with all steps
of a Newton iteration. Detectors and segmentors count up to where boxes are picked, see
mmlaplace.utils.networks. With --speed the model is timed: forward passes, and for training forward
and backward passes of the network, without losses, data and optimizer. Memory is what torch holds
at the peak of such a pass. The result is one JSON object.

Examples:
  python tools/analysis_tools/measure_model.py CONFIG
  python tools/analysis_tools/measure_model.py CONFIG --image-size 800 1280 --out cost.json
  python tools/analysis_tools/measure_model.py CONFIG --speed --batch-size 8 --device cuda \\
      --cfg-options model.backbone.attn_cfg.num_landmarks=100
"""

import json
import statistics
from typing import Any, Dict, List, Tuple

import torch
import torch.nn as nn
from mmengine.config import Config, DictAction

from mmlaplace.model_zoo import build_model
from mmlaplace.models import PyramidBackbone
from mmlaplace.utils.command_line import ToolParser, write_json
from mmlaplace.utils.complexity import count_complexity
from mmlaplace.utils.measuring import (
    describe_machine,
    interleave,
    model_job,
    seconds_of,
    tensor_memory,
)
from mmlaplace.utils.networks import Network, image_size


def network_of(cfg: Config) -> Network:
    """The model of a config with random weights."""
    cfg.model.backbone.pop('init_cfg', None)
    cfg.model.pop('pretrained', None)
    return Network(build_model(cfg)).eval()


def architecture(network: Network) -> Dict[str, List[int]]:
    """Widths, depths and heads of the stages, of a backbone of ours."""
    backbone = network.model.backbone
    if not isinstance(backbone, PyramidBackbone):
        return {}
    blocks = [stage['blocks'] for stage in backbone.stages]
    return dict(
        embed_dims=list(backbone.embed_dims),
        depths=[len(stage) for stage in blocks],
        num_heads=[stage[0].attn.num_heads for stage in blocks],
    )


def counts(network: nn.Module, size: Tuple[int, int]) -> Dict[str, Any]:
    """Parameters and MACs of one image."""
    counted = count_complexity(network.to('meta'), (3, *size))  # shapes are enough to count
    return dict(parameters=counted.parameters, weight_macs=counted.weight_macs, macs=counted.macs)


def speed(
    network: nn.Module, size: Tuple[int, int], batch: int, device: torch.device, rounds: int
) -> Dict[str, Any]:
    """Images a second, and bytes at the peak of a pass, without and with gradients."""
    images = torch.randn(batch, 3, *size, device=device)
    network, found = network.to(device), {}
    jobs = {}
    for mode, train in (('test', False), ('training', True)):
        network.train(train)
        jobs[mode] = model_job(network, images, train)
        seconds = interleave({mode: jobs[mode]}, rounds, device)[mode]
        found[f'{mode}_images_per_second'] = batch / statistics.median(seconds)
        seconds_of(jobs[mode], device)
        found[f'{mode}_bytes'] = tensor_memory(jobs[mode], device)
    return dict(found, batch_size=batch)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('config')
    parser.add_argument('--image-size', nargs=2, type=int, metavar=('H', 'W'), help='to count at')
    parser.add_argument('--speed', action='store_true', help='time it too, and tell memory')
    parser.add_argument('--batch-size', type=int, help="default: the config's for training")
    parser.add_argument('--rounds', type=int, default=5, help='default: %(default)s')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={})
    parser.add_output('--out', help='also write it here')
    args = parser.parse_args()
    cfg = Config.fromfile(args.config)
    cfg.merge_from_dict(args.cfg_options)
    size = tuple(args.image_size) if args.image_size else image_size(cfg)
    device = torch.device(args.device)
    batch = args.batch_size or cfg.train_dataloader.batch_size
    network = network_of(cfg)
    found = dict(config=args.config, image_size=list(size), **architecture(network))
    if args.speed:
        found.update(speed(network, size, batch, device, args.rounds))
    found.update(counts(network, size), machine=describe_machine(device))
    print(json.dumps(found, indent=2))
    if args.out:
        write_json(args.out, found)


if __name__ == '__main__':
    main()
