"""Count parameters and MACs of models, and measure their time and memory.

MACs are multiply-accumulates of one image (half the FLOPs). 'MACs' counts convolutions and linears,
as published tables do. 'with kernels' adds the products of the attention: kernels, their products
with the values, and all steps of an inverse. The parameters 'in layers' leave out tensors outside
of layers, such as position embeddings, which profilers that count by layers do not see. Classifiers
of this project's configs have a head of 1000 classes, as papers count. Detectors and segmentors are
counted up to the selection of boxes (mmlaplace.analysis.networks). Models of sequences are counted
for one without padding, of their maximum length; a sample of Retrieval is a pair of sequences.

  --time            also time it: forward passes, and forward and backward passes of the network
                    without losses, data and optimizer; memory is the peak of torch in such a pass
  --attention-term  also the size of each attention's mixed values beside its convolution of V: root
                    mean squares for photographs, with random weights or those of --checkpoint
  --memory          estimate instead, without a GPU, the memory that training its backbone takes on
                    one GPU in fp32: states (weights, gradients, AdamW's moments, averaged weights),
                    and activations, without and with model.backbone.with_cp=True; neck and heads,
                    temporaries and buffers of the GPU come on top
  --attention       measure instead time and memory of a host with these attentions, batch 1

Examples:
  python tools/analysis_tools/get_flops.py CONFIG --image-size 224
  python tools/analysis_tools/get_flops.py laplacianformer-tiny_8xb128_in1k --image-size 800 1333
  python tools/analysis_tools/get_flops.py CONFIG --image-size 224 --image-size 448  # two rows
  python tools/analysis_tools/get_flops.py --match laplacianformer --attn-cfg num_landmarks=100
  python tools/analysis_tools/get_flops.py   # every classifier of this project
  python tools/analysis_tools/get_flops.py CONFIG --time --batch-size 8 --device cuda --out a.json
  python tools/analysis_tools/get_flops.py configs/lra/text.py --time --batch-size 4
  python tools/analysis_tools/get_flops.py CONFIG --attention-term --checkpoint CHECKPOINT
  python tools/analysis_tools/get_flops.py 'softpp-*_in1k' retinanet_softpp-tiny --memory
  python tools/analysis_tools/get_flops.py --attention LaplacianAttention --image-size 224
"""

import statistics
import sys
from argparse import Namespace
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch
import torch.nn as nn
from mmengine.config import Config, DictAction
from mmengine.registry import MODELS
from rich.progress import track
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
from mmlaplace.analysis.networks import image_size, network_of, sizes_of_images
from mmlaplace.analysis.recording import photographs, with_channels
from mmlaplace.analysis.training_memory import estimate_training
from mmlaplace.commands.command_line import (
    ToolParser,
    change_options,
    load_or_exit,
    positive,
    read_config,
    write_json,
)
from mmlaplace.commands.terminal import print_table
from mmlaplace.lab.side_by_side.attention_cost import cost_of
from mmlaplace.lab.side_by_side.attention_study import HOSTS, SIZES, config_of
from mmlaplace.model_zoo import ModelInfo, find_models, get_config, read_models
from mmlaplace.models import PyramidBackbone
from mmlaplace.toolboxes import TOOLBOXES, image_channels

# Arguments that are not for --attention.
OF_MODELS = ('configs', 'match', 'num_images', 'length', 'attn_cfg', 'cfg_options')
OF_MODELS += ('time', 'batch_size', 'attention_term', 'memory')
Shape = Tuple[int, int]  # height and width of images, or sequences of a sample and their length


class Model(NamedTuple):
    """A model to measure.

    Attributes:
        label: Its name in the model zoo, or the path of its config.
        cfg: Its config, with the options that the user changes.
        known: The entry of the model zoo, or None.
        changed: Whether the user changes options.
    """

    label: str
    cfg: Config
    known: Optional[ModelInfo]
    changed: bool

    @property
    def of_sequences(self) -> bool:
        """Whether the model takes ids of tokens instead of pixels."""
        return self.cfg.model.backbone.get('type') == 'SequenceEncoder'


