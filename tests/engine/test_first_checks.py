"""What cannot work is refused before a run's first step; what is right passes, and is written down.

The messages name the file, the value and the fix.
"""

import json
import random
import re
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import ROOT
from mmengine.config import Config
from mmengine.model import BaseTTAModel
from mmengine.registry import TRANSFORMS
from PIL import Image
from small_backbone import build as backbone
from small_data import (
    SIDE,
    WRITE,
    build,
    coco,
    config_of,
    write_boxes,
    write_folders,
    write_masks,
)

from mmlaplace.engine import FirstCheckError, check_config
from mmlaplace.engine.first_checks import (
    check_data,
    check_maps,
    check_weights,
    explain_data,
    leaves,
    weights,
)
from mmlaplace.model_zoo import build_model
from mmlaplace.models import PVT

SCOPES = ('mmpretrain', 'mmdet', 'mmseg')


class Head(nn.Module):
    def __init__(self, num_classes: int, **others) -> None:
        super().__init__()
        self.num_classes = num_classes
        vars(self).update(others)


def model_of(scope: str, classes: int) -> nn.Module:
    """A module with the head of a toolbox's model."""
    model = nn.Module()
    part = dict(mmpretrain='head', mmdet='bbox_head', mmseg='decode_head')[scope]
    model.add_module(part, Head(classes, ignore_index=255))
    return model


def check(scope: str, dataset, classes=None, split: str = 'train') -> list:
    count = classes or {'mmpretrain': 3}.get(scope, 2)
    return check_data({split: dataset}, model_of(scope, count), scope)


def assert_refused(message: str, scope: str, dataset, **options) -> None:
    with pytest.raises(FirstCheckError, match=message) as raised:
        check(scope, dataset, **options)
    assert '\n' not in str(raised.value)


@pytest.fixture
def said(monkeypatch) -> list:
    """The warnings that were logged, and which checks were passed over."""
    lines: list = []
    for module in ('boxes', 'masks'):
        place = sys.modules[f'mmlaplace.engine.first_checks.{module}']
        monkeypatch.setattr(place, 'print_log', lambda text, *_: lines.append(text))
    for module in ('boxes', 'masks', 'heads', 'labels', 'leaves', 'data', 'maps'):
        place = sys.modules[f'mmlaplace.engine.first_checks.{module}']
        monkeypatch.setattr(place, 'pass_over', lambda text: lines.append(f'passed over: {text}'))
    return lines


@pytest.mark.parametrize('scope', SCOPES)
def test_right_data_passes_and_one_image_is_written_down(scope, tmp_path, said):
    WRITE[scope](tmp_path)
    (line,) = check(scope, build(scope, config_of(scope, tmp_path)))
    assert said == []
    assert re.fullmatch(
        dict(
            mmpretrain=r'train: 6 images of \S+, 3 classes \(bee, cat, dog\); \S+/bee/0.jpg is '
            r'\(3, 32, 32\) torch.uint8 of class bee',
            mmdet=r'train: 4 images of \S+boxes.json, 2 classes \(disc, box\); \S+/10.jpg is '
            r'\(3, 32, 32\) torch.uint8 with 1 disc',
            mmseg=r'train: 3 images of \S+/images, 2 classes \(disc, box\); \S+/0.jpg is '
            r'\(3, 32, 32\) torch.uint8 with a mask of disc, box, 255',
        )[scope],
        line,
    )


@pytest.mark.sampled(4, 4)
@pytest.mark.parametrize('scope', SCOPES)
@pytest.mark.parametrize('wrapper', ['RepeatDataset', 'ConcatDataset', 'indices'])
def test_wrappers_are_looked_into(scope, wrapper, tmp_path):
    WRITE[scope](tmp_path)
    inner = config_of(scope, tmp_path)
    cfg = dict(
        RepeatDataset=dict(type='RepeatDataset', dataset=inner, times=2),
        ConcatDataset=dict(type='ConcatDataset', datasets=[inner, inner]),
        indices=dict(inner, indices=2),
    )[wrapper]
    dataset = build(scope, cfg)
    (line,) = check(scope, dataset)
    assert f'train: {len(dataset)} images' in line
    if wrapper != 'indices':  # by which the second and third class are left out
        assert_refused('num_classes=1', scope, dataset, classes=1)


def test_a_data_set_that_is_not_known_is_passed_over(said):
    images = [dict(inputs=torch.zeros(3, 8, 8)) for _ in range(2)]
    for dataset in (images, torch.utils.data.Subset(images, [0])):
        assert check('mmdet', dataset) == [f'train: {type(dataset).__name__}']
    assert len(said) == 4 and all(line.startswith('passed over') for line in said)


