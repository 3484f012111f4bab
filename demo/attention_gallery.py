"""Draw one picture for each attention, of the same image and query, and the page that shows them.

The models are those that python -m mmlaplace compare trainings trained. An attention that was
not trained there is drawn with random weights, and the page says so. Attentions without a matrix of
tokens by tokens have the norm of their derivative instead.

Example:
  python demo/attention_gallery.py --compared work_dirs/compare_attentions
"""

import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import Dict, List, NamedTuple

import numpy as np
import torch
from explorer.images import Images, fitted
from explorer.models import ATTENTIONS, HOSTS, RANDOM, STUDIES, Models, Source, compared
from explorer.pictures import heated, with_cross
from explorer.rows import Explorer, Panel, block_of, colour_limits, last_block
from explorer.view import LAST, SIZES, View
from PIL import Image
from rich.progress import track

from mmlaplace.analysis.attention_rows import influence_map
from mmlaplace.analysis.recording import PHOTOS, normalized
from mmlaplace.commands.command_line import ToolParser, positive
from mmlaplace.writing import whole_file, write_whole

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 192  # pixels of a picture
COLUMNS = 4  # pictures side by side
PALETTE = 200  # colours of a PNG
LEAST = 1e-4  # the least norm of a derivative that is drawn, as a share of the largest
LINE = 120  # characters of the page
MADE_BY = 'Made by `python demo/attention_gallery.py`.'


class Drawn(NamedTuple):
    """An attention, and its row, or the norms of its derivative."""

    name: str
    panel: Panel
    file: str


def gallery(explorer: Explorer, names: List[str], host: str, study: str, view: View) -> List[Drawn]:
    """A panel for each attention, trained if one of the models was."""
    trained: Dict[str, str] = {}
    for key, source in explorer.models.sources.items():
        if key.startswith(f'{source.title}, {study}, '):
            trained.setdefault(source.title, key)  # the first seed
    drawn = []
    for name in track(names, 'attentions', transient=True):
        key = trained.get(f'{name} on {host}')
        alone = replace(view, trained=(key,)) if key else replace(view, attention=(name,))
        panel, *_ = explorer.panels(replace(alone, host=(host,)))
        if panel.weights is None:
            (source,) = explorer.models.chosen(alone.trained, alone.attention, (host,))
            panel = influence(explorer, source, view, panel)
        drawn.append(Drawn(name, panel, f'{name.replace(", ", "-")}.png'))
    return drawn


def influence(explorer: Explorer, source: Source, view: View, panel: Panel) -> Panel:
    """The panel of an attention without a matrix, with logarithms of its derivative's norms.

    Raises:
        ValueError: If the model lacks the stage or block.
    """
    backbone = explorer.models.backbone(source)
    _, block = block_of(backbone, view, needs_rows=False)
    image = explorer.images.get(view.image)
    inputs = []
    # Of the whole block, as windows would be parts of the map.
    hook = block.attn.register_forward_pre_hook(lambda module, given: inputs.extend(given[:2]))
    try:
        with torch.no_grad():
            backbone(normalized(image, fitted(image, view.size), source.preprocessor))
    finally:
        hook.remove()
    x, (height, width) = inputs
    place = (int(view.y * height), int(view.x * width))
    norms = influence_map(block.attn, x, (height, width), place)
    # The query's own token would leave the others in the dark.
    logarithms = norms.clamp(min=LEAST * norms.max().item()).log10()
    stride = math.prod(backbone.stage_strides[: view.stage + 1])
    return panel._replace(weights=logarithms.numpy(), stride=stride)


