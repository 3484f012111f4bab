"""``python -m mmlaplace own``: one's own images get a config that fits them, or one sentence."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, output_of, refusal_of, run_python
from mmengine.config import Config
from own_data import write_class_folders, write_coco, write_label_images
from PIL import Image

import mmlaplace
from mmlaplace.checkpoints.dense import DENSE
from mmlaplace.commands import own_config
from mmlaplace.commands.own_data import _size_of_boxes, sampled
from mmlaplace.engine.first_checks import check_config, check_data
from mmlaplace.model_zoo import build_model
from mmlaplace.own_models import heads

SMALL = ('--backbone', 'laplacianformer-micro', '--weights', 'none')
LABELS = ('ground', 'disc', 'box')


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path('data/mine')


def own(*words) -> Config:
    """The config that the command writes."""
    said = output_of('mmlaplace', 'own', *words, '--out', 'mine.py', '--force')
    assert said.startswith('mine.py: 8 images to train, 4 to test; classes ')
    return Config.fromfile('mine.py')


def checked(cfg: Config) -> torch.nn.Module:
    """The model, after what our tools check before the first step."""
    pytest.importorskip(cfg.default_scope)
    check_config(cfg)
    with torch.device('meta'):
        model = build_model(cfg)
    datasets = {split: own_dataset(cfg, split) for split in ('train', 'val')}
    lines = check_data(datasets, model, cfg.default_scope)
    assert len(lines) == 2 and all(dataset[0]['inputs'].ndim == 3 for dataset in datasets.values())
    return model


def own_dataset(cfg: Config, split: str):
    from small_data import build

    return build(cfg.default_scope, dict(cfg[f'{split}_dataloader'].dataset))


def test_folders_of_classes_are_a_classifier_with_released_weights(folder):
    write_class_folders(folder)
    cfg = own('classify', folder)
    assert cfg.model.backbone.init_cfg.checkpoint == 'mmlaplace://mlla-tiny'
    assert cfg.classes == ('box', 'disc')  # in alphabetical order, as the folders are numbered
    assert checked(cfg).head.num_classes == 2
    assert cfg.data_root == 'data/mine' and cfg.train_dataloader.batch_size == 2
    # Few images are seen often, and the warm-up is a tenth.
    assert (cfg.train_cfg.max_epochs, cfg.param_scheduler[0].end) == (100, 10)


def test_boxes_are_a_faster_rcnn_and_with_masks_a_mask_rcnn(folder):
    write_coco(folder, masks=False)
    boxes = own('detect', folder)
    assert (boxes.model.type, boxes.val_evaluator.metric) == ('FasterRCNN', ['bbox'])
    assert boxes.image_size == (96, 64)
    assert boxes.model.backbone.init_cfg.checkpoint == 'mmlaplace://cswin-tiny'
    assert checked(boxes).roi_head.bbox_head.num_classes == 2
    write_coco(folder / 'masks')
    masks = own('detect', folder / 'masks')
    assert (masks.model.type, masks.val_evaluator.metric) == ('MaskRCNN', ['bbox', 'segm'])
    assert checked(masks).roi_head.mask_head.num_classes == 2
    assert own('detect', folder / 'masks', '--boxes-only').model.type == 'FasterRCNN'
    one = own('detect', folder, '--classes', 'box', '--head', 'retinanet_fpn_1x_coco', *SMALL)
    assert (one.model.bbox_head.num_classes, one.model.backbone.init_cfg) == (1, None)
    # A start from scratch takes larger steps.
    assert one.optim_wrapper.optimizer.lr == 5 * boxes.optim_wrapper.optimizer.lr


@pytest.mark.parametrize(
    ('size', 'seen'),
    [
        ((1024, 1024), (1024, 1024)),  # a tile keeps its pixels, which are fewer than COCO's
        ((1100, 1024), (1333, 800)),
        ((4000, 3000), (1333, 800)),
        ((600, 1333), (1344, 608)),
        ((1500, 300), (1333, 800)),
        ((20, 10), (32, 32)),
    ],
)
def test_images_of_at_most_cocos_pixels_keep_their_size(size, seen):
    assert _size_of_boxes([size, (2, 2), size]) == seen


@pytest.mark.parametrize('name', [n for n in DENSE if n.startswith('mask-rcnn_mlla-tiny')])
def test_a_detector_starts_from_a_released_detector(name, folder):
    cfg = own('detect', write_coco(folder), '--from', name)
    assert cfg.load_from == f'mmlaplace://{name}' and cfg.model.backbone.init_cfg is None
    assert checked(cfg).roi_head.mask_head.num_classes == 2
    assert type(build_model_on_meta(cfg).backbone).__name__ == 'MLLA'


def build_model_on_meta(cfg):
    with torch.device('meta'):
        return build_model(cfg)


def test_label_images_from_0_and_from_1_are_segmentors(folder):
    write_label_images(folder)
    cfg = own('segment', folder, '--classes', *LABELS, '--balance')
    assert not cfg.train_dataloader.dataset.reduce_zero_label
    ground, *shapes = cfg.model.decode_head.loss_decode.class_weight
    assert ground < 0.2 and min(shapes) > 0.9  # the ground is nearly everything
    assert checked(cfg).decode_head.num_classes == 3
    assert cfg.model.data_preprocessor['size'] == cfg.crop_size == (64, 64)
    item = own_dataset(cfg, 'val')[0]['data_samples'].gt_sem_seg.data.unique().tolist()
    assert item == [0, 1, 255]
    write_label_images(folder / 'ade', first=1)
    cfg = own('segment', folder / 'ade', '--classes', *LABELS, *SMALL, '--reduce-zero-label')
    assert cfg.val_dataloader.dataset.reduce_zero_label
    checked(cfg)
    item = own_dataset(cfg, 'val')[0]['data_samples'].gt_sem_seg.data.unique().tolist()
    assert item == [0, 1, 255]
    assert cfg.model.decode_head.loss_decode.get('class_weight') is None


@pytest.mark.parametrize('task', own_config.TASKS)
def test_the_bases_are_configs_by_themselves(task):
    cfg = Config.fromfile(ROOT / f'configs/own/{task}.py')
    pytest.importorskip(cfg.default_scope)
    model = build_model_on_meta(cfg)
    assert 2 in {getattr(module, 'num_classes', None) for module in model.modules()}
    assert cfg.train_dataloader.dataset.data_root.rstrip('/') == 'data/mine'
    # All settings are of the lines in front of the model.
    assert cfg.backbone == own_config.TASKS[task].backbone
    assert cfg.weights == f'mmlaplace://{cfg.backbone}'


@pytest.mark.parametrize('images', [10, 48, 600, 20000])
@pytest.mark.parametrize('task', own_config.TASKS)
def test_a_schedule_fits_the_number_of_images(task, images):
    args = own_config.argparse.Namespace(task=task, batch_size=None, epochs=None)
    found = own_config.schedule(args, images, True)
    epochs = found.get('epochs') or found['iterations'] / -(-images // found['batch_size'])
    assert 12 <= epochs <= 100 and found['batch_size'] <= max(2, images // 4)
    steps = epochs * -(-images // found['batch_size'])
    warmup = found.get('warmup_steps') or found['warmup_epochs'] * steps / epochs
    assert 0 < warmup <= steps / 10 + 1


@pytest.mark.parametrize('name', heads())
def test_all_heads_get_the_number_of_classes(name):
    pytest.importorskip('mmdet')
    pytest.importorskip('mmseg')
    backbone = 'dinov2-small' if name.startswith('plain/') else 'laplacianformer-micro'
    model = mmlaplace.model_config(name, 3, backbone)
    counts = set(re.findall(r"'num_(?:things_)?classes': (\d+)", str(model)))
    assert counts == {'3'} and 'init_cfg' in model['backbone']
    weights = re.findall(r"'class_weight': \[([^]]*)\]", str(model))
    assert all(len(each.split(',')) == 4 for each in weights)  # with the background


def test_a_model_for_own_classes_refuses_what_it_would_ignore():
    with pytest.raises(ValueError, match="needs a backbone, such as backbone='mlla-tiny'"):
        mmlaplace.model_config('mask-rcnn_fpn_1x_coco', 2)
    with pytest.raises(ValueError, match='has a backbone of its own'):
        mmlaplace.model_config('mlla-tiny', 2, backbone='mlla-tiny')
    with pytest.raises(ValueError, match="similar names are .*'mlla-tiny"):
        mmlaplace.model_config('mlla-tyni', 2)
    with pytest.raises(ValueError, match='this model has none'):
        mmlaplace.model_config('mlla-tiny', 2, class_weight=(1, 2))
    pytest.importorskip('mmseg')
    with pytest.raises(ValueError, match='class_weight has 3 values for 2 classes'):
        name = 'fpn_4xb4-160k_ade20k-512x512'
        mmlaplace.model_config(name, 2, 'mlla-tiny', class_weight=(1, 2, 3))


def change(path: Path, **values) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, **values}))


BAD = {
    'no folder': ('classify', lambda root: None, (), 'there is no folder data/mine/train'),
    'one class': (
        'classify',
        lambda root: (write_class_folders(root) / 'train/box').rename(root / 'old'),
        (),
        'has 1 class folder (disc), and a classifier needs two',
    ),
    'empty class': (
        'classify',
        lambda root: (write_class_folders(root) / 'train/ant').mkdir(),
        (),
        'data/mine/train/ant has no image',
    ),
    'other classes in val': (
        'classify',
        lambda root: (write_class_folders(root) / 'val/box').rename(root / 'val/bax'),
        (),
        'differ in the class folders bax, box',
    ),
    'no JSON': ('detect', lambda root: root.mkdir(parents=True), (), 'there is no data/mine/annot'),
    'broken JSON': (
        'detect',
        lambda root: (write_coco(root) / 'annotations/train.json').write_text('{'),
        (),
        'annotations/train.json is no JSON from line 1',
    ),
    'no categories': (
        'detect',
        lambda root: change(write_coco(root) / 'annotations/val.json', categories=[]),
        (),
        "val.json has no 'categories'",
    ),
    'unknown class': (
        'detect',
        write_coco,
        ('--classes', 'dics'),
        "'dics' of --classes is no category .* \\(did you mean 'disc'\\?\\)",
    ),
    'masks missing': (
        'detect',
        lambda root: write_coco(root, masks=False),
        ('--head', 'mask-rcnn_fpn_1x_coco'),
        'take --head faster-rcnn_fpn_1x_coco',
    ),
    'unknown head': ('detect', write_coco, ('--head', 'yolo'), "no head 'yolo' in configs/heads"),
    'unknown backbone': (
        'detect',
        write_coco,
        ('--backbone', 'cswin-tyni'),
        "similar names are .*'cswin-tiny'",
    ),
    'no weights': (
        'detect',
        write_coco,
        ('--backbone', 'laplacianformer-tiny'),
        'or --weights none starts from scratch',
    ),
    'not released': (
        'detect',
        write_coco,
        ('--from', 'mask-rcnn_pvt-tiny_fpn_1x_coco'),
        'those that have one are .*mask-rcnn_mlla-tiny_fpn_ms-1x_coco',
    ),
    'whole and a head': (
        'detect',
        write_coco,
        ('--from', 'mask-rcnn_mlla-tiny_fpn_ms-1x_coco', '--backbone', 'mlla-tiny'),
        'leave out --head, --backbone and --weights',
    ),
    'no names': ('segment', write_label_images, (), 'segment needs the names of all classes'),
    'too few names': (
        'segment',
        write_label_images,
        ('--classes', 'ground', 'disc'),
        'have the numbers 0 to 2, and --classes names 2; name the class of 0 too',
    ),
    'other option': (
        'classify',
        write_class_folders,
        ('--balance',),
        '--balance is an option of seg',
    ),
    'a number too large': (
        'segment',
        lambda root: Image.fromarray(np.full((64, 96), 9, np.uint8)).save(
            write_label_images(root) / 'annotations/training/3.png'
        ),
        ('--classes', *LABELS),
        'training/3.png has the value 9, and with 3 classes',
    ),
    'colours': (
        'segment',
        lambda root: Image.new('RGB', (96, 64)).save(
            write_label_images(root) / 'annotations/training/3.png'
        ),
        ('--classes', *LABELS),
        'training/3.png has colours',
    ),
    'a label image missing': (
        'segment',
        lambda root: (write_label_images(root) / 'annotations/training/3.png').unlink(),
        ('--classes', *LABELS),
        'training/3.jpg has no label image',
    ),
}


@pytest.mark.parametrize('case', BAD)
def test_data_that_fits_no_config_is_refused_in_a_sentence(case, folder):
    task, write, options, sentence = BAD[case]
    write(folder)
    said = refusal_of('mmlaplace', 'own', task, folder, *options)
    assert re.search(
        sentence if '\\' in sentence or '.*' in sentence else re.escape(sentence), said
    )
    assert said.count('\n') == 1 and not list(Path().glob('*.py'))


def test_samples_are_spread_evenly():
    assert sampled(range(3)) == [0, 1, 2]
    taken = sampled(range(1200))
    assert len(taken) == 400 and taken[-1] == 1197


def run_tool(name, *words) -> str:
    """A tool in a process of its own, as a reader types it; the images stay small."""
    result = run_python(ROOT / 'tools' / name, *words, cwd=Path.cwd(), OMP_NUM_THREADS='1')
    said = result.stdout + result.stderr
    assert result.returncode == 0, said[-3000:]
    return said


TUTORIALS = {
    'classify': (write_class_folders, (), 'accuracy/top1'),
    'detect': (write_coco, (), 'coco/segm_mAP_50'),
    'segment': (write_label_images, ('--classes', *LABELS), 'mIoU'),
}


@pytest.mark.training
@pytest.mark.thorough
@pytest.mark.parametrize('task', TUTORIALS)
def test_a_tutorial_goes_from_a_folder_to_a_test(task, folder):
    write, options, score = TUTORIALS[task]
    write(folder)
    output_of('mmlaplace', 'own', task, folder, *options, *SMALL, '--epochs', 2)
    (config,) = Path().glob('my_*.py')
    run_tool('dry_run.py', config)
    run_tool('train.py', config, '--work-dir', 'run')
    checkpoint = Path('run/last_checkpoint').read_text()
    assert score in run_tool('test.py', config, checkpoint)