def test_a_check_that_fails_by_itself_refuses_no_run(tmp_path, said):
    write_boxes(tmp_path)
    dataset = build('mmdet', config_of('mmdet', tmp_path))
    with mock.patch.object(leaves, '_loader_of', side_effect=KeyError('of another project')):
        assert check('mmdet', dataset)
    assert "passed over: check_images of a CocoDataset: KeyError: 'of another project'" in said


def test_random_numbers_and_pipelines_stay_as_they_were(tmp_path):
    """A hook that draws numbers would change the training."""

    class Counts:
        calls = 0

        def __call__(self, results):
            self.calls += 1
            random.random(), np.random.rand(), torch.rand(1)
            return results

    write_boxes(tmp_path)
    cfg = config_of('mmdet', tmp_path)
    counts = Counts()
    dataset = build('mmdet', dict(cfg, pipeline=[*cfg['pipeline'][:2], counts, cfg['pipeline'][2]]))

    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()

    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    without = draw()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    check('mmdet', dataset)
    assert draw() == without and counts.calls == 0


# Detection.


def changed(**changes) -> dict:
    """The file after a change of each entry of a part."""
    content = coco()
    for part, change in changes.items():
        for entry in content[part]:
            change(entry)
    return content


def set_to(**values):
    return lambda entry: entry.update(values)


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        (
            changed(annotations=set_to(image_id=5)),
            r'none of the 4 boxes of \S+boxes.json can be used: image_id 5 of annotation 0 is the '
            r'id of no image; its categories are 3 \(disc\), 7 \(box\), .* such as 10, 11',
        ),
        (
            changed(annotations=set_to(category_id=9)),
            r'category_id 9 of annotation 0 is the id of no category; .*3 \(disc\)',
        ),
        (
            changed(annotations=set_to(bbox=[40, 2, 20, 20])),
            r'the box \[40, 2, 20, 20\] of annotation 0 has no area inside of its image',
        ),
        (changed(annotations=set_to(area=0)), r'box \[2, 2, 20, 20\] of annotation 0 has no area'),
        (
            changed(categories=lambda entry: entry.update(name=entry['name'] + 's')),
            r"no box of \S+boxes.json has a class of \('disc', 'box'\); its categories are discs, "
            r"boxs; set metainfo=dict\(classes=\('discs', 'boxs'\)\) in train_dataloader.dataset",
        ),
        (
            dict(coco(), categories=coco()['categories'][::-1]),
            r'numbers them in the order of the categories of \S+boxes.json: box, disc; set '
            r"metainfo=dict\(classes=\('box', 'disc'\)\) in train_dataloader",
        ),
        (
            dict(coco(), categories=coco()['categories'][:1]),
            r"boxes.json has no category 'box', which classes names; its categories are disc",
        ),
        (
            changed(annotations=lambda entry: entry.pop('area')),
            r"annotations without area, such as \{'id': 0, .*mmdet needs image_id, category_id, b",
        ),
        (dict(coco(), annotations=[]), "has no annotations, which COCO's format has as a list"),
        ({'info': 1}, 'has no images, which .* its parts are info'),
    ],
)
def test_boxes_that_match_nothing_are_refused(content, message, tmp_path):
    """Also where mmdet could not build the data set, as of a file without annotations' areas."""
    write_boxes(tmp_path, content)
    cfg = config_of('mmdet', tmp_path)
    lazy = build('mmdet', dict(cfg, lazy_init=True))
    loader = dict(dataset=dict(type='RepeatDataset', times=2, dataset=cfg))
    found = explain_data(Config(dict(default_scope='mmdet', train_dataloader=loader)), ['train'])
    assert re.search(message, found) and str(tmp_path) in found
    try:
        lazy.full_init()
    except (KeyError, ValueError):
        return
    assert_refused(message, 'mmdet', lazy)


def test_a_test_set_may_have_no_boxes_and_lack_a_class(tmp_path):
    for content in (
        dict(coco(), annotations=[]),
        dict(coco(), categories=coco()['categories'][:1]),
    ):
        write_boxes(tmp_path, content)
        assert check('mmdet', build('mmdet', config_of('mmdet', tmp_path)), split='test')


