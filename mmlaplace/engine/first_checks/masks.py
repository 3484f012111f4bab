"""Values of masks against the classes of a segmentor."""

import logging
from importlib import import_module
from typing import Any, List, Optional, Set

import numpy as np
from mmengine.logging import print_log

from .errors import FirstCheckError, pass_over, shown
from .leaves import classes_of, sampled, source_of

MASKS = 64  # of a data set that are read
KNOWN = ('mmseg', 'mmcv', 'mmengine', 'mmdet', 'mmpretrain', 'mmlaplace')


def check_masks(leaf: Any, split: str, model: Any) -> None:
    """Read some masks as the pipeline does.

    Raises:
        FirstCheckError: For a value that is no class of the model and is not ignored, a mask that
            is missing or has several channels, and a ``reduce_zero_label`` that contradicts itself.
    """
    step = _mask_loader(leaf)
    heads = _heads(model)
    if step is None or not heads:
        return pass_over(f'{type(leaf).__name__} has no masks that mmseg reads')
    asked = step.reduce_zero_label
    if asked is not None and bool(asked) != bool(leaf.reduce_zero_label):
        raise FirstCheckError(
            f'LoadAnnotations in the pipeline of {split}_dataloader.dataset has reduce_zero_label='
            f'{asked}, and the data set {source_of(leaf)} has {leaf.reduce_zero_label}; set both '
            'to the same: True if 0 in a mask is to be ignored and the classes begin at 1'
        )
    count = min(head.num_classes for head in heads)
    ignored = {getattr(head, 'ignore_index', 255) for head in heads} | (
        {255} if split != 'train' else set()
    )
    seen: Set[int] = set()
    for info in sampled(leaf, MASKS):
        values = _values(step, info)
        wrong = [value for value in values if value >= count and value not in ignored]
        if wrong:
            raise FirstCheckError(_sentence(leaf, info, wrong, count, ignored))
        seen.update(values)
    if len(leaf) <= MASKS:
        _warn_unseen(leaf, count, seen - ignored, ignored)


def _warn_unseen(leaf: Any, count: int, seen: Set[int], ignored: Set[int]) -> None:
    """Warn of classes that are in no mask, as with masks of 0 and 255, or a wrong zero label."""
    unseen = sorted(set(range(count)) - seen)
    if unseen:
        names = classes_of(leaf)
        named = [names[label] if label < len(names) else label for label in unseen]
        print_log(
            f'none of the masks of {source_of(leaf)} has the classes {shown(named)}: their labels '
            f'are {shown(sorted(seen))}, and ignored is {shown(sorted(ignored))}; check the masks, '
            'and reduce_zero_label of the data set',
            'current',
            logging.WARNING,
        )


def check_same_zero(other: Any, split: str, train: Any) -> None:
    """Raise a FirstCheckError if 0 in a mask is ignored in one of two data sets alone."""
    own, given = (getattr(leaf, 'reduce_zero_label', None) for leaf in (train, other))
    if type(train) is type(other) and own != given and classes_of(train) == classes_of(other):
        raise FirstCheckError(
            f'reduce_zero_label is {own} in the data set of {source_of(train)} and {given} in that '
            f'of {source_of(other)}, so their labels differ by one; set both in train and '
            f'{split}_dataloader.dataset'
        )


def _mask_loader(leaf: Any) -> Optional[Any]:
    """The step of a pipeline that reads masks, or None, where another step may change them."""
    if not hasattr(leaf, 'reduce_zero_label'):
        return None
    steps = list(getattr(leaf.pipeline, 'transforms', ()))
    if any(type(step).__module__.partition('.')[0] not in KNOWN for step in steps):
        return None
    kind = import_module('mmseg.datasets.transforms').LoadAnnotations
    return next((step for step in steps if type(step) is kind), None)


def _heads(model: Any) -> List[Any]:
    """The heads that take a mask as it is, one after another in a cascade."""
    head: Any = getattr(model, 'decode_head', None)
    heads = list(head) if hasattr(head, '__iter__') else [head]
    return [each for each in heads if isinstance(getattr(each, 'num_classes', None), int)]


def _values(step: Any, info: dict) -> List[int]:
    path = info.get('seg_map_path')
    try:
        mask = step.transform(dict(info, seg_fields=[]))['gt_seg_map']
    except FileNotFoundError:
        raise FirstCheckError(
            f'the mask {path} of {info.get("img_path")} is missing; add it, or check data_prefix, '
            'img_suffix and seg_map_suffix'
        ) from None
    if mask.ndim != 2:
        raise FirstCheckError(
            f'the mask {path} has {mask.shape[-1]} channels, and a mask has one, with the number '
            'of a class in each pixel; convert its colours to numbers'
        )
    return np.unique(mask).tolist()


def _sentence(leaf: Any, info: dict, wrong: List[int], count: int, ignored: Set[int]) -> str:
    reduced = bool(leaf.reduce_zero_label)
    in_file = wrong[0] + 1 if reduced else wrong[0]
    fix = (
        'with reduce_zero_label=True, 0 is ignored and the classes are 1 to '
        f'{count}; correct the mask, num_classes or reduce_zero_label'
        if reduced
        else f'the classes are 0 to {count - 1}; correct the mask or num_classes, or set '
        'reduce_zero_label=True in the data set if 0 is to be ignored and the classes begin at 1'
    )
    return (
        f'{info.get("seg_map_path")} has the value {in_file}, and the decode_head has num_classes='
        f'{count} and ignores {", ".join(map(str, sorted(ignored)))}: {fix}'
    )
