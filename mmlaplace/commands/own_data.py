"""What one's own images, boxes and masks say of the config that fits them."""

import math
import statistics
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from PIL import Image

from ..engine.first_checks.boxes import read_annotations
from ..models.known_options import did_you_mean

SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.ppm', '.pgm')
READ = 500  # masks and sizes of images that are read, spread evenly
NO_CLASS = 255
LARGEST_BOX_IMAGE = (1333, 800)
LARGEST_CROP = 512


class OwnDataError(ValueError):
    """Data that no config fits. The message names the file and the fix."""


class OwnData(NamedTuple):
    """What a folder has.

    Attributes:
        images: The number of images of ``train``, ``val``.
        settings: Values by the names of settings in a file of ``configs/own``.
        notes: Sentences for the user.
    """

    images: Tuple[int, int]
    settings: Dict[str, Any]
    notes: Tuple[str, ...] = ()


def images_in(folder: Path) -> List[Path]:
    """The images below a folder, in order."""
    return sorted(path for path in folder.rglob('*') if path.suffix.lower() in SUFFIXES)


def sampled(paths: Sequence[Any]) -> List[Any]:
    """At most :data:`READ` of them, spread evenly."""
    return list(paths[:: -(-len(paths) // READ)] if paths else ())


def class_folders(root: Path) -> OwnData:
    """Images in ``train/CLASS`` and ``val/CLASS``.

    Raises:
        OwnDataError: If a folder is missing or empty, there is one class alone, or ``val`` has
            other classes.
    """
    found = {}
    for split in ('train', 'val'):
        folder = root / split
        if not folder.is_dir():
            raise OwnDataError(
                f'there is no folder {folder}; make {root}/train and {root}/val, each with a '
                'folder of images for each class, and about a fifth of the images in val'
            )
        found[split] = {
            each.name: len(images_in(each)) for each in sorted(folder.iterdir()) if each.is_dir()
        }
        empty = [name for name, count in found[split].items() if not count]
        if empty:
            raise OwnDataError(
                f'{folder / empty[0]} has no image ({", ".join(SUFFIXES)}); add some, or remove it'
            )
    if len(found['train']) < 2:
        named = ', '.join(found['train']) or 'none'
        raise OwnDataError(
            f'{root}/train has {len(found["train"])} class folder ({named}), and a classifier '
            'needs two; put the other images into a folder of their own, such as train/other'
        )
    if list(found['train']) != list(found['val']):
        differ = sorted(set(found['train']) ^ set(found['val']))
        raise OwnDataError(
            f'{root}/train and {root}/val differ in the class folders {", ".join(differ)}; both '
            'need the same, as their order numbers the classes'
        )
    counts = [sum(found[split].values()) for split in ('train', 'val')]
    return OwnData((counts[0], counts[1]), dict(classes=tuple(found['train'])))


def coco_boxes(root: Path, classes: Sequence[str] = ()) -> OwnData:
    """Images in ``train`` and ``val``, and their boxes in ``annotations/{train,val}.json``.

    Args:
        root: The folder.
        classes: Names of categories. Default: (), all of the file, in its order.

    Raises:
        OwnDataError: If a file is missing or lacks what a detector reads.
        FirstCheckError: If a file is no JSON.
    """
    content = {}
    for split in ('train', 'val'):
        path = root / f'annotations/{split}.json'
        if not path.is_file():
            raise OwnDataError(
                f"there is no {path}; write the boxes of {root}/{split} there in COCO's format, "
                'and about a fifth of the images into val'
            )
        content[split] = read_annotations(str(path), str(path))
        for key in ('images', 'annotations', 'categories'):
            if not content[split].get(key):
                raise OwnDataError(f"{path} has no '{key}', which COCO's format needs; add them")
    train = content['train']
    known = [each['name'] for each in train['categories']]
    unknown = [name for name in classes if name not in known]
    if unknown:
        raise OwnDataError(
            f'{unknown[0]!r} of --classes is no category of {root}/annotations/train.json, which '
            f'has {", ".join(known)}{did_you_mean(unknown[0], known)}'
        )
    ids = {each['id'] for each in train['categories'] if each['name'] in (classes or known)}
    boxes = [
        each
        for each in train['annotations']
        if each['category_id'] in ids and not each.get('iscrowd')
    ]
    if not boxes:
        raise OwnDataError(
            f'no box of {root}/annotations/train.json is of the classes '
            f'{", ".join(classes or known)}; compare its category_id with its categories'
        )
    masks = all(each.get('segmentation') for each in boxes)
    sizes = [(each['width'], each['height']) for each in train['images']]
    settings = dict(classes=tuple(classes or known), masks=masks, image_size=_size_of_boxes(sizes))
    notes = [f'{len(boxes)} boxes in train, {"all" if masks else "not all"} with a mask']
    if max(max(size) for size in sizes) > 2 * LARGEST_BOX_IMAGE[0]:
        notes.append(
            'some images are more than twice as large as the model sees them: '
            'docs/large_images.md cuts them into tiles'
        )
    return OwnData((len(train['images']), len(content['val']['images'])), settings, tuple(notes))


def _size_of_boxes(sizes: Sequence[Tuple[int, int]]) -> Tuple[int, int]:
    """The longer and the shorter side of the median image, at most COCO's, in multiples of 32.

    A square image of 1024 pixels has fewer pixels than COCO's largest, so it keeps its size.
    """
    longer, shorter = (statistics.median(map(side, sizes)) for side in (max, min))
    most, pixels = LARGEST_BOX_IMAGE[0], math.prod(LARGEST_BOX_IMAGE)
    if longer > most or longer * shorter > pixels:
        return LARGEST_BOX_IMAGE
    return max(32, round(longer / 32) * 32), max(32, round(shorter / 32) * 32)


def label_images(
    root: Path,
    classes: Sequence[str],
    suffixes: Optional[Tuple[str, str]] = None,
    balance: bool = False,
    reduce_zero_label: bool = False,
) -> OwnData:
    """Images, and label images of the same names, with the number of a class in each pixel.

    Their folders are ``images`` and ``annotations``, each with ``training`` and ``validation``, or
    ``train`` and ``val``. The labels are 0 to n - 1, or 1 to n. 255 is never a class.

    Args:
        root: The folder.
        classes: The names of the n classes, in the order of their numbers.
        suffixes: The ends of the names of images and of label images. Default: None, those of the
            files.
        balance: Whether rare classes get a larger weight: the median share of the pixels, over the
            class's share, from 0.1 to 10. Default: False.
        reduce_zero_label: Whether 0 is no class, and 1 the first, as in ADE20K. Default: False,
            only if no label image has a 0, and one has n.

    Raises:
        OwnDataError: If a folder or a label image is missing, has colours, or has values that are
            no classes.
    """
    folders = {}
    for split, names in (('train', ('training', 'train')), ('val', ('validation', 'val'))):
        found = [name for name in names if (root / 'images' / name).is_dir()]
        if not found:
            raise OwnDataError(
                f'there is no folder {root}/images/{names[0]}; put images there, and their label '
                f'images into {root}/annotations/{names[0]}'
            )
        folders[split] = (f'images/{found[0]}', f'annotations/{found[0]}')
    count, pairs = {}, {}
    for split in folders:
        suffixes, pairs[split] = _pairs(root, *folders[split], suffixes)
        count[split] = len(pairs[split])
    labels = [label for _, label in sampled(pairs['train'])]
    counted, sizes = _count_pixels(labels, len(classes))
    reduced = reduce_zero_label or not counted[0] and bool(counted[len(classes)])
    if counted[len(classes)] and not reduced:
        raise OwnDataError(
            f'the label images of {root / folders["train"][1]} have the numbers 0 to '
            f'{len(classes)}, and --classes names {len(classes)}; name the class of 0 too, or add '
            '--reduce-zero-label if 0 is no class'
        )
    shares = counted[1:] if reduced else counted[:-1]
    settings: Dict[str, Any] = dict(
        classes=tuple(classes),
        reduce_zero_label=reduced,
        suffixes=suffixes,
        train_folders=folders['train'],
        val_folders=folders['val'],
    )
    side = min(LARGEST_CROP, max(64, int(statistics.median(map(min, sizes))) // 32 * 32))
    settings.update(image_size=(4 * side, side), crop_size=(side, side))
    percent = [f'{name} {share:.1%}' for name, share in zip(classes, shares / shares.sum())]
    first = '1, and 0 is no class' if reduced else '0'
    notes = [
        f'the number of the first class is {first} (reduce_zero_label={reduced})',
        f'share of the labelled pixels: {", ".join(percent)}',
    ]
    missing = [name for name, share in zip(classes, shares) if not share]
    if missing:
        notes.append(f'no label image that was read has {", ".join(missing)}')
    if balance:
        median = np.median(shares[shares > 0])
        weights = np.clip(median / np.maximum(shares, 1), 0.1, 10).round(2)
        settings['class_weight'] = tuple(weights.tolist())
    return OwnData((count['train'], count['val']), settings, tuple(notes))


def _pairs(
    root: Path, images: str, labels: str, suffixes: Optional[Tuple[str, str]]
) -> Tuple[Tuple[str, str], List[Tuple[Path, Path]]]:
    """The ends of names, and each image with its label image.

    Without ``suffixes``, they are the part after the last dot, of the first image and label image.
    """
    folders = root / images, root / labels
    found = [images_in(folder) for folder in folders]
    for folder, files in zip(folders, found):
        if not files:
            raise OwnDataError(f'{folder} has no image ({", ".join(SUFFIXES)}); add some')
    ends = suffixes or (found[0][0].suffix, found[1][0].suffix)
    pairs = []
    for image in found[0]:
        if not image.name.endswith(ends[0]):
            raise OwnDataError(
                f'{image} does not end with {ends[0]!r}, as all images must; convert it, or give '
                'both ends by --suffixes, such as --suffixes _leftImg8bit.png _labelTrainIds.png'
            )
        stem = image.relative_to(folders[0]).as_posix().removesuffix(ends[0])
        pairs.append((image, folders[1] / f'{stem}{ends[1]}'))
        if not pairs[-1][1].is_file():
            raise OwnDataError(
                f'{image} has no label image {pairs[-1][1]}; add it, remove the image, or give '
                'both ends of the names by --suffixes'
            )
    return ends, pairs


def _count_pixels(
    labels: Sequence[Path], num_classes: int
) -> Tuple[np.ndarray, List[Tuple[int, int]]]:
    """Pixels of each number from 0 to the number of classes in label images, and their sizes."""
    counted = np.zeros(num_classes + 1, np.int64)
    first: Dict[int, Path] = {}
    sizes = []
    for path in labels:
        with Image.open(path) as label:
            if label.mode not in ('L', 'P', 'I', 'I;16', '1'):
                raise OwnDataError(
                    f'{path} has colours (mode {label.mode}), and a label image has the number of '
                    'a class in each pixel; convert it to a grey image of numbers'
                )
            values, counts = np.unique(np.asarray(label), return_counts=True)
            sizes.append(label.size)
        for value, count in zip(values.tolist(), counts.tolist()):
            if value == NO_CLASS:
                continue
            if value > num_classes:
                raise OwnDataError(
                    f'{path} has the value {value}, and with {num_classes} classes the numbers are '
                    f'0 to {num_classes - 1}, or 1 to {num_classes}, and {NO_CLASS} is no class; '
                    'correct the label image or --classes'
                )
            counted[value] += count
            first.setdefault(value, path)
    if np.count_nonzero(counted) < 2:
        alone = ', '.join(map(str, np.flatnonzero(counted))) or 'nothing'
        raise OwnDataError(
            f'{labels[0]} and the others have {alone} alone beside {NO_CLASS}, which is no class, '
            'and a segmentor needs two classes, such as a background; write a number for each class'
        )
    return counted, sizes