def test_boxes_that_are_lost_are_counted_in_a_warning(tmp_path, said):
    content = coco()
    content['annotations'][1]['image_id'] = 99
    content['annotations'][2]['category_id'] = 98
    write_boxes(tmp_path, content)
    check('mmdet', build('mmdet', config_of('mmdet', tmp_path)))
    (line,) = said
    assert 'boxes.json: 2 of 4 boxes are of the classes disc, box' in line
    assert 'image_id 99 of annotation 1' in line and 'category_id 98 of annotation 2' in line


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ('{"images":\n [1,,2]}', r'boxes.json is no JSON from line 2, column 5 on'),
        ('[]', r'boxes.json is a list, and'),
        (None, r'there is no annotation file \S+boxes.json; check data_root and ann_file'),
        (b'{"a": "\xff"}', r'boxes.json is no JSON .*UTF-8'),
    ],
)
def test_a_broken_annotation_file_is_named_with_its_line(text, message, tmp_path):
    path = tmp_path / 'boxes.json'
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    loader = dict(dataset=config_of('mmdet', tmp_path))
    cfg = Config(dict(default_scope='mmdet', val_dataloader=loader))
    build('mmdet', dict(config_of('mmdet', tmp_path), lazy_init=True))  # registers
    assert re.search(message, explain_data(cfg, ['train', 'val']))
    assert explain_data(cfg, ['train']) == ''


def test_a_large_annotation_file_is_read_once(tmp_path, said, monkeypatch):
    write_boxes(tmp_path, changed(annotations=set_to(category_id=9)))
    dataset = build('mmdet', config_of('mmdet', tmp_path))
    monkeypatch.setattr(sys.modules['mmlaplace.engine.first_checks.boxes'], 'LARGEST', 9)
    assert check('mmdet', dataset) and 'is large' in said[0]


@pytest.mark.parametrize('classes', [1, 3])
@pytest.mark.parametrize('scope', ['mmdet', 'mmseg'])
def test_heads_of_other_classes_are_refused(scope, classes, tmp_path):
    WRITE[scope](tmp_path)
    message = (
        rf'model.(bbox|decode)_head has num_classes={classes}, and the train data of \S+ has 2 '
        'classes, disc, box; set num_classes=2 there'
    )
    assert_refused(message, scope, build(scope, config_of(scope, tmp_path)), classes=classes)


def test_classes_of_a_region_proposal_and_of_masks_of_no_class_are_their_own(tmp_path):
    write_boxes(tmp_path)
    dataset, model = build('mmdet', config_of('mmdet', tmp_path)), model_of('mmdet', 2)
    model.rpn_head, model.mask_head = Head(1), Head(80, class_agnostic=True)
    assert check_data(dict(train=dataset), model, 'mmdet')
    model.mask_head.class_agnostic = False
    with pytest.raises(FirstCheckError, match='model.mask_head has num_classes=80'):
        check_data(dict(train=dataset), model, 'mmdet')


# Classification.


def test_a_head_with_fewer_classes_than_folders_is_refused(tmp_path):
    write_folders(tmp_path)
    dataset = build('mmpretrain', config_of('mmpretrain', tmp_path))
    message = (
        r'dog/1.jpg has the label 2, and the head has num_classes=2, labels 0 to 1; \S+ has 3 '
        'classes, bee, cat, dog; set num_classes=3 in model.head and data_preprocessor'
    )
    assert_refused(message, 'mmpretrain', dataset, classes=2)
    assert check('mmpretrain', dataset, classes=1000)  # of which three are used


def test_labels_of_a_list_and_of_several_classes_are_compared_too(tmp_path):
    write_folders(tmp_path)
    (tmp_path / 'list.txt').write_text('bee/0.jpg 0\ncat/1.jpg 7\n')
    listed = build('mmpretrain', config_of('mmpretrain', tmp_path, ann_file='list.txt'))
    assert_refused(r'cat/1.jpg has the label 7, .*set num_classes=8', 'mmpretrain', listed)
    several = json.dumps(
        dict(
            metainfo=dict(classes=['bee', 'cat', 'dog']),
            data_list=[dict(img_path='bee/0.jpg', gt_label=[0, 5])],
        )
    )
    (tmp_path / 'several.json').write_text(several)
    options = dict(type='MultiLabelDataset', ann_file='several.json')
    dataset = build('mmpretrain', config_of('mmpretrain', tmp_path, **options))
    assert_refused('bee/0.jpg has the label 5', 'mmpretrain', dataset)


