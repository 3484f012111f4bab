"""Print parameters and MACs of the classifiers next to the published figures.

MACs are multiply-accumulates of one image (half the FLOPs). 'MACs' counts convolutions and linears,
as published tables do; 'with kernels' adds the products of the attention: kernels, their products
with the values, and inverses. Of the parameters, 'in layers' leaves out bare tensors, such as
positions, which profilers that count by layers do not see.

Examples:
  python tools/analysis_tools/get_flops.py
  python tools/analysis_tools/get_flops.py laplacianformer-tiny softpp --image-size 800 1333
  python tools/analysis_tools/get_flops.py laplacianformer --attn-cfg num_landmarks=100
"""

from typing import Dict, Optional

import torch.nn as nn
from mmengine.config import DictAction
from rich.console import Console
from rich.progress import track
from rich.table import Table

from mmlaplace import get_model
from mmlaplace.analysis.complexity import count_complexity
from mmlaplace.commands.command_line import ToolParser
from mmlaplace.model_zoo import ModelInfo, read_models


class Classifier(nn.Module):
    """A backbone with its pooling and a head of 1000 classes, as papers count."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(backbone.embed_dims[-1], 1000)

    def forward(self, images):
        features = self.backbone(images)[-1]
        return self.head(features if features.dim() == 2 else features.mean((2, 3)))


def figures(model: ModelInfo, image_size: Optional[tuple], attn_cfg: Dict) -> tuple:
    """A row of the table."""
    options = dict(attn_cfg=attn_cfg) if attn_cfg else {}
    backbone = get_model(model.name, backbone_only=True, **options)
    classifier = Classifier(backbone).to('meta')  # shapes are enough to count
    side = backbone.img_size
    counted = count_complexity(classifier, (3, *(image_size or side)))
    in_layers = sum(
        parameter.numel()
        for name, parameter in classifier.named_parameters()
        if name.endswith(('.weight', '.bias'))
    )
    # What is published is for the size the config is for, and the attention it has.
    as_published = image_size in (None, side) and not attn_cfg
    published = model.metadata['Published'] if as_published else {}
    return (
        model.name,
        f'{counted.parameters / 1e6:.2f} M',
        f'{in_layers / 1e6:.2f} M',
        f'{published["Parameters"] / 1e6:.1f} M' if published else '-',
        f'{counted.weight_macs / 1e9:.2f} G',
        f'{published["MACs"] / 1e9:.2f} G' if published else '-',
        f'{counted.macs / 1e9:.2f} G',
        f'{2 * counted.macs / 1e9:.2f} G',
    )


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument(
        'names', nargs='*', default=[''], help='parts of names of classifiers; default: all'
    )
    parser.add_argument(
        '--image-size', nargs=2, type=int, metavar=('H', 'W'), help="default: the config's"
    )
    parser.add_argument(
        '--attn-cfg', nargs='+', action=DictAction, default={}, metavar='KEY=VALUE',
        help="change options of the family's attention",
    )  # fmt: skip
    args = parser.parse_args()
    chosen = [
        model
        for model in read_models()
        if model.task == 'classification' and any(name in model.name for name in args.names)
    ]
    if not chosen:
        parser.error(f'no classifier has one of {args.names} in its name')
    columns = ('model', 'params', 'in layers', 'published', 'MACs', 'published', 'with kernels')
    table = Table(title='of one image')
    for column in (*columns, 'FLOPs, all'):
        table.add_column(column, justify='left' if column == 'model' else 'right', no_wrap=True)
    image_size = tuple(args.image_size) if args.image_size else None
    for model in track(chosen, 'counting', transient=True):
        table.add_row(*figures(model, image_size, args.attn_cfg))
    Console(width=160).print(table)


if __name__ == '__main__':
    main()
