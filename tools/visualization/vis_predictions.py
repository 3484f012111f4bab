"""Draw a model's predictions on some images of its config's test set.

The tool works for classifiers, detectors and segmentors. Above the image of a classifier are the
predicted and the true class, above that of a detector its true objects, and that no box is certain
enough to be drawn, if so. The toolbox's own visualiser draws boxes, masks and label maps, on
images that are enlarged so that lines and names can be seen. The seed decides on the images and
their order.

Examples:
  python tools/visualization/vis_predictions.py CONFIG CHECKPOINT --count 40 --gamma 0.5
  python tools/visualization/vis_predictions.py CONFIG CHECKPOINT --force \\
      --out pictures/retinanet.png
"""

import math
import random
from collections import Counter
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill

import numpy as np
import torch
from matplotlib import colormaps
from mmengine.config import DictAction
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, VISUALIZERS
from PIL import Image
from rich.progress import track

from mmlaplace.commands.command_line import PICTURES, ToolParser, positive, trained_model
from mmlaplace.commands.refusals import first_checks
from mmlaplace.lab.figures import new_figure, save

MIN_SCORE = 0.5  # of a box that is drawn
COUNT = {'mmpretrain': 24}  # images; of other toolboxes fewer, which are larger
WIDTH = 8  # inches of the figure, so that its letters can be read on a page
SIDE = 640  # pixels that the longer side of a drawn image has at least


def enlarged(data: dict, gamma: float) -> np.ndarray:
    """The RGB image to draw on, in the size of its predictions."""
    pixels = data['inputs'][:3]  # of an image of many bands
    pixels = pixels[[channel % len(pixels) for channel in range(3)]]  # also of a grey image
    pixels = pixels.permute(1, 2, 0).numpy()[..., ::-1]  # as loaded, BGR
    pixels = np.round(255 * (pixels / 255) ** gamma).astype(np.uint8)
    times = math.ceil(SIDE / max(pixels.shape[:2]))
    height, width = (times * side for side in pixels.shape[:2])
    sizes = dict(ori_shape=(height, width), scale_factor=(1 / times, 1 / times))
    data['data_samples'].set_metainfo(sizes)
    image = Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)


def classified(image: np.ndarray, sample, visualizer, classes) -> tuple:
    """The image, and predicted and true class above it."""
    truth, predicted = sample.gt_label.item(), sample.pred_label.item()
    names = [classes[label] if classes else label for label in (predicted, truth)]
    title = f'{names[0]} ({sample.pred_score.max():.0%})\ntrue: {names[1]}'
    return image, title, 'darkgreen' if truth == predicted else 'crimson'


def drawn(image: np.ndarray, sample, visualizer, classes) -> tuple:
    """The image with its prediction, by the toolbox's visualiser, and of a detector a title."""
    title, colour = '', 'black'
    if 'pred_instances' in sample:
        title, colour = title_of(sample, classes)
        # The most certain last, on top of other classes for the same box.
        scores, order = sample.pred_instances.scores.sort()
        sample.pred_instances = sample.pred_instances[order[scores >= MIN_SCORE]]
    # By a file, as mmseg's visualiser keeps the prediction only.
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / 'drawn.png')
        visualizer.add_datasample('', image, sample, draw_gt=False, draw_pred=True, out_file=path)
        return np.asarray(Image.open(path).convert('RGB')), title, colour


def title_of(sample, classes) -> tuple:
    """What is truly on an image, and whether a box is certain enough to be drawn."""
    lines, colour, scores = [], 'black', sample.pred_instances.scores
    if not (scores >= MIN_SCORE).any():
        best = f' (best: {scores.max():.0%})' if len(scores) else ''
        lines, colour = [f'no box above {MIN_SCORE:.0%}{best}'], 'crimson'
    if 'gt_instances' in sample:
        counts = Counter(sample.gt_instances.labels.tolist()).items()
        named = [f'{count} {classes[label] if classes else label}' for label, count in counts]
        lines.append(f'true: {", ".join(named) or "nothing"}')
    return '\n'.join(lines), colour