def test_names_of_classes_in_another_order_than_the_folders_are_refused(tmp_path):
    write_folders(tmp_path)
    loader = dict(dataset=config_of('mmpretrain', tmp_path))
    for classes, message in (
        (('cat', 'bee', 'dog'), 'dataset are cat, bee, dog, and the 3 folders .* bee, cat, dog'),
        (('bee', 'cat'), 'the 2 classes of train_dataloader.dataset are bee, cat, and the 3 fold'),
        (('bee', 'cow', 'dog'), 'dataset are bee, cow, dog, and the 3 folders .* bee, cat, dog'),
    ):
        loader['dataset']['metainfo'] = dict(classes=classes)
        cfg = Config(dict(default_scope='mmpretrain', train_dataloader=loader))
        assert re.search(message, explain_data(cfg, ['train']))
    other_words = dict(classes=('Biene', 'Katze', 'Hund'))
    assert check('mmpretrain', build('mmpretrain', dict(loader['dataset'], metainfo=other_words)))


def test_a_validation_set_that_numbers_classes_otherwise_is_refused(tmp_path):
    write_folders(tmp_path / 'train')
    write_folders(tmp_path / 'val', classes=('bee', 'dog'))
    datasets = {
        split: build('mmpretrain', config_of('mmpretrain', tmp_path / split))
        for split in ('train', 'val')
    }
    model = model_of('mmpretrain', 3)
    message = r"'dog' is class 2 of \S+train, and class 1 of \S+val, as their classes are"
    with pytest.raises(FirstCheckError, match=message):
        check_data(datasets, model, 'mmpretrain')
    write_folders(tmp_path / 'val', classes=('cat',))
    datasets['val'] = build('mmpretrain', config_of('mmpretrain', tmp_path / 'val'))
    assert len(check_data(datasets, model, 'mmpretrain')) == 2


def test_a_validation_set_with_another_class_in_the_place_of_one_is_refused(tmp_path):
    write_folders(tmp_path / 'train', classes=('bee', 'cat', 'dog'))
    write_folders(tmp_path / 'val', classes=('bee', 'cow', 'dog'))
    datasets = {
        split: build('mmpretrain', config_of('mmpretrain', tmp_path / split))
        for split in ('train', 'val')
    }
    message = r"class 1 is 'cat' of \S+train, and 'cow' of \S+val, as their classes are bee, cat"
    with pytest.raises(FirstCheckError, match=message):
        check_data(datasets, model_of('mmpretrain', 3), 'mmpretrain')


@pytest.mark.parametrize('scope', ['mmpretrain', 'mmseg'])
def test_a_folder_without_images_is_named_with_the_suffixes(scope, tmp_path):
    cfg = Config(
        dict(default_scope=scope, train_dataloader=dict(dataset=config_of(scope, tmp_path / 'a')))
    )
    build(scope, config_of(scope, tmp_path, lazy_init=True))  # registers
    assert re.search(r'there is no folder \S+/a\S* of the train im', explain_data(cfg, ['train']))
    folder = tmp_path / 'a' / ('bee' if scope == 'mmpretrain' else 'images')
    folder.mkdir(parents=True)
    (folder / 'notes.txt').touch()
    message = r'a\S* has no image whose name ends with .*\.jpg.*, so there is nothing to train on'
    assert re.search(message, explain_data(cfg, ['train']))


# Images.


def test_the_image_that_is_written_down_has_a_box_if_one_of_the_first_has(tmp_path):
    content = coco()
    del content['annotations'][0]
    write_boxes(tmp_path, content)
    (line,) = check('mmdet', build('mmdet', config_of('mmdet', tmp_path)))
    assert '11.jpg is (3, 32, 32) torch.uint8 with 1 box' in line


def test_validation_and_test_are_each_compared_with_training(tmp_path):
    write_folders(tmp_path / 'train')
    write_folders(tmp_path / 'other', classes=('bee', 'dog'))
    train, other = (
        build('mmpretrain', config_of('mmpretrain', tmp_path / name)) for name in ('train', 'other')
    )
    datasets = dict(train=train, val=train, test=other)
    with pytest.raises(FirstCheckError, match=r"'dog' is class 2 of \S+train, and class 1 of"):
        check_data(datasets, model_of('mmpretrain', 3), 'mmpretrain')


def test_a_data_set_that_leaves_no_image_is_refused(tmp_path):
    write_folders(tmp_path)
    dataset = build('mmpretrain', config_of('mmpretrain', tmp_path, serialize_data=False))
    dataset.data_list = []
    assert_refused(rf'{tmp_path} leaves no image to train on; .*filter_cfg', 'mmpretrain', dataset)


def test_images_in_memory_have_no_folder():
    """As those of MNIST, whose img_prefix raises."""
    pytest.importorskip('mmpretrain')
    from mmpretrain.datasets import MNIST

    dataset = MNIST.__new__(MNIST)
    dataset.data_prefix, dataset.ann_file, dataset.data_root = dict(root='data/mnist'), '', 'data'
    assert leaves.image_folder(dataset) == '' and leaves.source_of(dataset) == 'data'


