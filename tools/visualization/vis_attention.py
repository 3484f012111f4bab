"""Draw rows of attention matrices over an image: the weights of a query, marked by a cross.

Attentions mix values linearly, out = A v, though most never hold the N x N matrix A. A row of it is
the gradient of one mixed value with respect to the values, which is exact, and linear in N too.
Attentions that mix channels, or have no queries and keys, have no such matrix. Of others:

  LaplacianAttention  the whitened matrix Z, or with --matrix nystrom the kernel matrix G^ below it
  SOFTAttention       C W^+ C^T
  SoftmaxAttention    the softmax
  PolaAttention       one matrix for the pairs of the same signs, one for those of opposite signs
  WindowAttention     that of the attention inside, drawn on the window of the query

Models stand side by side, with a row of panels for each query. Weights are scaled to 0 to 1 in each
panel, and their range is below it. A key of a reduced map (sr_ratio) covers the tokens that it
stands for.

Examples:
  python tools/visualization/vis_attention.py IMG CONFIG CHECKPOINT --stage 2 --points 0.3 0.6
  python tools/visualization/vis_attention.py IMG CONFIG1 CHECKPOINT1 --image-size 224 224 \\
      --points 0.3 0.6 --points 0.5 0.5 --model CONFIG2 CHECKPOINT2 softmax --model CONFIG3
"""

import argparse
import math
from itertools import accumulate
from operator import mul
from pathlib import Path
from textwrap import fill
from typing import List, NamedTuple

import numpy as np
import torch
from matplotlib import patheffects
from PIL import Image
from rich.progress import track
from torch import Tensor

from mmlaplace.analysis.attention_rows import attention_map, check_rows, matrices_of
from mmlaplace.analysis.recording import Mixed, mixed_by, normalized, rgb
from mmlaplace.commands.command_line import (
    PICTURES,
    ToolParser,
    build_backbone,
    positive,
    preprocessor_of,
)
from mmlaplace.lab.figures import new_figure, save
from mmlaplace.models import BaseAttention

PLACES = 8  # that the side of a map has at least, where no other is asked for: fewer show blocks


class Column(NamedTuple):
    """What is drawn of one matrix: a title, a map for each query, and the pixels of its tokens."""

    title: str
    maps: List[Tensor]
    stride: int


def find(parser: ToolParser, args, config: str, backbone, image: Tensor) -> Mixed:
    """What the attention chosen mixed of an image; an error if there is none."""
    if not 0 <= args.stage < len(backbone.stages):
        parser.error(f'--stage {args.stage}: {config} has stages 0 to {len(backbone.stages) - 1}')
    depth = len(backbone.stages[args.stage]['blocks'])
    if not -depth <= args.block < depth:
        parser.error(f'--block {args.block}: that stage of {config} has blocks 0 to {depth - 1}')
    chosen = (args.stage, args.block % depth)
    of_block = [
        mixed
        for mixed in mixed_by(backbone, BaseAttention, image)
        if (mixed.stage, mixed.block) == chosen
    ]
    if not of_block:
        parser.error(
            f'--stage {args.stage}: that block of {config} has no attention with queries, keys and '
            'values, so there is no map of weights to draw; choose another stage or model'
        )
    mixed = of_block[0]
    with parser.refusing(ValueError, start=f'--stage {args.stage}: '):
        check_rows(mixed.attention)
    heads = mixed.attention.num_heads
    if not 0 <= args.head < heads:
        parser.error(f'--head {args.head}: that stage of {config} has heads 0 to {heads - 1}')
    return mixed


def default_stage(backbone, height: int, width: int) -> int:
    """The last of the first three stages whose map of an image is no mosaic of a few blocks."""
    strides = accumulate(backbone.stage_strides[:3], mul)
    sides = [math.ceil(min(height, width) / stride) for stride in strides]
    return max((stage for stage, side in enumerate(sides) if side >= PLACES), default=0)


def draw(
    image: Image.Image, points: List[tuple], columns: List[Column], title: str, path: Path
) -> None:
    """Image and weights, a row for each point (x, y)."""
    width, height = image.size
    lines = 1 + max(column.title.count('\n') for column in columns)
    rows_height = (2.3 * height / width + 0.35) * len(points)
    size = 2.4 * len(columns) + 3.2, rows_height + 0.5 + 0.2 * lines
    figure, axes = new_figure(len(points), 1 + len(columns), size, squeeze=False)
    pale = 0.4 + 0.6 * np.asarray(image.convert('L')) / 255
    for i, (x, y) in enumerate(points):
        axes[i, 0].imshow(image)
        for axis, column in zip(axes[i, 1:], columns):
            weights = column.maps[i].numpy()
            low, high = np.nanmin(weights), np.nanmax(weights)
            down, across = (column.stride * side for side in weights.shape)
            axis.imshow(pale, cmap='gray', vmin=0, vmax=1)
            heat = axis.imshow(
                (weights - low) / max(high - low, np.finfo(weights.dtype).tiny),
                cmap='inferno',
                alpha=0.75,
                vmin=0,
                vmax=1,
                extent=(0, across, down, 0),
            )
            axis.set_xlabel(f'{low:.2g} to {high:.2g}', fontsize=11)
        for axis in axes[i]:
            axis.set(xlim=(0, width), ylim=(height, 0), xticks=[], yticks=[])
            axis.plot(
                x,
                y,
                '+',
                color='white',
                markersize=11,
                markeredgewidth=2,
                path_effects=[patheffects.withStroke(linewidth=4, foreground='black')],
            )
    for axis, text in zip(axes[0], ['queries', *(column.title for column in columns)]):
        axis.set_title(text, fontsize=11, parse_math=False)  # a file's name may have dollars
    figure.colorbar(heat, ax=axes, label='weight, scaled in each panel', pad=0.01, aspect=30)
    figure.suptitle(fill(title, 16 * (1 + len(columns))), fontsize=12)
    save(figure, path, dpi=100)