def name_boxes(axis, sample, classes) -> None:
    """Write class and score above each box, larger than the toolbox does."""
    detections = sample.pred_instances
    for box, label, score in zip(detections.bboxes, detections.labels, detections.scores):
        left, top = box[:2].tolist()
        name = classes[label] if classes else int(label)
        axis.text(
            left,
            max(top, 0),
            f'{name} {score:.0%}',
            fontsize=8,
            color='white',
            va='bottom',
            bbox=dict(facecolor='black', edgecolor='none', pad=1),
        )


def draw(pictures: list, columns: int, classes, heading: str, path: Path) -> None:
    """Draw all pictures, in rows."""
    height, width = pictures[0][1].shape[:2]
    rows = math.ceil(len(pictures) / columns)
    cell = WIDTH / columns
    size = WIDTH, rows * (cell * height / width + 0.3) + 0.4
    figure, axes = new_figure(rows, columns, size, squeeze=False)
    for axis in axes.flat:
        axis.axis('off')
    for axis, (sample, picture, title, colour) in zip(axes.flat, pictures):
        axis.imshow(picture)
        wrapped = '\n'.join(fill(line, round(13 * cell)) for line in title.splitlines())
        axis.set_title(wrapped, fontsize=9, color=colour)
        if 'pred_instances' in sample:
            name_boxes(axis, sample, classes)
    figure.suptitle(heading, fontsize=10)
    save(figure, path, dpi=150)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_trained_model('classifier, detector or segmentor')
    parser.add_output('--out', suffixes=PICTURES, default=Path('predictions.png'))
    parser.add_argument('--count', type=positive, help='default: 24 of a classifier, else 6')
    parser.add_argument(
        '--gamma', type=float, default=1, help='below 1 it lightens what is drawn; default: 1'
    )
    parser.add_argument('--seed', type=int, default=0, help='default: %(default)s')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, default={})
    args = parser.parse_args()
    if args.gamma <= 0:
        parser.error(f'--gamma must be positive, got {args.gamma}')

    cfg, model = trained_model(args, 'test_dataloader.dataset', 'visualizer')
    scope = cfg.default_scope
    import_module(f'{scope}.utils').register_all_modules()
    with first_checks(cfg, ('test',)):
        dataset = DATASETS.build(cfg.test_dataloader.dataset)
        count = min(args.count or COUNT.get(scope, 6), len(dataset))
        shown = random.Random(args.seed).sample(range(len(dataset)), count)
        images = [dataset[index] for index in shown]
    visualizer = VISUALIZERS.build(dict(cfg.visualizer, vis_backends=None, name='predictions'))
    meta = dataset.metainfo
    classes = meta.get('classes') or ()
    if len(meta.get('palette') or ()) != len(classes):  # it has those of other classes
        colours = colormaps['hsv'](np.arange(len(classes)) / len(classes))
        meta = dict(meta, palette=[tuple(int(255 * part) for part in c[:3]) for c in colours])
    visualizer.dataset_meta = meta
    if scope == 'mmdet':
        visualizer.draw_texts = lambda *args, **options: None  # name_boxes writes larger names
    show = classified if scope == 'mmpretrain' else drawn

    pictures = []
    for data in track(images, 'images', transient=True):
        image = enlarged(data, args.gamma)
        with torch.no_grad():
            (sample,) = model.test_step(pseudo_collate([data]))
        sample = sample.to('cpu')
        pictures.append((sample, *show(image, sample, visualizer, classes)))

    columns = min(8 if show is classified else 3, len(pictures))
    heading = f'{Path(args.config).stem}: {len(pictures)} held-out images'
    draw(pictures, columns, classes, heading, args.out)
    print(f'wrote {args.out}')


if __name__ == '__main__':
    main()