def test_a_sample_is_spread_from_the_first_to_the_last():
    assert leaves.evenly(5, 9) == [0, 1, 2, 3, 4] and leaves.evenly(101, 3) == [0, 50, 100]
    assert leaves.evenly(1, 9) == [0]


@pytest.mark.parametrize('scope', SCOPES)
def test_images_that_are_missing_or_text_are_named(scope, tmp_path):
    WRITE[scope](tmp_path)
    dataset = build(scope, config_of(scope, tmp_path))
    path = Path(dataset.get_data_info(len(dataset) - 1)['img_path'])
    path.write_text('not an image')
    assert_refused(f'{path} is not a complete image; copy or download it again', scope, dataset)
    path.unlink()
    message = rf'{path} is missing \(1 of {len(dataset)} images of \S+ are\); copy it there'
    assert_refused(message, scope, dataset)


def test_images_that_are_not_in_files_are_not_looked_for(tmp_path, said):
    write_folders(tmp_path)
    cfg = config_of('mmpretrain', tmp_path)
    for step in (dict(type='LoadImageFromFile', ignore_empty=True), dict(type='Resize', scale=8)):
        dataset = build('mmpretrain', dict(cfg, pipeline=[step, dict(type='PackInputs')]))
        leaves.check_images(dataset, 'train')
    assert len(said) == 2 and 'reads no images from files' in said[0]


def test_a_step_of_the_pipeline_that_fails_is_named_before_the_workers(tmp_path):
    write_boxes(tmp_path)
    cfg = config_of('mmdet', tmp_path)
    steps = [cfg['pipeline'][0], dict(type='RandomFlip', prob=1.0), dict(type='Mosaic')]
    dataset = build('mmdet', dict(cfg, pipeline=steps))
    message = r'image 0 of the train data of \S+boxes.json does not pass its pipeline: \w+Error'
    assert_refused(message, 'mmdet', dataset)


# Segmentation.


@pytest.mark.parametrize(
    ('values', 'options', 'message'),
    [
        (
            (0, 1, 9),
            {},
            r'masks/0.png has the value 9, and the decode_head has num_classes=2 and ignores 255: '
            'the classes are 0 to 1; .* set reduce_zero_label=True in the data set',
        ),
        (
            (0, 1, 3),
            dict(reduce_zero_label=True),
            'has the value 3, .*: with reduce_zero_label=True, 0 is ignored and the classes are 1 '
            'to 2; correct',
        ),
    ],
)
def test_a_mask_value_without_a_class_is_named_with_its_file(values, options, message, tmp_path):
    write_masks(tmp_path, values)
    assert_refused(message, 'mmseg', build('mmseg', config_of('mmseg', tmp_path, **options)))


def test_one_mask_of_many_is_found_up_to_the_number_that_is_read(tmp_path):
    write_masks(tmp_path, count=40)
    Image.fromarray(np.full((SIDE, SIDE), 9, np.uint8)).save(tmp_path / 'masks/17.png')
    assert_refused(
        'masks/17.png has the value 9', 'mmseg', build('mmseg', config_of('mmseg', tmp_path))
    )


def test_what_is_ignored_is_that_of_the_head_and_in_a_test_that_of_the_metric(tmp_path):
    write_masks(tmp_path, (0, 1, 254))
    dataset, model = build('mmseg', config_of('mmseg', tmp_path)), model_of('mmseg', 2)
    model.decode_head.ignore_index = 254
    assert check_data(dict(train=dataset), model, 'mmseg')
    write_masks(tmp_path, (0, 1, 255))
    assert check_data(dict(test=dataset), model, 'mmseg')
    with pytest.raises(FirstCheckError, match='value 255, .* ignores 254'):
        check_data(dict(train=dataset), model, 'mmseg')


def test_zero_labels_that_contradict_one_another_are_refused(tmp_path):
    write_masks(tmp_path, (0, 1, 2))
    cfg = config_of('mmseg', tmp_path, reduce_zero_label=True)
    right = build('mmseg', cfg)
    assert check('mmseg', right)
    steps = [cfg['pipeline'][0], dict(type='LoadAnnotations', reduce_zero_label=False)]
    contrary = build('mmseg', dict(cfg, pipeline=[*steps, cfg['pipeline'][2]]))
    message = r'has reduce_zero_label=False, and the data set \S+images has True; set both'
    assert_refused(message, 'mmseg', contrary)
    write_masks(tmp_path, (0, 1))
    datasets = dict(train=right, val=build('mmseg', config_of('mmseg', tmp_path)))
    with pytest.raises(FirstCheckError, match='reduce_zero_label is True in .* and False in'):
        check_data(datasets, model_of('mmseg', 2), 'mmseg')


