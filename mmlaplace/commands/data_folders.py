"""Say which folder of data a config misses, and what makes it."""

from pathlib import Path

from mmengine.config import Config

# Tasks of Long Range Arena whose data this project generates.
GENERATED = ('listops', 'pathfinder')


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
        'data/of_nobody is missing; docs/train_it_yourself.md tells which files go there'
    """
    dataset = (cfg.get(f'{split}_dataloader') or {}).get('dataset') or {}
    while 'dataset' in dataset:
        dataset = dataset['dataset']
    root = dataset.get('data_root') or ''
    if not root or '://' in root or Path(root).is_dir():
        return ''
    return f'{root} is missing; {_maker_of(root)}'


def _maker_of(folder: str) -> str:
    """The text that says how to make a data folder."""
    if folder.startswith('data/mini'):
        task = f' --tasks {Path(folder).name}' if folder.strip('/') != 'data/mini' else ''
        return f'python tools/dataset_converters/make_mini_datasets.py{task} makes it'
    if not folder.startswith('data/lra'):
        return 'docs/train_it_yourself.md tells which files go there'
    task = Path(folder).name.removesuffix('_mini')
    if task not in GENERATED:
        return f'python tools/dataset_converters/convert_lra.py {task} makes it'
    size = ' --size mini' if folder.endswith('_mini') else ''
    return f'python tools/dataset_converters/make_lra_datasets.py --tasks {task}{size} makes it'