class Classifier(nn.Module):
    """A backbone with mean pooling and a head of 1000 classes, which needs no toolbox.

    Args:
        backbone: The backbone.
        in_channels: Number of channels of the head.
    """

    def __init__(self, backbone: nn.Module, in_channels: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(in_channels, 1000)

    def forward(self, images):
        features = self.backbone(images)[-1]
        return self.head(features if features.dim() == 2 else features.mean((2, 3)))


# ---- which models


def chosen_models(parser: ToolParser, args: Namespace) -> Iterator[Model]:
    """The models of the arguments. Without any it is every classifier."""
    names = [model.name for model in read_models() if model.task == 'classification']
    matched = [name for name in names if any(part in name for part in args.match)]
    if args.match and not matched:
        parser.error(f'no classifier has one of {args.match} in its name; see docs/model_zoo.md')
    given = [name for pattern in args.configs for name in files_or_names(parser, pattern)]
    for name in track(dict.fromkeys([*given, *matched] or names), 'measuring', transient=True):
        yield model_of(parser, args, name)


def files_or_names(parser: ToolParser, given: str) -> List[str]:
    """A path as it is, or the names in the model zoo that a name, a part or a pattern means."""
    if given.endswith('.py') or Path(given).is_file():
        return [given]
    models = [model.name for model in find_models(given) if model.task in TOOLBOXES]
    if not models:
        parser.error(f'no model of the metafiles matches {given!r}; docs/model_zoo.md lists all')
    return [given] if given in models else models


def model_of(parser: ToolParser, args: Namespace, name: str) -> Model:
    """The model of a path or a name, with the options that the arguments change."""
    zoo = {}
    for entry in read_models():
        zoo[entry.name] = zoo[str(entry.config.resolve())] = entry
    known = zoo.get(name) or zoo.get(str(Path(name).resolve()))
    cfg = get_config(known.name) if known else read_config(name, 'model.backbone')
    change_options(cfg, args.cfg_options)
    if args.attn_cfg:
        if isinstance(cfg.model.backbone.get('attn_cfg'), (list, tuple)):
            parser.error(
                f'{name}: its attn_cfg is a list with one for each stage, and --attn-cfg changes '
                'one of all stages; write a config with another list'
            )
        changed = {f'model.backbone.attn_cfg.{key}': v for key, v in args.attn_cfg.items()}
        cfg.merge_from_dict(changed)
    label = known.name if known else name
    return Model(label, cfg, known, changed=bool(args.cfg_options or args.attn_cfg))


def build(model: Model, by_toolbox: bool) -> nn.Module:
    """The network of a model. A classifier of ours is built by its toolbox only where it must."""
    neck = model.cfg.model.get('neck')
    pooled = neck is None or neck.type == 'GlobalAveragePooling'
    if model.known and model.known.task == 'classification' and pooled and not by_toolbox:
        backbone = MODELS.build({**model.cfg.model.backbone, 'init_cfg': None})
        return Classifier(backbone, model.cfg.model.head.in_channels).eval()
    with redirect_stdout(sys.stderr):  # what toolboxes print is no table
        return network_of(model.cfg)


# ---- of which inputs


def shapes_of(model: Model, args: Namespace) -> List[Shape]:
    """The shapes of the inputs to measure: those of the arguments, or that of the config."""
    if model.of_sequences:
        encoder = model.cfg.model.backbone
        # A sample has two sequences where the head takes them joined.
        pairs = model.cfg.model.head.in_channels > encoder.get('embed_dims', 64)
        return [(2 if pairs else 1, args.length or encoder.max_length)]
    return args.image_size or [image_size(model.cfg)]


def inputs_of(model: Model, shape: Shape, batch: int, device: torch.device) -> Tensor:
    """Random images ``(B, C, H, W)``, or ids ``(B, rows, L)`` of sequences without padding."""
    if not model.of_sequences:
        channels = image_channels(model.cfg.model.backbone)
        return torch.randn(batch, channels, *shape, device=device)
    # Id 0 is padding.
    return torch.randint(1, model.cfg.model.backbone.num_embeddings, (batch, *shape), device=device)


# ---- what is measured


def architecture(network: nn.Module) -> Dict[str, List[int]]:
    """Widths, depths and heads of the stages, of a backbone of ours."""
    backbone = network.backbone if isinstance(network, Classifier) else network.model.backbone
    if not isinstance(backbone, PyramidBackbone):
        return {}
    blocks = [stage['blocks'] for stage in backbone.stages]
    return dict(
        embed_dims=list(backbone.embed_dims),
        depths=[len(stage) for stage in blocks],
        num_heads=[getattr(stage[-1].attn, 'num_heads', 0) for stage in blocks],
    )


def counts(network: nn.Module, model: Model, shape: Shape) -> Dict[str, int]:
    """Parameters and MACs of one sample."""
    device = torch.device('cpu' if model.of_sequences else 'meta')  # shapes are enough to count
    sample = inputs_of(model, shape, 1, device)
    counted = count_complexity(network.to(device).eval(), inputs=sample)
    in_layers = sum(
        parameter.numel()
        for name, parameter in network.named_parameters()
        if name.endswith(('.weight', '.bias'))
    )
    return dict(
        parameters=counted.parameters,
        parameters_in_layers=in_layers,
        weight_macs=counted.weight_macs,
        macs=counted.macs,
    )


def mean_counts(network: nn.Module, model: Model, num_images: int) -> Dict[str, Any]:
    """Parameters, and the mean MACs of the first validation images, each in its own size."""
    sizes = Counter(sizes_of_images(model.cfg, num_images))
    by_size = {size: counts(network, model, size) for size in sizes}
    total = sum(sizes.values())
    mean = dict(next(iter(by_size.values())))
    for name in ('weight_macs', 'macs'):
        mean[name] = round(sum(by_size[size][name] * n for size, n in sizes.items()) / total)
    return dict(mean, images=total)


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


def measured(model: Model, args: Namespace) -> Iterator[Dict[str, Any]]:
    """What is counted and measured of a model, for each shape of its inputs."""
    device = torch.device(args.device)
    batch = args.batch_size or model.cfg.get('train_dataloader', {}).get('batch_size', 1)
    if args.num_images:
        network = build(model, by_toolbox=False)
        yield dict(config=model.label, **mean_counts(network, model, args.num_images))
        return
    for shape in shapes_of(model, args):
        names = ('sequences', 'length') if model.of_sequences else ('height', 'width')
        network = build(model, by_toolbox=args.time or args.attention_term)
        found = dict(config=model.label, **dict(zip(names, shape)), **architecture(network))
        if args.attention_term:
            if args.checkpoint:
                load_or_exit(network.model, args.checkpoint)
            channels = image_channels(model.cfg.model.backbone)
            images = [with_channels(photo, channels) for photo in photographs(shape)]
            found['attention_terms'] = term_sizes(network.model.backbone, images)
        if args.time:
            inputs = inputs_of(model, shape, batch, device)
            found.update(speed(network, inputs, device, args.rounds))
        found.update(counts(network, model, shape))
        # What is published is for the size the config is for, and the options it has.
        if model.known and not model.changed and shape == image_size(model.cfg):
            found['published'] = dict(model.known.metadata.get('Published') or {})
        yield found


def estimated(model: Model, args: Namespace) -> Iterator[Dict[str, Any]]:
    """The estimated memory of training the backbone of a model, for each size of its images."""
    batch = args.batch_size or model.cfg.train_dataloader.batch_size
    for size in args.image_size or [None]:
        estimate = estimate_training(model.cfg, batch, size)
        yield dict(config=model.label, batch_size=batch, **estimate)


# ---- what is shown

UNITS = {'M': 1e6, 'G': 1e9}


def show_counts(rows: List[dict]) -> None:
    """Print parameters and MACs, next to the published figures where there are any."""

    def of(row: dict, key: str, unit: str, digits: int) -> str:
        value = row.get(key)
        return '-' if value is None else f'{value / UNITS[unit]:.{digits}f} {unit}'

    columns = ('model', 'input', 'params', 'in layers', 'published')
    columns += ('MACs', 'published', 'with kernels', 'FLOPs, all')
    cells = []
    for row in rows:
        published = row.get('published', {})
        cells.append(
            (
                name_of(row),
                input_of(row),
                of(row, 'parameters', 'M', 2),
                of(row, 'parameters_in_layers', 'M', 2),
                of(published, 'Parameters', 'M', 1),
                of(row, 'weight_macs', 'G', 2),
                of(published, 'MACs', 'G', 2),
                of(row, 'macs', 'G', 2),
                of(dict(flops=2 * row['macs']), 'flops', 'G', 2),
            )
        )
    print_table(columns, cells, 'of one sample')


def show_speed(rows: List[dict], device: str) -> None:
    """Print samples a second and memory."""
    columns = ('model', 'input', 'batch', 'forward', 'GiB', '+ backward', 'GiB')
    cells = []
    for row in rows:
        passes = []
        for mode in ('test', 'training'):
            peak = row[f'{mode}_bytes']
            passes.append(f'{row[f"{mode}_samples_per_second"]:.1f}/s')
            passes.append('-' if peak is None else f'{peak / 2**30:.2f}')
        cells.append((name_of(row), input_of(row), str(row['batch_size']), *passes))
    print_table(columns, cells, f'samples a second and peak memory, {device}')


def show_terms(rows: List[dict]) -> None:
    """Print root mean squares of the parts of each attention."""
    columns = ('model', 'attention', 'V', 'mixed values', 'convolution of V')
    cells = [
        (
            name_of(row),
            term['attention'],
            *(f'{term[key]:.2e}' if key in term else '-' for key in ('values', 'mixed', 'local')),
        )
        for row in rows
        for term in row['attention_terms']
    ]
    print_table(columns, cells, 'root mean squares, for photographs')


def show_memory(rows: List[dict]) -> None:
    """Print estimates of the memory of training."""
    columns = ('model', 'input', 'batch', 'states', 'activations', 'with_cp', 'in all', 'with_cp')
    cells = []
    for row in rows:
        states, plain, with_cp = (
            row[key] / 2**30 for key in ('states', 'activations', 'activations_with_cp')
        )
        figures = (states, plain, with_cp, states + plain, states + with_cp)
        about = (name_of(row), input_of(row), str(row['batch_size']))
        cells.append((*about, *(f'{figure:.2f}' for figure in figures)))
    print_table(columns, cells, 'estimated GiB in fp32, not measured on a GPU')


def show_costs(rows: List[dict]) -> None:
    """Print time and memory of attentions over the size of the image."""
    columns = ('attention', 'host', 'pass', 'image', 'ms', 'MB')
    cells, notes = [], []
    for row in rows:
        for name, found in row['cost'].items():
            about = (row['attention'], row['host'], name)
            for one in found['rows']:
                figures = (f'{1e3 * one["seconds"]:.1f}', f'{one["MB"]:.1f}')
                cells.append((*about, f'{one["side"]} x {one["side"]}', *figures))
            start = f'{row["attention"]}, {name}'
            notes += [f'{start}, {side}: {why}' for side, why in found['left_out'].items()]
            if len(found['rows']) > 1:
                notes.append(f'{start}: time grows with pixels ** {found["exponent"]:.2f}')
    print_table(columns, cells, 'of one image')
    print(*notes, sep='\n')


def name_of(row: dict) -> str:
    """The name of a model in a table."""
    return row['config'].removesuffix('.py').rpartition('/')[2]


def input_of(row: dict) -> str:
    """The shape of an input in a table."""
    if 'images' in row:
        return f'mean of {row["images"]}'
    if 'length' in row:
        return f'{row["sequences"]} x {row["length"]} tokens'
    return f'{row["height"]} x {row["width"]}'


# ---- the command


def parser_of_tool() -> ToolParser:
    parser = ToolParser(__doc__)
    parser.add_argument(
        'configs',
        nargs='*',
        metavar='CONFIG',
        help='a file, or a name of the model zoo, a part of some, or a pattern with *',
    )
    parser.add_argument(
        '--match',
        nargs='+',
        default=[],
        metavar='PART',
        help="classifiers of the model zoo with this in their name; without CONFIG's, all",
    )
    parser.add_argument(
        '--image-size',
        '--shape',
        dest='image_size',
        nargs='+',
        type=positive,
        action='append',
        metavar='SIDE',
        help='height and width, or one side of a square; give it again for another row; default: '
        "the config's; --shape is mmpretrain's name of it",
    )
    parser.add_argument(
        '--num-images',
        type=positive,
        metavar='N',
        help="as in mmdet's tool: the mean of the first N validation images, each in its size",
    )
    parser.add_argument('--length', type=positive, help='of sequences; default: the longest')
    parser.add_argument(
        '--attn-cfg',
        nargs='+',
        action=DictAction,
        default={},
        metavar='KEY=VALUE',
        help="change options of the config's attention",
    )
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        default={},
        metavar='KEY=VALUE',
        help='change options of the config',
    )
    parser.add_argument('--time', action='store_true', help='time it too, and tell its memory')
    parser.add_argument(
        '--batch-size', type=positive, help="for --time and --memory; default: the config's"
    )
    parser.add_argument('--rounds', type=positive, default=5, help='for --time; %(default)s')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--attention-term', action='store_true', help='tell its size too')
    parser.add_argument('--checkpoint', help='weights, for --attention-term')
    parser.add_argument('--memory', action='store_true', help='estimate the memory of training')
    parser.add_argument(
        '--attention',
        nargs='+',
        default=[],
        metavar='NAME',
        help='measure a host with it instead, and its options: "PolaAttention, power=3"',
    )
    parser.add_argument(
        '--host',
        choices=list(HOSTS),
        default='laplacianformer',
        help='for --attention; %(default)s',
    )
    parser.add_output('--out', help='also write the rows into this .json, with memory in bytes')
    return parser