def test_masks_that_are_missing_or_coloured_are_named(tmp_path):
    write_masks(tmp_path)
    dataset = build('mmseg', config_of('mmseg', tmp_path))
    Image.fromarray(np.zeros((SIDE, SIDE, 3), np.uint8)).save(tmp_path / 'masks/1.png')
    assert_refused('masks/1.png has 3 channels, and a mask has one', 'mmseg', dataset)
    (tmp_path / 'masks/1.png').unlink()
    assert_refused(r'the mask \S+1.png of \S+1.jpg is missing; add it', 'mmseg', dataset)


def test_masks_of_0_and_255_give_a_warning(tmp_path, said):
    write_masks(tmp_path, (0, 255))
    check('mmseg', build('mmseg', config_of('mmseg', tmp_path)))
    (line,) = said
    assert 'has the classes box: their labels are 0, and ignored is 255' in line


class Halves:
    """A user's step, which gives masks other values."""

    def __call__(self, results):
        results['gt_seg_map'] //= 9
        return results


def test_masks_that_a_step_of_the_user_changes_are_passed_over(tmp_path, said):
    write_masks(tmp_path, (0, 9))
    cfg = config_of('mmseg', tmp_path)
    with mock.patch.dict(TRANSFORMS.module_dict, Halves=Halves):
        steps = [*cfg['pipeline'][:2], dict(type='Halves'), cfg['pipeline'][2]]
        (line,) = check('mmseg', build('mmseg', dict(cfg, pipeline=steps)))
    assert 'with a mask of disc, box' in line and 'has no masks that mmseg reads' in said[0]


# Configs.


def test_names_of_weights_are_refused_without_a_network_where_a_run_loads_them():
    right, wrong = 'mmlaplace://ravlt-tiny', 'mmlaplace://ravlt-tyni'
    backbone = dict(type='RAVLT', init_cfg=[dict(type='Pretrained', checkpoint=wrong)])
    model = dict(type='A', backbone=backbone)
    check_config(Config(dict(load_from=right, unused=wrong)))
    check_config(Config(dict(model=model)), train=False)  # a test loads no init_cfg
    message = "mmlaplace://ravlt-tyni: no released weights of 'ravlt-tyni'.*similar names are ravlt"
    for cfg in (dict(model=model), dict(load_from=wrong)):
        with pytest.raises(FirstCheckError, match=message):
            check_config(Config(cfg))


def test_a_device_that_mmengine_will_not_take_and_amp_without_a_gpu_are_refused(monkeypatch):
    amp = Config(dict(optim_wrapper=dict(type='AmpOptimWrapper')))
    place = sys.modules['mmlaplace.engine.first_checks.configs']
    monkeypatch.setattr(place, 'get_device', lambda: 'cpu')
    check_config(Config(dict(device='cpu')))
    check_config(amp, train=False)
    with pytest.raises(
        FirstCheckError, match="device='cuda:0' has no effect: mmengine takes the cp"
    ):
        check_config(Config(dict(device='cuda:0')))
    with pytest.raises(FirstCheckError, match='--amp .* needs a GPU, .* leave out --amp'):
        check_config(amp)
    monkeypatch.setattr(place, 'get_device', lambda: 'cuda')
    check_config(amp)
    with pytest.raises(FirstCheckError, match='CUDA_VISIBLE_DEVICES=-1 in front'):
        check_config(Config(dict(device='cpu')))


def test_a_metric_of_more_classes_than_there_are_is_refused():
    for topk, classes, refused in (
        ((1, 5), 3, True),
        ((1, 5), 5, False),
        (1, 3, False),
        ((), 3, False),
    ):
        evaluator = [dict(type='Other'), dict(type='Accuracy', topk=topk)]
        cfg = Config(dict(model=dict(head=dict(num_classes=classes)), val_evaluator=evaluator))
        check_config(cfg, train=False)
        if refused:
            with pytest.raises(
                FirstCheckError, match=r'val_evaluator has topk=\(1, 5\), .*=3; set'
            ):
                check_config(cfg)
        else:
            check_config(cfg)


