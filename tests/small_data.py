"""Small data sets of the three tasks in files, by the toolboxes' own classes."""

import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image

SIDE = 32
READ = dict(type='LoadImageFromFile')
PIPELINES = dict(
    mmpretrain=[READ, dict(type='PackInputs')],
    mmdet=[READ, dict(type='LoadAnnotations', with_bbox=True), dict(type='PackDetInputs')],
    mmseg=[READ, dict(type='LoadAnnotations'), dict(type='PackSegInputs')],
)
CLASSES = ('disc', 'box')


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((SIDE, SIDE, 3), 90, np.uint8)).save(path)


def write_folders(root: Path, classes=('bee', 'cat', 'dog'), count: int = 2) -> None:
    """Images in folders, as a classifier reads them."""
    for name in classes:
        for number in range(count):
            image(root / name / f'{number}.jpg')


def coco() -> dict:
    """Four images with a box each; the ids are not those of the labels."""
    images = [dict(id=i, file_name=f'{i}.jpg', height=SIDE, width=SIDE) for i in range(10, 14)]
    boxes = [
        dict(
            id=n,
            image_id=each['id'],
            category_id=(3, 7)[n % 2],
            bbox=[2, 2, 20, 20],
            area=400,
            iscrowd=0,
        )
        for n, each in enumerate(images)
    ]
    categories = [dict(id=3, name='disc'), dict(id=7, name='box')]
    return dict(images=images, annotations=boxes, categories=categories)


def write_boxes(root: Path, content=None) -> None:
    """Images, and their boxes in COCO's format."""
    content = content or coco()
    for each in content.get('images', ()):
        image(root / each['file_name'])
    (root / 'boxes.json').write_text(json.dumps(content))


def write_masks(root: Path, values=(0, 1, 255), count: int = 3) -> None:
    """Images, and masks with the values one after another."""
    (root / 'masks').mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image(root / f'images/{number}.jpg')
        mask = np.resize(np.array(values, np.uint8), (SIDE, SIDE))
        Image.fromarray(mask).save(root / f'masks/{number}.png')


def config_of(scope: str, root: Path, **options) -> dict:
    """The config of the data set of a toolbox."""
    given = dict(
        mmpretrain=dict(type='CustomDataset', data_prefix=''),
        mmdet=dict(
            type='CocoDataset',
            ann_file='boxes.json',
            data_prefix=dict(img=''),
            metainfo=dict(classes=CLASSES),
        ),
        mmseg=dict(
            type='BaseSegDataset',
            data_prefix=dict(img_path='images', seg_map_path='masks'),
            metainfo=dict(classes=CLASSES),
        ),
    )[scope]
    return dict(dict(given, data_root=str(root), pipeline=PIPELINES[scope]), **options)


def build(scope: str, cfg: dict):
    """A data set, in the scope of its toolbox."""
    pytest.importorskip(scope)
    import_module(f'{scope}.utils').register_all_modules(init_default_scope=False)
    with DefaultScope.overwrite_default_scope(scope):
        return DATASETS.build(cfg)


WRITE = dict(mmpretrain=write_folders, mmdet=write_boxes, mmseg=write_masks)