def check_args(parser: ToolParser, args: Namespace) -> None:
    """Refuse arguments that do not fit together."""
    for sides in args.image_size or ():
        if len(sides) > 2:
            given = ' '.join(map(str, sides))
            parser.error(f'--image-size must be one or two sides, got {given}')
    if args.image_size:
        args.image_size = [(sides[0], sides[-1]) for sides in args.image_size]
    if args.checkpoint and not args.attention_term:
        parser.error('--checkpoint is for --attention-term, as the other figures need no weights')
    if args.num_images and (args.image_size or args.time or args.attention_term or args.memory):
        parser.error('--num-images counts images in their own sizes; give it alone')
    if args.memory and (args.time or args.attention_term):
        parser.error('--memory estimates instead of measuring; give --time and others without it')
    for option in OF_MODELS if args.attention else ():
        if getattr(args, option):
            name = 'CONFIG' if option == 'configs' else f'--{option.replace("_", "-")}'
            parser.error(f'--attention measures attentions, and no model; leave {name} out')
    if args.attention and any(height != width for height, width in args.image_size or ()):
        parser.error('--attention measures square images; give one side to each --image-size')


def check_model(parser: ToolParser, args: Namespace, model: Model) -> None:
    """Refuse arguments that do not fit to a model."""
    if args.length is not None and not model.of_sequences:
        parser.error(f'--length {args.length} needs a model of sequences; take --image-size')
    for option in ('image_size', 'num_images', 'attention_term', 'memory'):
        if getattr(args, option) and model.of_sequences:
            parser.error(
                f'--{option.replace("_", "-")} needs a model of images, and {model.label} is of '
                'sequences, which have a --length'
            )


