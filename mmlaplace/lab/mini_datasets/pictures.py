"""Make the images and labels of the mini data sets: digits on photographs, and textures.

A function ``make_*`` writes one data set into a folder. Each split has its own digits and its own
part of each photograph.
"""

import json
import shutil
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Tuple

import numpy as np
from PIL import Image
from rich.progress import track

from .fashion import make_fashion
from .images import save_image
from .rendered import make_rendered

CLASSES = tuple(str(digit) for digit in range(10))
SPLITS = ('train', 'val')
PHOTOS = (
    'astronaut',
    'brick',
    'camera',
    'cat',
    'coffee',
    'coins',
    'grass',
    'gravel',
    'hubble_deep_field',
    'rocket',
)
VERSION = 1  # increase it after a change of the images or labels
TRAIN_SHARE = 0.78  # share of the digits, and of the width of each photograph, for training
# Brightness of the photographs. With a brightness of 1, and dark digits besides the bright ones,
# the micro model learns nothing in ten epochs.
DIM = 0.4
DIGIT_SIZES = (32, 44)  # heights of digits in pixels, for classification and crowds
SCENE_DIGIT_SIZES = (28, 64)  # the same for detection and segmentation
VIEWS = {'val': 48, 'val_72': 72, 'val_96': 96}  # sides of the validation images of crowds
CELL = 46  # pixels between the digits of a crowd
# Textures: photographs, sides of the validation images, and number of patches of each photograph.
TEXTURES = (
    'astronaut',
    'brick',
    'camera',
    'cat',
    'coffee',
    'coins',
    'grass',
    'gravel',
    'hubble_deep_field',
    'immunohistochemistry',
    'moon',
    'page',
    'retina',
    'rocket',
    'text',
)
TEXTURE_VIEWS = {'val': 64, 'val_96': 96, 'val_128': 128}
PATCHES = {'train': 240, 'val': 60}
PLAIN = 0.01  # patches whose middle has a smaller standard deviation, such as sky, are not taken
BACKGROUNDS_PER_DIGIT = {'train': 4, 'val': 2}
SCENES = {  # task: (height, width), images in each split, fewest and most digits of an image
    'detection': ((192, 256), {'train': 500, 'val': 125}, (2, 5)),
    'segmentation': ((128, 128), {'train': 600, 'val': 150}, (1, 3)),
}


class Instance(NamedTuple):
    """A digit in an image. Its box reaches from (top, left) to (bottom, right)."""

    label: int
    top: int
    left: int
    alpha: np.ndarray  # opacity (h, w) in [0, 1], cut to the box of the digit

    @property
    def bottom(self) -> int:
        return self.top + self.alpha.shape[0]

    @property
    def right(self) -> int:
        return self.left + self.alpha.shape[1]

    def overlaps(self, other: 'Instance') -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