def parse_args(parser: ToolParser) -> argparse.Namespace:
    """The arguments; ``models`` has a config, a checkpoint and a name, or fewer, of each model."""
    parser.add_argument('image', type=Path, metavar='IMG')
    parser.add_argument('config', nargs='?', metavar='CONFIG')
    parser.add_argument('checkpoint', nargs='?', metavar='CHECKPOINT', help='default: random')
    parser.add_argument(
        '--model',
        nargs='+',
        action='append',
        default=[],
        metavar=('CONFIG', 'CHECKPOINT'),
        help='config, checkpoint and name of a further model, again for each; weights are random '
        'without a checkpoint',
    )
    parser.add_argument(
        '--points',
        nargs=2,
        type=float,
        action='append',
        metavar=('X', 'Y'),
        help='a query, again for each: shares of width and height, or pixels where above 1; '
        'default: the middle',
    )
    parser.add_argument(
        '--stage',
        type=int,
        help=f'from 0; default: the last of the first three whose map has {PLACES} x {PLACES} '
        'places, else 0',
    )
    parser.add_argument('--block', type=int, default=-1, help='of the stage; default: the last')
    parser.add_argument('--head', type=int, default=0, help='from 0; default: %(default)s')
    parser.add_argument(
        '--matrix',
        choices=('whitened', 'nystrom'),
        default='whitened',
        help='of LaplacianAttention; default: %(default)s',
    )
    parser.add_argument(
        '--image-size',
        nargs=2,
        type=positive,
        metavar=('H', 'W'),
        help="to resize the image to; default: the image's own",
    )
    parser.add_output('--out', suffixes=PICTURES, default=Path('work_dirs/attention.png'))
    args = parser.parse_args()
    first = [path for path in (args.config, args.checkpoint) if path]
    args.models = [first, *args.model] if first else args.model
    if not args.models:
        parser.error('there is no model; give IMG CONFIG [CHECKPOINT], or --model')
    for config, *rest in args.models:
        if len(rest) > 2:
            parser.error(
                f'--model {config} {" ".join(rest)}: give a config, a checkpoint and a name'
            )
    return args


def read_points(
    parser: ToolParser, given: List[tuple], image: Image.Image, width: int, height: int
) -> List[tuple]:
    """The queries, in pixels of an image that will be resized."""
    points = []
    for point in given:
        sides = (1, 1) if max(point) <= 1 else image.size
        x, y = (coordinate / side for coordinate, side in zip(point, sides))
        if not (0 <= x < 1 and 0 <= y < 1):
            parser.error(
                f'--points {point[0]:g} {point[1]:g}: outside of the image, which has '
                f'{image.width} x {image.height} pixels'
            )
        points.append((x * width, y * height))
    return points


def main() -> None:
    parser = ToolParser(__doc__)
    args = parse_args(parser)

    try:
        image = rgb(Image.open(args.image))
    except OSError as error:
        parser.error(f'{args.image} cannot be read as an image ({error}); check the path')
    except (ValueError, Image.DecompressionBombError) as error:
        parser.error(f'{args.image}: {error}')
    height, width = args.image_size or image.size[::-1]
    points = read_points(parser, args.points or [(0.5, 0.5)], image, width, height)
    image = image.resize((width, height), Image.Resampling.BICUBIC)

    torch.manual_seed(0)
    columns = []
    for config, *rest in track(args.models, 'models', transient=True):
        checkpoint, name = (*rest, None, None)[:2]
        backbone = build_backbone(config, checkpoint)
        if args.stage is None:
            args.stage = default_stage(backbone, height, width)
        pixels = normalized(image, (height, width), preprocessor_of(config))
        mixed = find(parser, args, config, backbone, pixels)
        stride = math.prod(backbone.stage_strides[: args.stage + 1])
        for matrix, options in matrices_of(mixed.attention).items():
            if {'Z': 'nystrom', 'Ĝ': 'whitened'}.get(matrix) == args.matrix:
                continue  # the other one of LaplacianAttention's two was asked for
            maps = [
                attention_map(mixed, (int(y / stride), int(x / stride)), args.head, **options)
                for x, y in points
            ]
            weights = '' if checkpoint else '\nrandom weights'
            model = fill(name or Path(config).stem, 26)  # letters that fit above a panel
            columns.append(Column(f'{model}\n{matrix}{weights}', maps, stride))
    block = 'last block' if args.block == -1 else f'block {args.block}'
    title = f'Attention from +, stage {args.stage}, {block}, head {args.head}'
    draw(image, points, columns, title, args.out)
    print(f'wrote {args.out}')


if __name__ == '__main__':
    main()
