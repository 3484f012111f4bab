"""Classify some images of a folder and draw them with predicted class, true class and confidence.

The folder has one sub-folder per class. Works for any mmpretrain classifier; images and order are
drawn by seed.

Example:
  python tools/show_predictions.py CONFIG CHECKPOINT data/mini/classification/val --count 40
"""

import argparse
import math
import random
from pathlib import Path

import matplotlib
from mmpretrain import ImageClassificationInferencer
from PIL import Image

matplotlib.use('Agg')
import matplotlib.pyplot as plt

IMAGE_SUFFIXES = ('.png', '.jpg', '.jpeg', '.bmp', '.webp')


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('config')
    parser.add_argument('checkpoint')
    parser.add_argument('folder', type=Path, help='images in one sub-folder per class')
    parser.add_argument('--out', type=Path, default=Path('predictions.png'))
    parser.add_argument('--count', type=int, default=24, help='default: %(default)s')
    parser.add_argument('--seed', type=int, default=0, help='default: %(default)s')
    parser.add_argument('--device', help='default: a GPU if there is one')
    args = parser.parse_args()

    images = sorted(p for p in args.folder.glob('*/*') if p.suffix.lower() in IMAGE_SUFFIXES)
    if not images:
        parser.error(f'no images in sub-folders of {args.folder}')
    shown = random.Random(args.seed).sample(images, min(args.count, len(images)))
    inferencer = ImageClassificationInferencer(
        args.config, pretrained=args.checkpoint, device=args.device
    )
    if inferencer.classes is None:  # a checkpoint without the names of its classes
        inferencer.classes = sorted(p.name for p in args.folder.iterdir() if p.is_dir())
    results = inferencer([str(path) for path in shown], batch_size=8)

    columns = min(8, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(1.5 * columns, 1.9 * rows + 0.5), layout='constrained',
        squeeze=False,
    )  # fmt: skip
    for axis in axes.flat:
        axis.axis('off')
    right = 0
    for axis, path, result in zip(axes.flat, shown, results):
        truth, predicted = path.parent.name, result['pred_class']
        right += truth == predicted
        axis.imshow(Image.open(path), cmap='gray')
        axis.set_title(
            f'{predicted} ({result["pred_score"]:.0%})\ntrue: {truth}',
            fontsize=9,
            color='darkgreen' if truth == predicted else 'crimson',
        )
    figure.suptitle(f'predicted (confidence) and true class: {right} of {len(shown)} right')
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=110)
    print(f'{right} of {len(shown)} right; wrote {args.out}')


if __name__ == '__main__':
    main()
