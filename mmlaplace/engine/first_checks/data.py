"""The data of a run, in all three tasks: each part of it, and one image as the model gets it."""

import random
from collections import Counter
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import DATASETS, DefaultScope

from .boxes import check_boxes, is_coco
from .errors import FirstCheckError, pass_over, shown
from .heads import check_heads
from .labels import check_folders, check_labels, check_same_folders
from .leaves import (
    check_images,
    check_not_empty,
    classes_of,
    evenly,
    leaves_of,
    source_of,
    throwaway,
)
from .masks import check_masks, check_same_zero

# By the toolbox: checks of a data set and the model, and of a data set and that of training.
OF_MODEL: Dict[str, Sequence[Callable]] = dict(
    mmpretrain=(check_labels,), mmdet=(check_heads,), mmseg=(check_heads, check_masks)
)
OF_TWO: Dict[str, Sequence[Callable]] = dict(
    mmpretrain=(check_same_folders,), mmseg=(check_same_zero,)
)


def check_data(datasets: Mapping[str, Any], model: Any, scope: Optional[str]) -> List[str]:
    """Check data sets that are built, and read one image of each.

    Args:
        datasets: By their split, ``'train'``, ``'val'`` or ``'test'``. A wrapper, such as
            ConcatDataset, is looked into.
        model: The model.
        scope: The toolbox, ``'mmpretrain'``, ``'mmdet'`` or ``'mmseg'``.

    Returns:
        A line for each split, with its images, its classes and the image that was read.

    Raises:
        FirstCheckError: For data that the model cannot be trained or tested on.
    """
    lines: List[str] = []
    first: List[Any] = []
    for split, dataset in datasets.items():
        leaves = leaves_of(dataset)
        for leaf in leaves:
            for check in (check_source, check_images):
                _try(check, leaf, split)
            for check in OF_MODEL.get(scope or '', ()):
                _try(check, leaf, split, model)
            for check in OF_TWO.get(scope or '', ()) if first else ():
                _try(check, leaf, split, first[0])
        first = first or leaves
        lines.append(read_one(dataset, leaves, split))
    return lines


def _try(check: Callable, leaf: Any, split: str, *others: Any) -> None:
    """Make a check of a data set, which may be of a kind that it does not know."""
    try:
        check(leaf, split, *others)
    except FirstCheckError:
        raise
    except Exception as error:  # of another project's data set, which may be right all the same
        pass_over(f'{check.__name__} of a {type(leaf).__name__}: {type(error).__name__}: {error}')


def check_source(leaf: Any, split: str, any_size: bool = False) -> None:
    """Check what a data set reads, also where it could not be read.

    Args:
        leaf: The data set, which may be built with ``lazy_init=True``.
        split: As in :func:`check_data`.
        any_size: As in :func:`check_boxes`.

    Raises:
        FirstCheckError: For files that are missing, empty or broken, or that fit no class.
    """
    if is_coco(leaf):
        check_boxes(leaf, split, any_size)
    elif not getattr(leaf, 'ann_file', ''):
        check_not_empty(leaf, split)
        check_folders(leaf, split)


def explain_data(cfg: Config, splits: Sequence[str]) -> str:
    """What is wrong with the data of a config whose data sets cannot be built, or ``''``.

    Args:
        cfg: The config.
        splits: Those of :func:`check_data` that a run builds.
    """
    with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
        for split in splits:
            loader = cfg.get(f'{split}_dataloader') or {}
            for dataset in _leaf_configs(loader.get('dataset')):
                try:
                    leaf = DATASETS.build(dict(dataset, lazy_init=True, pipeline=[]))
                except Exception as error:  # of any data set, also of one that cannot be lazy
                    pass_over(f'{split} data cannot be looked into: {error}')
                    continue
                try:
                    check_source(leaf, split, any_size=True)
                except FirstCheckError as error:
                    return str(error)
    return ''


def _leaf_configs(dataset: Any) -> Iterator[Dict[str, Any]]:
    """The configs of data sets inside of those of wrappers."""
    if isinstance(dataset, dict) and isinstance(dataset.get('datasets'), (list, tuple)):
        for each in dataset['datasets']:
            yield from _leaf_configs(each)
    elif isinstance(dataset, dict) and isinstance(dataset.get('dataset'), dict):
        yield from _leaf_configs(dataset['dataset'])
    elif isinstance(dataset, dict):
        yield dataset


def read_one(dataset: Any, leaves: List[Any], split: str) -> str:
    """Read an image through the pipeline, and describe it in one line.

    It is the first of some that has a box, if there is one. Random numbers stay as they were.

    Raises:
        FirstCheckError: If there is none, or if a step of the pipeline raises an error.
    """
    if not leaves:
        pass_over(f'no image of {type(dataset).__name__} is read')
        return f'{split}: {type(dataset).__name__}'
    if not len(dataset):
        raise FirstCheckError(
            f'{source_of(leaves[0])} leaves no image to {split} on; check its entries, and '
            f'filter_cfg and indices of {split}_dataloader.dataset'
        )
    names = classes_of(leaves[0])
    about = f'{split}: {len(dataset)} images of {source_of(leaves[0])}'
    about += f', {len(names)} classes ({shown(names, 5)})' if names else ''
    with same_randomness():
        copied, described = throwaway(dataset), ''
        for index in evenly(len(copied), 8):
            try:
                item = copied[index]
            except Exception as error:  # of any step of a pipeline
                raise FirstCheckError(
                    f'image {index} of the {split} data of {source_of(leaves[0])} does not pass '
                    f'its pipeline: {type(error).__name__}: {error}'
                ) from error
            described, objects = _describe(item, names)
            if objects:
                break
    return f'{about}; {described}'


def _describe(item: Any, names: tuple) -> tuple:
    """A text on a packed image, and whether something is on it."""
    if not isinstance(item, dict) or 'inputs' not in item:
        return f'one is a {type(item).__name__}', True
    inputs = item['inputs']
    sample: Any = item.get('data_samples')
    if isinstance(inputs, (list, tuple)):  # of several views
        inputs = inputs[0]
        sample = sample[0] if isinstance(sample, (list, tuple)) else sample
    shape = tuple(getattr(inputs, 'shape', ()))
    place = getattr(sample, 'img_path', None) or 'one'
    text, objects = f'{place} is {shape} {getattr(inputs, "dtype", "")}'.rstrip(), True
    if hasattr(sample, 'gt_label'):
        labels = sample.gt_label.flatten().tolist()
        text += f' of class {shown(_named(labels, names), 5)}'
    elif 'gt_instances' in (sample or ()):
        labels = sample.gt_instances.labels.tolist()
        objects = bool(labels)
        counts = Counter(_named(labels, names)).items()
        text += f' with {", ".join(f"{count} {name}" for name, count in counts) or "no box"}'
    elif 'gt_sem_seg' in (sample or ()):
        labels = np.unique(sample.gt_sem_seg.data.numpy()).tolist()
        text += f' with a mask of {shown(_named(labels, names), 5)}'
    return text, objects


def _named(labels: List[int], names: tuple) -> List[Any]:
    return [names[label] if 0 <= label < len(names) else label for label in labels]


@contextmanager
def same_randomness() -> Iterator[None]:
    """A context after which random numbers are those that would have come without it."""
    states: Dict[str, Any] = dict(
        python=random.getstate(), numpy=np.random.get_state(), torch=torch.get_rng_state()
    )
    try:
        yield
    finally:
        random.setstate(states['python'])
        np.random.set_state(states['numpy'])
        torch.set_rng_state(states['torch'])
