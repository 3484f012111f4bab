"""The data sets inside of wrappers, samples of them, and the files that they name."""

import copy
import os
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

import numpy as np

from ..whole_files import DamagedImageError, check_image
from .errors import FirstCheckError, pass_over

LISTED = 20_000  # images whose names are looked for in their folders
OPENED = 256  # images whose headers are read
LOCAL = (None, 'local', 'disk', 'whole')  # file backends of this machine's files


def leaves_of(dataset: Any) -> List[Any]:
    """The data sets of mmengine inside of wrappers, such as ConcatDataset and RepeatDataset."""
    if hasattr(dataset, 'datasets'):
        return [leaf for each in dataset.datasets for leaf in leaves_of(each)]
    if hasattr(dataset, 'dataset') and not hasattr(dataset, 'indices'):  # no Subset of torch
        return leaves_of(dataset.dataset)
    if hasattr(dataset, 'get_data_info') and hasattr(dataset, 'metainfo'):
        return [dataset]
    pass_over(f'{type(dataset).__name__} has no entries that are known')
    return []


def throwaway(dataset: Any) -> Any:
    """A copy whose pipeline may change itself, as mosaics do. The data is that of the original."""
    copied = copy.copy(dataset)
    if hasattr(copied, 'pipeline'):
        copied.pipeline = copy.deepcopy(copied.pipeline)
    if hasattr(copied, 'datasets'):
        copied.datasets = [throwaway(each) for each in copied.datasets]
    if hasattr(copied, 'dataset'):
        copied.dataset = throwaway(copied.dataset)
    return copied


def evenly(count: int, most: int) -> List[int]:
    """At most so many indices, spread evenly from the first to the last."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, most)).round()})


def sampled(leaf: Any, most: int) -> Iterator[Dict[str, Any]]:
    """The entries of a data set, at most so many."""
    for index in evenly(len(leaf), most):
        yield leaf.get_data_info(index)


def classes_of(leaf: Any) -> Tuple[str, ...]:
    """The names of the classes, or ``()``."""
    names = leaf.metainfo.get('classes') or getattr(leaf, 'CLASSES', None) or ()
    return tuple(names) if isinstance(names, (list, tuple)) else ()


def source_of(leaf: Any) -> str:
    """The annotation file of a data set, or else its folder of images, for messages."""
    annotations = getattr(leaf, 'ann_file', '')
    if annotations and os.path.isfile(annotations):
        return str(annotations)
    place = str(image_folder(leaf) or annotations or getattr(leaf, 'data_root', ''))
    return place.rstrip('/') or place


def image_folder(leaf: Any) -> str:
    """The folder of a data set's images, or ``''``."""
    prefix = getattr(leaf, 'data_prefix', None)
    if isinstance(prefix, dict):  # which img_prefix of mmpretrain reads, and fails without a folder
        return str(next((prefix[key] for key in ('img_path', 'img') if prefix.get(key)), ''))
    return str(getattr(leaf, 'img_prefix', None) or prefix or '')


def check_not_empty(leaf: Any, split: str) -> None:
    """Raise a FirstCheckError for a folder of images that has none, or that there is not."""
    folder = image_folder(leaf)
    if not folder or '://' in folder:
        return
    kinds = getattr(leaf, 'img_suffix', None) or getattr(leaf, 'extensions', None) or ()
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    if not os.path.isdir(folder):
        raise FirstCheckError(
            f'there is no folder {folder} of the {split} images; check data_root and data_prefix '
            f'of {split}_dataloader.dataset'
        )
    files = (path for path in Path(folder).rglob('*') if path.is_file())
    if not any(not kinds or path.name.lower().endswith(kinds) for path in files):
        of_kind = f' whose name ends with {", ".join(kinds)}' if kinds else ''
        raise FirstCheckError(
            f'{folder} has no image{of_kind}, so there is nothing to {split} on; check data_root, '
            f'data_prefix and suffixes of {split}_dataloader.dataset'
        )


def check_images(leaf: Any, split: str) -> None:
    """Raise a FirstCheckError for images that are missing, or are none."""
    loader = _loader_of(leaf)
    if loader is None:
        return pass_over(f'{type(leaf).__name__} reads no images from files of this machine')
    paths = [info.get('img_path') for info in sampled(leaf, LISTED)]
    found = [path for path in paths if isinstance(path, str) and '://' not in path]
    missing = list(missing_files(found))
    if missing:
        raise FirstCheckError(
            f'{missing[0]} is missing ({len(missing)} of {len(found)} images of {source_of(leaf)} '
            'are); copy it there, take it out of the annotations, or check data_root and '
            f'data_prefix of {split}_dataloader.dataset'
        )
    for index in evenly(len(found), OPENED) if found else ():
        try:
            check_image(found[index], found[index])
        except DamagedImageError as error:
            raise FirstCheckError(str(error)) from None


def missing_files(paths: Iterable[str]) -> Iterator[str]:
    """Those that are missing. Each folder is listed once, as a disk in a network is slow."""
    listed: Dict[str, set] = {}
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in listed:
            listed[folder] = (
                set(os.listdir(folder or '.')) if os.path.isdir(folder or '.') else set()
            )
        if name not in listed[folder]:
            yield path


def _loader_of(leaf: Any) -> Optional[Any]:
    """The step of a pipeline that reads images from files of this machine, or None."""
    for step in getattr(leaf.pipeline, 'transforms', ()):
        if type(step).__name__ == 'LoadImageFromFile' and not step.ignore_empty:
            arguments = getattr(step, 'backend_args', None) or {}
            client = getattr(step, 'file_client_args', None) or {}
            if arguments.get('backend') in LOCAL and client.get('backend') in LOCAL:
                return step
    return None