def save(image: Image.Image, drawn: Drawn, view: View, path: Path) -> None:
    """The panel over the image as a small PNG."""
    (limits,) = colour_limits([drawn.panel], 'own')
    pixels = 255 * heated(image, drawn.panel, limits, fitted(image, view.size))
    picture = with_cross(Image.fromarray(pixels.round().astype(np.uint8)), view, arm=20)
    picture = picture.resize((WIDTH, WIDTH * picture.height // picture.width), Image.Resampling.BOX)
    # The few brightest keys and the cross keep their colours, which the usual method would merge.
    picture = picture.quantize(PALETTE, Image.Quantize.MAXCOVERAGE, kmeans=2)
    with whole_file(path) as temporary:
        picture.save(temporary, optimize=True)


def caption(drawn: Drawn) -> str:
    """The text below a picture."""
    statistics = drawn.panel.statistics
    lines = [f'**{drawn.name}**']
    if statistics is not None:
        if drawn.panel.matrix not in drawn.name.lower():  # else it is named after the attention
            lines.append(f'matrix {drawn.panel.matrix}')
        lines.append(f'near {statistics.near:.0%}, far {statistics.far:.0%}')
        lines.append(f'entropy {statistics.entropy:.2f}')
    if drawn.panel.weights_are == RANDOM:
        lines.append(f'*{RANDOM}*')
    return '<br>'.join(lines)


def table(drawn: List[Drawn], folder: str) -> str:
    """Pictures side by side with their captions, as a table in Markdown."""
    rows = ['| ' * COLUMNS + '|', '|---' * COLUMNS + '|']
    for start in range(0, len(drawn), COLUMNS):
        cells = [
            f'![{one.name}]({folder}/{one.file})<br>{caption(one)}'
            for one in drawn[start : start + COLUMNS]
        ]
        cells += [''] * (COLUMNS - len(cells))
        rows.append('| ' + ' | '.join(cells) + ' |')
    return '\n'.join(rows)


def page(drawn: List[Drawn], view: View, host: str, study: str, folder: str) -> str:
    """The gallery in Markdown."""
    rows = [one for one in drawn if one.panel.statistics is not None]
    others = [one for one in drawn if one.panel.statistics is None]
    untrained = sum(one.panel.weights_are == RANDOM for one in drawn)
    side = STUDIES[study].phases[-1].side
    kinds = Counter(one.name.split(', ')[0] for one in drawn)
    several = sum(count > 1 for count in kinds.values())
    forms = ''
    if several:
        forms = f', {several} of them in other forms too,'
    trained = (
        f'These {len(kinds)} attentions{forms} were trained on the {study} of '
        f'[the comparison](attention_comparison.md), at {side} × {side} pixels.'
    )
    if untrained:
        trained += f' But {untrained} of them got random weights, as their captions say.'
    shown = 'a file'
    if view.image in PHOTOS:
        shown = f'the photograph “{view.image}” of scikit-image'
    parts = [
        '# Gallery',
        'For people who want to see where an attention looks. Bright tokens have much weight in '
        'the exact row of the query under the cross. If an attention has several matrices, the '
        'caption names [the matrix of the row](maths.md#rows-of-the-matrices). The pictures do not '
        'show which attention is better. [The explorer](attention_explorer.md) shows other images.',
        f'{trained} The host is {host}, the image is {shown}, its longer side {view.size} '
        f'pixels, and the attention is that of the {last_block(view)} of stage {view.stage}, '
        f'head {view.head}. '
        '*Near* is the share of absolute weights within an eighth of the longer side, *far* that '
        'beyond three eighths. With an entropy of 1 all weights are equal.',
        table(rows, folder),
        '## Attentions without a matrix',
        'These have no row of weights. The picture shows the norm of the derivative of the '
        "query's output by each token, on a logarithmic scale down to a ten-thousandth of the "
        'largest.',
        table(others, folder),
        MADE_BY,
    ]
    wrapped = (
        part if part.startswith('|') else fill(part, LINE, break_on_hyphens=False) for part in parts
    )
    return '\n\n'.join(wrapped) + '\n'


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument(
        '--compared',
        type=Path,
        default=ROOT / 'work_dirs/compare_attentions',
        metavar='DIR',
        help='default: work_dirs/compare_attentions',
    )
    names = list(ATTENTIONS)
    parser.add_argument(
        '--attentions', nargs='+', metavar='NAME', default=names, choices=names, help='default: all'
    )
    parser.add_argument('--host', choices=list(HOSTS), default='laplacianformer')
    parser.add_argument('--study', choices=list(STUDIES), default='textures')
    parser.add_argument(
        '--image',
        default='astronaut',
        metavar='FILE',
        help=f'or one of {", ".join(PHOTOS)}; default: %(default)s',
    )
    parser.add_argument(
        '--point',
        nargs=2,
        type=float,
        default=(0.5, 0.2),
        metavar=('X', 'Y'),
        help='the query, as shares of width and height; %(default)s',
    )
    parser.add_argument(
        '--image-size',
        type=positive,
        choices=SIZES,
        default=128,
        help='longer side of the image, pixels; default: %(default)s',
    )
    parser.add_argument('--stage', type=int, default=0, help='from 0; default: %(default)s')
    parser.add_argument('--block', type=int, default=LAST, help='of the stage; default: the last')
    parser.add_argument('--head', type=int, default=0, help='from 0; default: %(default)s')
    parser.add_argument(
        '--pictures',
        type=Path,
        default=ROOT / 'docs/images/gallery',
        help='folder; default: docs/images/gallery',
    )
    parser.add_output('--out', default=ROOT / 'docs/gallery.md', help='default: docs/gallery.md')
    args = parser.parse_args()
    images, image = Images(), args.image
    try:
        if image not in PHOTOS:
            image = images.add(Path(image), Path(image).name)
        place = (args.stage, args.block, args.head)
        view = View(image, args.image_size, *args.point, (), (), (), *place)
        explorer = Explorer(images, Models(compared(args.compared)))
        drawn = gallery(explorer, args.attentions, args.host, args.study, view)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    for one in drawn:
        save(images.get(image), one, view, args.pictures / one.file)
    folder = Path(os.path.relpath(args.pictures, args.out.parent)).as_posix()
    write_whole(args.out, page(drawn, view, args.host, args.study, folder))
    print(f'wrote {args.out} and {len(drawn)} pictures in {args.pictures}')


if __name__ == '__main__':
    main()
