"""Say which folder of data a config misses, and what makes it."""

import re
from pathlib import Path

from mmengine.config import Config

# Tasks of Long Range Arena whose data this project generates.
GENERATED = ('listops', 'pathfinder')
# Data sets that are downloaded.
PUBLIC = ('data/imagenet', 'data/coco', 'data/ade', 'data/cityscapes', 'data/VOCdevkit')


def missing_folder(cfg: Config, split: str) -> str:
    """A sentence about the missing folder of a split's data, or ``''``.

    Args:
        cfg: The config.
        split: ``'train'``, ``'val'`` or ``'test'``.

    Examples:
        >>> from mmengine.config import Config
        >>> from mmlaplace.commands.data_folders import missing_folder
        >>> dataset = dict(type='CustomDataset', data_root='data/of_nobody')
        >>> missing_folder(Config(dict(test_dataloader=dict(dataset=dataset))), 'test')
        'data/of_nobody is missing; check data_root; docs/tutorials/own_config.md shows its layout'
    """
    dataset = (cfg.get(f'{split}_dataloader') or {}).get('dataset') or {}
    while inner := dataset.get('dataset') or (dataset.get('datasets') or [None])[0]:
        dataset = inner
    root = dataset.get('data_root') or ''
    if not root or '://' in root or Path(root).is_dir():
        return ''
    return f'{root} is missing; {_maker_of(root)}'


def _maker_of(folder: str) -> str:
    """The text that says how to make a data folder."""
    mini = re.fullmatch(r'(.*/)?data/mini(?:/(\w+))?', Path(folder).as_posix())
    if mini:  # also by a whole path
        options = f' --tasks {mini[2]}' if mini[2] else ''
        options += f' --out {mini[1]}data/mini' if mini[1] else ''
        return f'python tools/dataset_converters/make_mini_datasets.py{options} makes it'
    if folder.startswith(PUBLIC):
        return 'docs/train_it_yourself.md tells which files go there'
    if not folder.startswith('data/lra'):
        return 'check data_root; docs/tutorials/own_config.md shows its layout'
    return maker_of_lra(Path(folder))


def maker_of_lra(folder: Path) -> str:
    """The text that says how to make the data of a task of Long Range Arena."""
    task = folder.name.removesuffix('_mini')
    if task in GENERATED:
        size = '--size mini ' if folder.name.endswith('_mini') else ''
        return f'python tools/dataset_converters/make_lra_datasets.py {size}--tasks {task} makes it'
    return (
        f'python tools/dataset_converters/convert_lra.py {task} SOURCE makes it from the official '
        'files, and without SOURCE says which'
    )
