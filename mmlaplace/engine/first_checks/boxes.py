"""Boxes in COCO's format: whether the classes, the categories, the images and the boxes fit."""

import json
import logging
import os
from collections import Counter
from typing import Any, Dict, List, Optional

from mmengine.fileio import get_local_path
from mmengine.logging import print_log

from .errors import FirstCheckError, pass_over, shown
from .leaves import classes_of

LARGEST = 2**26  # bytes of a file that is read a second time, which takes a second or two
NEEDED = dict(
    images=('id', 'file_name', 'height', 'width'),
    annotations=('image_id', 'category_id', 'bbox', 'area'),
    categories=('id', 'name'),
)


def is_coco(leaf: Any) -> bool:
    """Whether mmdet's CocoDataset itself reads the annotations of a data set."""
    bases = {base.__name__: base for base in type(leaf).__mro__}
    coco: Any = bases.get('CocoDataset')
    return coco is not None and type(leaf).load_data_list is coco.load_data_list


def check_boxes(leaf: Any, split: str, any_size: bool = False) -> None:
    """Compare a file in COCO's format with the classes of its data set, and with itself.

    Args:
        leaf: The data set, which need not have read the file yet.
        split: ``'train'``, ``'val'`` or ``'test'``.
        any_size: Whether a file of any size is read. Default: False, of up to 64 MiB.

    Raises:
        FirstCheckError: If the file cannot be read, lacks what mmdet reads, or leaves no box; and
            if labels would not be those of the classes.
    """
    if not is_coco(leaf):
        return
    path = leaf.ann_file
    if not any_size and os.path.isfile(path) and os.path.getsize(path) > LARGEST:
        return pass_over(f'{path} is large, and is read once, by mmdet')
    with get_local_path(path, backend_args=leaf.backend_args) as local:
        content = read_annotations(local, path)
    if split != 'train' and not content.get('annotations'):
        return pass_over(f'{path} has no annotations, as of a test set')
    _check_keys(content, path)
    _check_left(content, path, classes_of(leaf), split)
    _check_names(content, path, classes_of(leaf), split)


def read_annotations(local: str, path: str) -> Dict[str, Any]:
    """A JSON file as a dict.

    Args:
        local: The file.
        path: Its name for messages.

    Raises:
        FirstCheckError: If there is none, or if it is broken; with the line.
    """
    try:
        with open(local, 'rb') as file:
            content = json.load(file)
    except FileNotFoundError:
        raise FirstCheckError(
            f'there is no annotation file {path}; check data_root and ann_file'
        ) from None
    except json.JSONDecodeError as error:
        raise FirstCheckError(
            f'{path} is no JSON from line {error.lineno}, column {error.colno} on ({error.msg}); '
            'mend that line, or write the file again'
        ) from None
    except UnicodeDecodeError as error:
        raise FirstCheckError(
            f'{path} is no JSON ({error}); write the file again, in UTF-8'
        ) from None
    if not isinstance(content, dict):
        raise FirstCheckError(
            f"{path} is a {type(content).__name__}, and COCO's format is a dict with images, "
            'annotations and categories; convert it'
        )
    return content


def _check_keys(content: Dict[str, Any], path: str) -> None:
    for part, keys in NEEDED.items():
        entries = content.get(part)
        if not isinstance(entries, list) or not entries:
            raise FirstCheckError(
                f"{path} has no {part}, which COCO's format has as a list; its parts are "
                f'{shown(content)}'
            )
        for entry in entries:
            lacking = [key for key in keys if not isinstance(entry, dict) or key not in entry]
            if lacking:
                raise FirstCheckError(
                    f'{path} has {part} without {shown(lacking)}, such as {str(entry)[:80]}; mmdet '
                    f'needs {shown(keys)} of each'
                )


def _check_left(content: Dict[str, Any], path: str, classes: tuple, split: str) -> None:
    """Raise an error if mmdet keeps no box, and log how many of how many it keeps."""
    images = {image['id']: image for image in content['images']}
    names = {each['id']: each['name'] for each in content['categories']}
    annotations: List[Dict[str, Any]] = content['annotations']
    lost: Counter = Counter()
    first: Dict[str, Dict[str, Any]] = {}
    for annotation in annotations:
        reason = _why_lost(annotation, images, names, classes)
        lost[reason] += 1
        first.setdefault(reason, annotation)
    kept = lost.pop('', 0)
    texts = {
        reason: _SENTENCES[reason].format(
            number=first[reason].get('id', '?'),
            **{key: first[reason][key] for key in ('image_id', 'category_id', 'bbox')},
        )
        for reason in lost
    }
    known = ', '.join(f'{number} ({name})' for number, name in list(names.items())[:12])
    if not kept:
        (reason, _), *_ = lost.most_common(1)
        if reason == 'class':
            raise FirstCheckError(
                f'no box of {path} has a class of {classes}; its categories are '
                f'{shown(names.values())}; set metainfo=dict(classes={tuple(names.values())}) in '
                f'{split}_dataloader.dataset, spelt as in the file'
            )
        raise FirstCheckError(
            f'none of the {len(annotations)} boxes of {path} can be used: {texts[reason]}; its '
            f'categories are {known}, its images have ids such as {shown(images, 3)}; write the '
            'file again'
        )
    message = f'{path}: {kept} of {len(annotations)} boxes are of the classes {shown(classes)}'
    doubtful = [texts[reason] for reason in lost if reason in ('image', 'category')]
    if doubtful:
        print_log(
            f'{message}; the rest is lost, as {"; ".join(doubtful)}', 'current', logging.WARNING
        )


_SENTENCES = {
    'category': 'category_id {category_id} of annotation {number} is the id of no category',
    'image': 'image_id {image_id} of annotation {number} is the id of no image',
    'class': 'the category of annotation {number} is no class',
    'size': 'the box {bbox} of annotation {number} has no area inside of its image',
}


def _why_lost(
    annotation: Dict[str, Any], images: Dict[Any, dict], names: Dict[Any, str], classes: tuple
) -> str:
    """Why mmdet's CocoDataset drops a box, or ``''``."""
    image: Optional[dict] = images.get(annotation['image_id'])
    if image is None:
        return 'image'
    if annotation['category_id'] not in names:
        return 'category'
    if names[annotation['category_id']] not in classes:
        return 'class'
    left, top, width, height = annotation['bbox']
    inside = min(left + width, image['width']) > max(left, 0)
    inside = inside and min(top + height, image['height']) > max(top, 0)
    whole = annotation['area'] > 0 and width >= 1 and height >= 1
    return '' if inside and whole else 'size'


def _check_names(content: Dict[str, Any], path: str, classes: tuple, split: str) -> None:
    """mmdet numbers the classes in the order of the file, and skips those that it lacks."""
    names = [each['name'] for each in content['categories']]
    unknown = [name for name in classes if name not in names]
    numbered = [name for name in names if name in classes]
    if numbered != list(classes)[: len(numbered)]:
        raise FirstCheckError(
            f'the classes {shown(classes)} would get the labels of others, as mmdet numbers them '
            f'in the order of the categories of {path}: {shown(names)}; set metainfo=dict(classes='
            f'{tuple(numbered)}) in {split}_dataloader.dataset, or write the file again'
        )
    if unknown and split == 'train':
        raise FirstCheckError(
            f'{path} has no category {unknown[0]!r}, which classes names; its categories are '
            f'{shown(names)}; correct metainfo.classes of {split}_dataloader.dataset'
        )
