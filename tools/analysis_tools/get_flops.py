"""Print parameters and MACs of models, next to the published figures where there are any.

MACs are multiply-accumulates of one image (half the FLOPs). 'MACs' counts convolutions and linears,
as published tables do. 'with kernels' adds the products of the attention: kernels, their products
with the values, and inverses. The parameters 'in layers' leave out tensors outside of layers, such
as position embeddings, which profilers that count by layers do not see. Classifiers of this
project's configs have a head of 1000 classes, as papers count.

Examples:
  python tools/analysis_tools/get_flops.py CONFIG --image-size 224
  python tools/analysis_tools/get_flops.py laplacianformer-tiny_8xb128_in1k --image-size 800 1333
  python tools/analysis_tools/get_flops.py --match laplacianformer --attn-cfg num_landmarks=100
  python tools/analysis_tools/get_flops.py   # every classifier of this project
"""

from pathlib import Path
from typing import Optional, Tuple

import torch.nn as nn
from mmengine.config import Config, DictAction
from rich.progress import track

from mmlaplace import get_model
from mmlaplace.analysis.complexity import count_complexity
from mmlaplace.analysis.networks import Network, image_size, network_of
from mmlaplace.commands.command_line import ToolParser, read_config
from mmlaplace.commands.terminal import print_table
from mmlaplace.model_zoo import ModelInfo, get_config, read_models


class Classifier(nn.Module):
    """A backbone with mean pooling and a head of 1000 classes, which needs no toolbox."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.embed_dims[-1], 1000)

    def forward(self, images):
        features = self.backbone(images)[-1]
        return self.head(features if features.dim() == 2 else features.mean((2, 3)))


def change_attention(cfg: Config, options: dict) -> dict:
    """Change options of the attention in a config; the options of the backbone that changed.

    Raises:
        ValueError: If the config has an attention for each stage.
    """
    if not options:
        return {}
    if isinstance(cfg.model.get('backbone', {}).get('attn_cfg'), (list, tuple)):
        raise ValueError(
            'its attn_cfg is a list with one for each stage, and --attn-cfg changes one of all '
            'stages; write a config with another list'
        )
    cfg.merge_from_dict({f'model.backbone.attn_cfg.{key}': options[key] for key in options})
    return dict(attn_cfg=cfg.model.backbone.attn_cfg)


def figures(
    config: str, known: Optional[ModelInfo], shape: Optional[Tuple[int, int]], attn_cfg: dict
) -> tuple:
    """A row of the table; ``known`` is the entry of the model zoo, if the config has one."""
    cfg = read_config(config, 'model.backbone') if known is None else get_config(known.name)
    if known is not None and known.task == 'classification':
        options, neck = change_attention(cfg, attn_cfg), cfg.model.get('neck')
        if neck is None or neck.type == 'GlobalAveragePooling':
            backbone = get_model(known.name, backbone_only=True, **options)
            network = Classifier(backbone).to('meta')  # shapes are enough to count
        else:
            network = Network(get_model(known.name, **options)).eval()
            backbone = network.model.backbone
        side = backbone.img_size
    else:
        if cfg.model.backbone.get('type') == 'SequenceEncoder':
            raise ValueError(
                'a model of sequences; tools/analysis_tools/measure_model.py counts it'
            )
        change_attention(cfg, attn_cfg)
        network, side = network_of(cfg), image_size(cfg)
    counted = count_complexity(network, (3, *(shape or side)))
    in_layers = sum(
        parameter.numel()
        for parameter_name, parameter in network.named_parameters()
        if parameter_name.endswith(('.weight', '.bias'))
    )
    # What is published is for the size the config is for, and the attention it has.
    as_published = known is not None and shape in (None, side) and not attn_cfg
    published = known.metadata.get('Published', {}) if as_published else {}
    return (
        known.name if known else Path(config).stem,
        f'{counted.parameters / 1e6:.2f} M',
        f'{in_layers / 1e6:.2f} M',
        f'{published["Parameters"] / 1e6:.1f} M' if 'Parameters' in published else '-',
        f'{counted.weight_macs / 1e9:.2f} G',
        f'{published["MACs"] / 1e9:.2f} G' if 'MACs' in published else '-',
        f'{counted.macs / 1e9:.2f} G',
        f'{2 * counted.macs / 1e9:.2f} G',
    )


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument(
        'configs', nargs='*', metavar='CONFIG', help='a file, or a name of the model zoo'
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
        nargs='+',
        type=int,
        metavar='SIDE',
        help="height and width, or one side of a square; default: the config's",
    )
    parser.add_argument(
        '--attn-cfg',
        nargs='+',
        action=DictAction,
        default={},
        metavar='KEY=VALUE',
        help="change options of the config's attention",
    )
    args = parser.parse_args()
    sides = args.image_size
    if sides and (len(sides) > 2 or min(sides) < 1):
        given = ' '.join(map(str, sides))
        parser.error(f'--image-size must be one or two sides of at least 1, got {given}')
    shape = tuple(sides * 2)[:2] if sides else None
    zoo, models = {}, read_models()
    for model in models:
        zoo[model.name] = zoo[str(model.config.resolve())] = model
    chosen, rows = args.configs, []
    if args.match or not chosen:
        names = [model.name for model in models if model.task == 'classification']
        matched = [n for n in names if not args.match or any(part in n for part in args.match)]
        if not matched:
            parser.error(
                f'no classifier has one of {args.match} in its name; see docs/model_zoo.md'
            )
        chosen = chosen + matched
    for config in track(chosen, 'counting', transient=True):
        known = zoo.get(config) or zoo.get(str(Path(config).resolve()))
        # Of an option or a size that a model refuses.
        with parser.refusing(TypeError, ValueError, start=f'{config}: '):
            rows.append(figures(config, known, shape, args.attn_cfg))
    columns = ('model', 'params', 'in layers', 'published', 'MACs', 'published', 'with kernels')
    print_table((*columns, 'FLOPs, all'), rows, 'of one image')


if __name__ == '__main__':
    main()