def main() -> None:
    parser = parser_of_tool()
    args = parser.parse_args()
    check_args(parser, args)
    torch.manual_seed(0)
    rows: List[Dict[str, Any]] = []
    if args.attention:
        sides = [height for height, _ in args.image_size or ()] or list(SIZES)
        with parser.refusing(ValueError):
            names = {name: config_of(name, landmarks=None)['type'] for name in args.attention}
        for name in track(names, 'measuring', transient=True):
            rows.append(dict(attention=name, host=args.host, cost=cost_of(name, args.host, sides)))
    for model in [] if args.attention else chosen_models(parser, args):
        check_model(parser, args, model)
        # Of an option or a size that a model refuses.
        with parser.refusing(TypeError, ValueError, start=f'{model.label}: '):
            rows.extend(estimated(model, args) if args.memory else measured(model, args))
    show(rows, args)
    if args.out:
        machine = describe_machine(torch.device('cpu' if args.attention else args.device))
        write_json(args.out, dict(machine=machine, rows=rows))
        print('wrote', args.out)


def show(rows: List[dict], args: Namespace) -> None:
    """Print the tables that the arguments ask for."""
    if args.attention:
        return show_costs(rows)
    if args.memory:
        return show_memory(rows)
    show_counts(rows)
    if args.time:
        show_speed(rows, args.device)
    if args.attention_term:
        show_terms(rows)


if __name__ == '__main__':
    main()