@pytest.mark.parametrize('head', ['mask-rcnn_fpn_1x_coco', 'fpn_4xb4-160k_ade20k-512x512'])
def test_one_map_in_the_place_of_a_pyramid_is_refused(head, monkeypatch, said):
    path = ROOT / f'configs/heads/{head}.py'
    cfg = Config.fromfile(path)
    pytest.importorskip(cfg.default_scope)
    check_maps(cfg)
    cfg.model.backbone = dict(type='DINOv2', arch='small')
    cfg.model.neck.in_channels = [384]
    message = (
        r'head reads maps at strides 4, 8, 16, 32.*, and gets maps at strides 14, 28.*, as the '
        r'backbone DINOv2 has 1 at 14; put a pyramid behind it by neck=mmlaplace.plain_pyramid'
    )
    with pytest.raises(FirstCheckError, match=message):
        check_maps(cfg)
    assert said == []
    monkeypatch.setenv('BACKBONE', 'dinov2-small')
    with pytest.raises(ValueError, match='reads 4 maps, and DINOv2 has 1; put a pyramid behind'):
        Config.fromfile(path)


def test_a_head_that_reads_more_maps_than_there_are_is_refused(said):
    pytest.importorskip('mmseg')
    path = ROOT / 'configs/heads/plain/upernet_simple-pyramid_4xb4-160k_ade20k-512x512.py'
    cfg = Config.fromfile(path)
    check_maps(cfg)
    del cfg.model.neck
    message = 'decode_head reads 4 maps, and gets 1, as the backbone DINOv2 has 1; put a pyramid'
    with pytest.raises(FirstCheckError, match=message):
        check_maps(cfg)
    cfg.model.backbone = dict(type='PVTv2', arch='b0', out_indices=(1, 2, 3))
    with pytest.raises(FirstCheckError, match='gets 3, as the backbone PVTv2 has 3; take a back'):
        check_maps(cfg)
    assert said == []


def test_levels_that_begin_at_another_map_are_refused():
    pytest.importorskip('mmdet')
    path = ROOT / 'configs/detection/laplacianformer/retinanet_laplacianformer-micro_fpn_mini.py'
    cfg = Config.fromfile(path)
    check_maps(cfg)
    strides = [2 * stride for stride in cfg.model.bbox_head.anchor_generator.strides]
    cfg.model.bbox_head.anchor_generator.strides = strides
    with pytest.raises(FirstCheckError, match='bbox_head reads maps at strides 16,'):
        check_maps(cfg)


class Halved(PVT):
    def forward(self, x):
        return tuple(nn.functional.max_pool2d(each, 2) for each in super().forward(x))


def test_maps_are_those_that_the_forward_of_a_backbone_returns(said):
    """Ours say their sides without one, which would take seconds for a large backbone."""
    backbone, head = dict(type=PVT, arch='tiny'), dict(feature_strides=[4, 8, 16, 32])
    cfg = Config(dict(model=dict(backbone=backbone, decode_head=head)))
    with mock.patch.object(PVT, '_forward', side_effect=AssertionError('a forward')):
        check_maps(cfg)
    assert said == []
    class_token = dict(with_cls_token=True, out_indices=-1, out_type='cls_token')
    for other, strides in ((dict(type=Halved), '8, 16, 32, 64'), (class_token, '0.875')):
        cfg.model.backbone = {**backbone, **other}
        with pytest.raises(FirstCheckError, match=f'gets maps at strides {strides}, as'):
            check_maps(cfg)


def test_a_model_whose_maps_cannot_be_known_passes(said):
    head = dict(anchor_generator=dict(strides=[8, 16]))
    check_maps(Config(dict(model=dict(backbone=dict(type='None of ours'), bbox_head=head))))
    assert 'maps of the model' in said[0]
    check_maps(Config(dict(model=dict(backbone=dict(type='None of ours')))))
    assert len(said) == 1


FULL = sorted(
    path
    for task in ('detection', 'segmentation')
    for path in (ROOT / 'configs' / task).glob('[!_]*/*.py')
)


@pytest.mark.sampled(60, 60)
@pytest.mark.parametrize('path', FULL, ids=lambda path: path.stem)
def test_all_configs_of_ours_have_the_maps_that_their_heads_read(path, said):
    cfg = Config.fromfile(path)
    pytest.importorskip(cfg.default_scope)
    check_config(cfg)
    check_maps(cfg)
    assert said == []


MINI = sorted(
    path
    for path in ROOT.glob('configs/[cds]*/*/*mini*.py')
    if '_base_' not in path.parts and 'fashion' not in path.stem
)


