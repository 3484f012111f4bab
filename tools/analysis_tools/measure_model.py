"""Measure parameters, MACs, speed and memory of any config of this project or of a toolbox.

Parameters and MACs (multiply-accumulates of one image) need no memory and no weights. 'weight_macs'
are those of convolutions and linears. 'macs' also have the products of the attention, with all
steps of a Newton iteration. Detectors and segmentors are counted up to the selection of boxes
(mmlaplace.analysis.networks). With --speed the model is timed: forward passes, and for training
forward and backward passes of the network, without losses, data and optimizer. Memory is the peak
that torch holds in such a pass. The result is one JSON object.

Configs of configs/lra are measured on sequences without padding, of the model's maximum length. A
sample of Retrieval is a pair of sequences.

--attention-term also reports the sizes of each attention's mixed values and of its convolution of
V: root mean squares, for photographs. Weights are random, unless --checkpoint gives some.

Examples:
  python tools/analysis_tools/measure_model.py CONFIG
  python tools/analysis_tools/measure_model.py CONFIG --image-size 800 1280 --out cost.json
  python tools/analysis_tools/measure_model.py CONFIG --speed --batch-size 8 --device cuda \\
      --cfg-options model.backbone.attn_cfg.num_landmarks=100
  python tools/analysis_tools/measure_model.py configs/lra/text/text_pola.py --speed --batch-size 4
  python tools/analysis_tools/measure_model.py CONFIG --attention-term --checkpoint CHECKPOINT
"""

import json
import statistics
import sys
from contextlib import redirect_stdout
from typing import Any, Dict, List, Tuple

import torch
import torch.nn as nn
from mmengine.config import Config, DictAction
from torch import Tensor

from mmlaplace.analysis.attention_statistics import term_sizes
from mmlaplace.analysis.complexity import count_complexity
from mmlaplace.analysis.measuring import (
    describe_machine,
    interleave,
    model_job,
    seconds_of,
    tensor_memory,
)
from mmlaplace.analysis.networks import Network, image_size, network_of
from mmlaplace.analysis.recording import photographs
from mmlaplace.commands.command_line import (
    ToolParser,
    load_or_exit,
    positive,
    read_config,
    write_json,
)
from mmlaplace.models import PyramidBackbone


def is_of_sequences(cfg: Config) -> bool:
    """Whether the model takes ids of tokens instead of pixels."""
    return cfg.model.backbone.type == 'SequenceEncoder'


def inputs_of(cfg: Config, size: Tuple[int, int], batch: int, device: torch.device) -> Tensor:
    """Random images ``(B, 3, H, W)``, or ids ``(B, rows, L)`` of sequences without padding."""
    if not is_of_sequences(cfg):
        return torch.randn(batch, 3, *size, device=device)
    # Id 0 is padding.
    return torch.randint(1, cfg.model.backbone.num_embeddings, (batch, *size), device=device)


def architecture(network: Network) -> Dict[str, List[int]]:
    """Widths, depths and heads of the stages, of a backbone of ours."""
    backbone = network.model.backbone
    if not isinstance(backbone, PyramidBackbone):
        return {}
    blocks = [stage['blocks'] for stage in backbone.stages]
    return dict(
        embed_dims=list(backbone.embed_dims),
        depths=[len(stage) for stage in blocks],
        num_heads=[getattr(stage[-1].attn, 'num_heads', 0) for stage in blocks],
    )


def counts(network: nn.Module, sample: Tensor) -> Dict[str, Any]:
    """Parameters and MACs of one sample."""
    if sample.is_floating_point():
        sample, network = sample.to('meta'), network.to('meta')  # shapes are enough to count
    counted = count_complexity(network, inputs=sample)
    return dict(parameters=counted.parameters, weight_macs=counted.weight_macs, macs=counted.macs)


def speed(network: nn.Module, inputs: Tensor, device: torch.device, rounds: int) -> Dict[str, Any]:
    """Samples a second, and bytes at the peak of a pass, without and with gradients."""
    network, found = network.to(device), {}
    for mode, train in (('test', False), ('training', True)):
        job = model_job(network.train(train), inputs, train)
        seconds = interleave({mode: job}, rounds, device)[mode]
        found[f'{mode}_samples_per_second'] = len(inputs) / statistics.median(seconds)
        seconds_of(job, device)
        found[f'{mode}_bytes'] = tensor_memory(job, device)
    return dict(found, batch_size=len(inputs))


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('config')
    parser.add_argument('--image-size', nargs=2, type=positive, metavar=('H', 'W'))
    parser.add_argument('--length', type=positive, help='of sequences; default: the longest')
    parser.add_argument('--speed', action='store_true', help='time it too, and tell memory')
    parser.add_argument('--batch-size', type=positive, help="default: the config's for training")
    parser.add_argument('--rounds', type=positive, default=5, help='default: %(default)s')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--attention-term', action='store_true', help='tell its size too')
    parser.add_argument('--checkpoint', help='weights, for --attention-term')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={})
    parser.add_output('--out', help='also write it here')
    args = parser.parse_args()
    cfg = read_config(args.config, 'model.backbone', options=args.cfg_options)
    if args.checkpoint and not args.attention_term:
        parser.error('--checkpoint is for --attention-term, as the other figures need no weights')
    if args.length is not None and not is_of_sequences(cfg):
        parser.error(f'--length {args.length} needs a model of sequences; take --image-size')
    if args.image_size is not None and is_of_sequences(cfg):
        parser.error(f'--image-size {args.image_size} needs a model of images; take --length')
    if args.attention_term and is_of_sequences(cfg):
        parser.error('--attention-term needs a model of images, and this config is of sequences')
    if is_of_sequences(cfg):
        encoder = cfg.model.backbone  # a sample has two sequences where the head takes them joined
        pairs = cfg.model.head.in_channels > encoder.get('embed_dims', 64)
        size = (2 if pairs else 1, args.length or encoder.max_length)
        shape = dict(zip(('sequences', 'length'), size))
    else:
        size = tuple(args.image_size) if args.image_size else image_size(cfg)
        shape = dict(image_size=list(size))
    device = torch.device(args.device)
    batch = args.batch_size or cfg.get('train_dataloader', {}).get('batch_size', 1)
    with redirect_stdout(sys.stderr):  # what toolboxes print is no JSON
        network = network_of(cfg)
    found = dict(config=args.config, **shape, **architecture(network))
    if args.attention_term:
        if args.checkpoint:
            load_or_exit(network.model, args.checkpoint)
        found['attention_terms'] = term_sizes(network.model.backbone, photographs(size))
    with parser.refusing(ValueError, start=f'{args.config}: '):  # of a size that it refuses
        if args.speed:
            found.update(speed(network, inputs_of(cfg, size, batch, device), device, args.rounds))
        sample = inputs_of(cfg, size, 1, next(network.parameters()).device)
        found.update(counts(network.eval(), sample), machine=describe_machine(device))
    print(json.dumps(found, indent=2))
    if args.out:
        write_json(args.out, found)


if __name__ == '__main__':
    main()