class Source:
    """The digits and photographs of one split."""

    def __init__(self, split: str, seed: int) -> None:
        from skimage import data
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(seed).permutation(len(digits.target))
        cut = int(TRAIN_SHARE * len(order))
        chosen = order[:cut] if split == 'train' else order[cut:]
        self.glyphs = digits.images[chosen] / 16.0
        self.labels = digits.target[chosen]
        self.photos = []
        for name in PHOTOS:
            photo = np.atleast_3d(getattr(data, name)())[..., :3]
            photo = np.broadcast_to(photo, photo.shape[:2] + (3,))
            cut = int(TRAIN_SHARE * photo.shape[1])
            part = photo[:, :cut] if split == 'train' else photo[:, cut:]
            # The held-out part is too narrow for a wide crop, so mirrored copies extend it.
            self.photos.append(np.concatenate([part, part[:, ::-1]] * 2, axis=1))

    def background(self, rng: np.random.Generator, height: int, width: int) -> np.ndarray:
        """A random crop of a random photograph, ``(height, width, 3)`` in [0, DIM]."""
        photo = self.photos[rng.integers(len(self.photos))]
        top = rng.integers(photo.shape[0] - height + 1)
        left = rng.integers(photo.shape[1] - width + 1)
        return photo[top : top + height, left : left + width] * (DIM / 255)

    def alpha(self, index: int, size: int) -> np.ndarray:
        """Opacity (h, w) of a digit, resized to ``size`` x ``size`` and then cut to its box."""
        image = Image.fromarray((255 * self.glyphs[index]).astype(np.uint8))
        alpha = np.asarray(image.resize((size, size), Image.Resampling.BICUBIC)) / 255.0
        inked = alpha > 0.5
        rows, columns = np.flatnonzero(inked.any(1)), np.flatnonzero(inked.any(0))
        return alpha[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def draw(canvas: np.ndarray, instance: Instance, rng: np.random.Generator) -> None:
    """Blend a digit into the canvas in a random bright colour."""
    region = canvas[instance.top : instance.bottom, instance.left : instance.right]
    region += instance.alpha[..., None] * (rng.uniform(0.85, 1.0, 3) - region)


def make_classification(out: Path, seed: int) -> None:
    side = VIEWS['val']
    for split in SPLITS:
        source = Source(split, seed)
        rng = np.random.default_rng([seed, 0, SPLITS.index(split)])
        for index in track(range(len(source.labels)), f'classification {split}'):
            for copy in range(BACKGROUNDS_PER_DIGIT[split]):
                alpha = source.alpha(index, int(rng.integers(*DIGIT_SIZES)))
                canvas = source.background(rng, side, side)
                top, left = (rng.integers(side - length + 1) for length in alpha.shape)
                draw(canvas, Instance(source.labels[index], top, left, alpha), rng)
                folder = out / split / str(source.labels[index])
                save_image(canvas, folder / f'{index:04d}_{copy}.png')


def make_crowds(out: Path, seed: int) -> None:
    for split in SPLITS:
        source = Source(split, seed)
        rng = np.random.default_rng([seed, 3, SPLITS.index(split)])
        views = {'train': VIEWS['val']} if split == 'train' else VIEWS
        largest = max(views.values())
        cells = -(-largest // CELL) + 1
        for index in track(range(len(source.labels)), f'crowds {split}'):
            alike = np.flatnonzero(source.labels == source.labels[index])
            for copy in range(BACKGROUNDS_PER_DIGIT[split]):
                plane = np.zeros((cells * CELL, cells * CELL, 1))
                for top, left in np.ndindex(cells, cells):
                    one = int(rng.choice(alike))
                    alpha = source.alpha(one, int(rng.integers(*DIGIT_SIZES)))
                    top, left = (
                        corner * CELL + rng.integers(CELL - length + 1)
                        for corner, length in zip((top, left), alpha.shape)
                    )
                    plane[top : top + alpha.shape[0], left : left + alpha.shape[1], 0] = alpha
                top, left = rng.integers(plane.shape[0] - largest + 1, size=2)
                cut = plane[top : top + largest, left : left + largest]
                canvas = source.background(rng, largest, largest)
                canvas += cut * (rng.uniform(0.85, 1.0, 3) - canvas)
                for folder, side in views.items():
                    edge = (largest - side) // 2
                    view = canvas[edge : edge + side, edge : edge + side]
                    name = f'{index:04d}_{copy}.png'
                    save_image(view, out / folder / str(source.labels[index]) / name)


def make_textures(out: Path, seed: int) -> None:
    from skimage import data

    largest = max(TEXTURE_VIEWS.values())
    for label, name in enumerate(track(TEXTURES, 'textures')):
        image = Image.fromarray(getattr(data, name)()).convert('RGB')
        scale = max(1, 2 * largest / image.height)  # two photographs are only 172 and 191 high
        image = image.resize([round(scale * side) for side in image.size], Image.Resampling.BICUBIC)
        photo = np.asarray(image) / 255
        cut = min(int(TRAIN_SHARE * photo.shape[1]), photo.shape[1] - largest)
        for split, part in zip(SPLITS, (photo[:, :cut], photo[:, cut:])):
            rng = np.random.default_rng([seed, 4, label, SPLITS.index(split)])
            views = {'train': TEXTURE_VIEWS['val']} if split == 'train' else TEXTURE_VIEWS
            side = max(views.values())
            for number in range(PATCHES[split]):
                patch = cut_patch(part, side, rng)
                for folder, length in views.items():
                    view = middle(patch, length).clip(0, 1)
                    save_image(view, out / folder / name / f'{number:04d}.png')


def cut_patch(photo: np.ndarray, side: int, rng: np.random.Generator) -> np.ndarray:
    """A random square patch ``(side, side, 3)`` of a photograph, rotated by a multiple of 90°.

    Patches with a plain middle are not taken. The brightness of the patch is changed at random.
    """
    while True:
        top, left = (rng.integers(length - side + 1) for length in photo.shape[:2])
        patch = photo[top : top + side, left : left + side]
        if middle(patch, TEXTURE_VIEWS['val']).std() > PLAIN:
            break
    # Without this, a model could distinguish the photographs by their brightness.
    patch = patch * rng.uniform(0.6, 1.2) + rng.uniform(-0.1, 0.1)
    return np.rot90(patch, int(rng.integers(4)))


def middle(patch: np.ndarray, side: int) -> np.ndarray:
    edge = (len(patch) - side) // 2
    return patch[edge : edge + side, edge : edge + side]


def make_scenes(
    task: str, split: str, seed: int
) -> Iterator[Tuple[int, np.ndarray, List[Instance]]]:
    """Make images of several digits on a photograph, whose boxes do not overlap.

    Yields:
        Number of the image, the image ``(height, width, 3)`` in [0, 1], and its digits.
    """
    (height, width), counts, (fewest, most) = SCENES[task]
    source = Source(split, seed)
    rng = np.random.default_rng([seed, 1 + list(SCENES).index(task), SPLITS.index(split)])
    for number in track(range(counts[split]), f'{task} {split}'):
        canvas = source.background(rng, height, width)
        instances: List[Instance] = []
        wanted = rng.integers(fewest, most + 1)
        while len(instances) < wanted:
            index = int(rng.integers(len(source.labels)))
            alpha = source.alpha(index, int(rng.integers(*SCENE_DIGIT_SIZES)))
            top, left = rng.integers(height - alpha.shape[0]), rng.integers(width - alpha.shape[1])
            new = Instance(int(source.labels[index]), int(top), int(left), alpha)
            if not any(new.overlaps(old) for old in instances):
                instances.append(new)
                draw(canvas, new, rng)
        yield number, canvas, instances


def run_length(mask: np.ndarray) -> dict:
    """Encode a mask (h, w) in COCO's uncompressed run-length encoding.

    It goes column by column, and the first run is one of zeros.
    """
    flat = np.concatenate([[0], mask.T.reshape(-1).astype(np.int8)])
    changes = np.flatnonzero(np.diff(flat)).tolist()
    return dict(size=list(mask.shape), counts=np.diff([0, *changes, mask.size]).tolist())


def make_detection(out: Path, seed: int) -> None:
    (out / 'annotations').mkdir(parents=True)
    for split in SPLITS:
        images: List[dict] = []
        annotations: List[dict] = []
        for number, canvas, instances in make_scenes('detection', split, seed):
            height, width = canvas.shape[:2]
            name = f'{number:06d}.png'
            save_image(canvas, out / split / name)
            images.append(dict(id=number, file_name=name, height=height, width=width))
            for instance in instances:
                mask = np.zeros((height, width), bool)
                inked = instance.alpha > 0.5
                mask[instance.top : instance.bottom, instance.left : instance.right] = inked
                box = [instance.left, instance.top, *inked.shape[::-1]]
                annotations.append(
                    dict(
                        id=len(annotations) + 1,  # in COCO's evaluation, id 0 means 'no match'
                        image_id=number,
                        category_id=instance.label,
                        bbox=box,
                        area=int(inked.sum()),
                        segmentation=run_length(mask),
                        iscrowd=0,
                    )
                )
        categories = [dict(id=i, name=name) for i, name in enumerate(CLASSES)]
        content = dict(images=images, annotations=annotations, categories=categories)
        (out / 'annotations' / f'{split}.json').write_text(json.dumps(content))


def make_segmentation(out: Path, seed: int) -> None:
    for split, folder in zip(SPLITS, ('training', 'validation')):
        for number, canvas, instances in make_scenes('segmentation', split, seed):
            labels = np.ones(canvas.shape[:2], np.uint8)
            for instance in instances:
                region = labels[instance.top : instance.bottom, instance.left : instance.right]
                region[instance.alpha > 0.25] = 0
                region[instance.alpha > 0.5] = 2 + instance.label
            name = f'{number:06d}.png'
            save_image(canvas, out / 'images' / folder / name)
            path = out / 'annotations' / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(labels).save(path)


MAKERS: Dict[str, Callable[..., None]] = {
    'classification': make_classification,
    'crowds': make_crowds,
    'textures': make_textures,
    'detection': make_detection,
    'segmentation': make_segmentation,
    'fashion': make_fashion,
    'rendered': make_rendered,
}


def settings(seed: int) -> Dict[str, int]:
    """The values on which the content of a data set depends. They are stored with it."""
    return dict(seed=seed, version=VERSION)


def fill(folder: Path, task: str, seed: int, **options: Any) -> None:
    """Make a data set in a folder. First, folders of an interrupted earlier run are removed.

    Args:
        folder: Folder of the data set.
        task: A key of ``MAKERS``.
        seed: Seed of the images.
        **options: Further arguments of the data set's ``make_*``.
    """
    for left in folder.iterdir():
        if left.is_dir():
            shutil.rmtree(left)
    MAKERS[task](folder, seed, **options)
