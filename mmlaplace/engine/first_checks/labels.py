"""Labels of whole images against the classes of a classifier."""

import os
from typing import Any, Iterator, Tuple

from .errors import FirstCheckError, pass_over, shown
from .leaves import classes_of, sampled, source_of

LABELS = 4096  # of a data set that are looked at


def check_labels(leaf: Any, split: str, model: Any) -> None:
    """Raise a FirstCheckError for labels that the head of a classifier has no place for."""
    count = getattr(getattr(model, 'head', None), 'num_classes', None)
    if not isinstance(count, int):
        return pass_over(f'{type(model).__name__} has no head with num_classes')
    largest, path = max(_labels(leaf), default=(-1, ''))
    if largest < count:
        return
    names = classes_of(leaf)
    raise FirstCheckError(
        f'{path} has the label {largest}, and the head has num_classes={count}, labels 0 to '
        f'{count - 1}'
        + (f'; {source_of(leaf)} has {len(names)} classes, {shown(names)}' if names else '')
        + f'; set num_classes={max(largest + 1, len(names))} in model.head and data_preprocessor, '
        'or correct the labels'
    )


def _labels(leaf: Any) -> Iterator[Tuple[int, str]]:
    for info in sampled(leaf, LABELS):
        label = info.get('gt_label')
        values = label if isinstance(label, (list, tuple)) else [label]
        for value in values:
            if value is not None:
                yield int(value), str(info.get('img_path', source_of(leaf)))


def check_folders(leaf: Any, split: str) -> None:
    """Compare the names of classes with the folders that mmpretrain numbers by the alphabet.

    Names of which none is a folder's may be others for the same classes, such as for ImageNet's.

    Raises:
        FirstCheckError: For other names than folders in number, and for names of which some are
            folders', and not all in their order.
    """
    root, names = getattr(leaf, 'img_prefix', None), classes_of(leaf)
    if not names or not getattr(leaf, 'with_label', False) or not os.path.isdir(root or ''):
        return
    folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    other = bool(set(names) & set(folders)) and list(names) != folders
    if len(folders) != len(names) or other:
        raise FirstCheckError(
            f'the {len(names)} classes of {split}_dataloader.dataset are {shown(names)}, and the '
            f'{len(folders)} folders of {root} in the order of their labels {shown(folders)}; '
            'leave classes out, which then are the folders, or name them in that order'
        )


def check_same_folders(other: Any, split: str, train: Any) -> None:
    """Raise a FirstCheckError if two data sets number the same classes in other ways."""
    own, given = ({name: i for i, name in enumerate(classes_of(leaf))} for leaf in (train, other))
    shifted = [name for name in given if own.get(name, given[name]) != given[name]]
    pairs = [pair for pair in zip(own, given) if pair[0] != pair[1]]
    if shifted:
        name = shifted[0]
        differs = (
            f'{name!r} is class {own[name]} of {source_of(train)}, and class {given[name]} of '
            f'{source_of(other)}'
        )
    elif pairs:
        mine, its = pairs[0]
        differs = (
            f'class {own[mine]} is {mine!r} of {source_of(train)}, and {its!r} of '
            f'{source_of(other)}'
        )
    else:
        return
    raise FirstCheckError(
        f'{differs}, as their classes are {shown(own)} and {shown(given)}; make the folders of '
        'both the same, or set the same metainfo=dict(classes=…) in train and '
        f'{split}_dataloader.dataset'
    )
