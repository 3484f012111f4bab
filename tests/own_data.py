"""Images of one's own, as a reader of the tutorials has them: discs and boxes on noise."""

import json
from pathlib import Path
from typing import Tuple

import numpy as np
from PIL import Image

CLASSES = ('disc', 'box')
SIZE = (96, 64)  # width, height


def picture(number: int, size: Tuple[int, int] = SIZE) -> Tuple[Image.Image, np.ndarray, list]:
    """An image with a disc or a box, its mask, and its corners ``(x, y, width, height)``."""
    width, height = size
    noise = np.random.default_rng(number)
    image = noise.integers(0, 90, (height, width, 3), np.uint8)
    side = height // 2
    left, top = (int(noise.integers(0, most - side)) for most in (width, height))
    rows, columns = np.mgrid[:height, :width]
    if number % 2:
        shape = (abs(columns - left - side / 2) < side / 2) & (
            abs(rows - top - side / 2) < side / 2
        )
    else:
        shape = (columns - left - side / 2) ** 2 + (rows - top - side / 2) ** 2 < (side / 2) ** 2
    image[shape] = (220, 60, 60) if number % 2 else (60, 60, 220)
    return Image.fromarray(image), shape, [left, top, side, side]


def write_class_folders(root: Path, train: int = 8, val: int = 4) -> Path:
    """Images in ``train/CLASS`` and ``val/CLASS``."""
    for split, count in (('train', train), ('val', val)):
        for number in range(count):
            folder = root / split / CLASSES[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            picture(number)[0].save(folder / f'{number}.jpg')
    return root


def write_coco(root: Path, train: int = 8, val: int = 4, masks: bool = True) -> Path:
    """Images in ``train`` and ``val``, and their boxes and masks; the last image has none."""
    (root / 'annotations').mkdir(parents=True)
    for split, count in (('train', train), ('val', val)):
        (root / split).mkdir()
        images, boxes = [], []
        for number in range(count):
            image, _, (left, top, width, height) = picture(number)
            image.save(root / split / f'{number}.jpg')
            images.append(dict(id=number, file_name=f'{number}.jpg', width=96, height=64))
            corners = [left, top, left + width, top, left + width, top + height, left, top + height]
            box = dict(
                id=number + 1,
                image_id=number,
                category_id=3 + number % 2,
                bbox=[left, top, width, height],
                area=width * height,
                iscrowd=0,
            )
            if masks:
                box['segmentation'] = [corners]
            if number < count - 1:
                boxes.append(box)
        categories = [dict(id=3, name='disc'), dict(id=4, name='box')]
        content = dict(images=images, annotations=boxes, categories=categories)
        (root / f'annotations/{split}.json').write_text(json.dumps(content))
    return root


def write_label_images(root: Path, train: int = 8, val: int = 4, first: int = 0) -> Path:
    """Images, and masks of a background, a disc and a box from a number on; a border is 255."""
    for split, count in (('training', train), ('validation', val)):
        for kind in ('images', 'annotations'):
            (root / kind / split).mkdir(parents=True)
        for number in range(count):
            image, shape, _ = picture(number)
            image.save(root / f'images/{split}/{number}.jpg')
            labels = np.where(shape, 1 + number % 2, 0).astype(np.uint8) + first
            labels[0] = 255 if not first else 0
            Image.fromarray(labels).save(root / f'annotations/{split}/{number}.png')
    return root