@pytest.mark.sampled(3, 3)
@pytest.mark.parametrize('path', MINI, ids=lambda path: path.stem)
def test_all_configs_of_mini_data_pass(path, mini_data, said):
    cfg = Config.fromfile(path)
    scope = cfg.default_scope
    datasets = {}
    for split in ('train', 'val'):
        dataset = cfg[f'{split}_dataloader'].dataset.to_dict()
        dataset['data_root'] = str(mini_data / Path(dataset['data_root']).name)
        datasets[split] = build(scope, dataset)
    with torch.device('meta'):
        model = build_model(cfg)
    check_config(cfg)
    check_maps(cfg)
    assert len(check_data(datasets, model, scope)) == 2
    assert said == []


# Weights.


class Small(nn.Module):
    def __init__(self, classes: int = 3, width: int = 4) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, width, 1), nn.BatchNorm2d(width))
        self.neck = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)
        self.auxiliary_head = nn.Linear(width, 2)


def saved(module: nn.Module, *without: str, **meta) -> dict:
    state = {k: v for k, v in module.state_dict().items() if not k.startswith(without or ('-',))}
    return dict(state_dict=state, meta=dict(dataset_meta=meta))


def test_a_checkpoint_of_the_model_passes_in_each_use():
    model = Small()
    wrapped = dict(state_dict={f'module.{k}': v for k, v in saved(model)['state_dict'].items()})
    for use in ('test', 'resume', 'start'):
        check_weights(model, saved(model), 'a.pth', use)
        check_weights(model, wrapped, 'a.pth', use)
    check_weights(model, saved(model, 'auxiliary_head'), 'a.pth', 'test')
    averages = saved(model, 'backbone.1.running', 'backbone.1.num')
    check_weights(model, averages, 'a.pth', 'test')  # only parameters would be random
    check_weights(model, saved(model, 'neck', 'head'), 'a.pth', 'start')
    check_weights(model, saved(Small(classes=9)), 'a.pth', 'start')


def test_the_model_in_a_wrapper_is_compared():
    class Averaged(BaseTTAModel):
        def merge_preds(self, data_samples_list):
            return data_samples_list

    model = Small()
    model.test_step = None
    check_weights(Averaged(model), saved(model), 'a.pth', 'test')
    with pytest.raises(FirstCheckError, match='missing 2'):
        check_weights(Averaged(model), saved(model, 'head.'), 'a.pth', 'test')


@pytest.mark.parametrize(
    ('use', 'checkpoint', 'message'),
    [
        (
            'test',
            saved(Small(), 'head.'),
            r'a.pth is not the checkpoint of this Small: missing 2 \(head.weight, head.bias\).*'
            'scored with random values; name the checkpoint of this config',
        ),
        (
            'test',
            saved(Small(classes=5)),
            r'of another shape 2 \(head.weight, .*\(5, 4\) for \(3, 4',
        ),
        (
            'resume',
            saved(Small(classes=5)),
            r'cannot be resumed: .*leave out --resume, and add --cfg-',
        ),
        ('resume', saved(Small(), 'auxiliary_head.'), 'load_from=a.pth'),
        (
            'start',
            dict(state_dict={'other.weight': torch.ones(3)}),
            r'nothing of a.pth would be loaded: it has the tensors 1 \(other.weight\), and none of '
            r'the backbone, .*init_cfg.checkpoint=a.pth',
        ),
        ('start', saved(Small(), 'backbone.'), 'and none of the backbone'),
        ('start', saved(Small(width=8)), r'another arch: its backbone.0.weight has shape \(8, 3'),
    ],
)
def test_weights_that_do_not_fit_are_refused(use, checkpoint, message):
    with pytest.raises(FirstCheckError, match=message):
        check_weights(Small(), checkpoint, 'a.pth', use)


def test_maps_that_a_backbone_does_not_return_need_no_norms():
    model, whole = nn.Module(), nn.Module()
    model.backbone, whole.backbone = backbone(out_indices=(3,)), backbone(out_indices=(0, 1, 2, 3))
    check_weights(whole, saved(whole), 'a.pth', 'test')
    check_weights(model, saved(whole), 'a.pth', 'test')
    check_weights(whole, saved(model), 'a.pth', 'test')


def test_classes_of_the_same_names_in_another_order_are_refused():
    checkpoint = saved(Small(), classes=['a', 'b', 'c'])
    for right in (('a', 'b', 'c'), ('x', 'y', 'z'), (), ('a', 'b')):
        weights.check_classes(checkpoint, right, 'a.pth')
    message = "a.pth was trained with class 1 as 'b', and this data has 'c' there; set metainfo"
    with pytest.raises(FirstCheckError, match=message):
        weights.check_classes(checkpoint, ('a', 'c', 'b'), 'a.pth')
    weights.check_classes(dict(state_dict={}), ('a', 'c'), 'a.pth')
