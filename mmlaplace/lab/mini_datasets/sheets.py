"""Draw contact sheets of the mini data sets, on which a person can check the labels."""

import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, Tuple

import numpy as np
from PIL import Image

from ..figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASSES = tuple(str(digit) for digit in range(10))
PALETTE = (
    (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75),
    (227, 119, 194), (127, 127, 127), (188, 189, 34), (23, 190, 207),
)  # fmt: skip
SPLITS = ('train', 'val')
SHEET = 'contact_sheet.png'


@contextmanager
def sheet(
    path: Path, title: str, rows: int, columns: int, cell: Tuple[float, float]
) -> Iterator[Iterator['Axes']]:
    """A context that gives the axes of a figure of rows x columns images, and then saves it."""
    figure, axes = new_figure(rows, columns, (columns * cell[0], rows * cell[1] + 0.6))
    figure.suptitle(title)
    for axis in axes.flat:
        axis.axis('off')
    yield iter(axes.flat)
    figure.savefig(path, dpi=100)


def sheet_classification(out: Path) -> None:
    folders = [name for split in SPLITS for name in sorted(p.name for p in out.glob(f'{split}*'))]
    folders = folders if len(folders) > len(SPLITS) else [*SPLITS, *SPLITS]
    shown = [
        (folder, label, sorted((out / folder / label).iterdir())[2 * row])
        for row, folder in enumerate(folders)
        for label in CLASSES
    ]
    title = f'{out.name.partition(".")[0]}: folder / class'
    with sheet(out / SHEET, title, len(folders), 10, (1.1, 1.3)) as axes:
        for axis, (folder, label, path) in zip(axes, shown):
            axis.imshow(Image.open(path))
            axis.set_title(f'{folder} / {label}', fontsize=7)


def sheet_textures(out: Path) -> None:
    labels = sorted(path.name for path in (out / 'train').iterdir())
    folders = [*SPLITS, *SPLITS, 'val_128']
    with sheet(out / SHEET, 'textures: photograph / folder', 5, len(labels), (1.1, 1.3)) as axes:
        for row, folder in enumerate(folders):
            for label in labels:
                axis = next(axes)
                axis.imshow(Image.open(out / folder / label / f'{row:04d}.png'))
                axis.set_title(f'{label[:11]}\n{folder}', fontsize=7)


def sheet_detection(out: Path) -> None:
    title = 'detection: boxes, masks and classes, training above and held-out below'
    contents = [json.loads((out / f'annotations/{s}.json').read_bytes()) for s in SPLITS]
    shown = [(s, c, image) for s, c in zip(SPLITS, contents) for image in c['images'][:8]]
    with sheet(out / SHEET, title, 4, 4, (3.2, 2.4)) as axes:
        for axis, (split, content, image) in zip(axes, shown):
            axis.imshow(Image.open(out / split / image['file_name']))
            for annotation in content['annotations']:
                if annotation['image_id'] == image['id']:
                    draw_annotation(axis, annotation)


def draw_annotation(axis: 'Axes', annotation: dict) -> None:
    from matplotlib.patches import Rectangle

    colour = np.array(PALETTE[annotation['category_id']]) / 255
    height, width = annotation['segmentation']['size']
    counts = annotation['segmentation']['counts']
    mask = np.repeat(np.arange(len(counts)) % 2, counts).reshape(width, height).T
    axis.imshow(np.dstack([np.broadcast_to(colour, (height, width, 3)), 0.6 * mask]))
    left, top, width, height = annotation['bbox']
    corner = (left - 0.5, top - 0.5)  # matplotlib has pixel centres at integers
    axis.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=colour))
    label = CLASSES[annotation['category_id']]
    axis.text(left, top - 2, label, color='white', fontsize=8, bbox=dict(facecolor=colour, pad=1))


def sheet_segmentation(out: Path) -> None:
    title = 'segmentation: image and labels (black ignored, grey background, colours digits)'
    colours = np.array([(0, 0, 0), (200, 200, 200), *PALETTE], np.uint8)
    with sheet(out / SHEET, title, 4, 8, (1.5, 1.6)) as axes:
        for folder in ('training', 'validation'):
            for path in sorted((out / 'images' / folder).iterdir())[:8]:
                labels = np.asarray(Image.open(out / 'annotations' / folder / path.name))
                axis = next(axes)
                axis.imshow(Image.open(path))
                axis.set_title(folder, fontsize=7)
                axis = next(axes)
                axis.imshow(colours[labels])
                present = [CLASSES[label - 2] for label in np.unique(labels) if label > 1]
                axis.set_title(' '.join(present), fontsize=8)
