"""A deployed file sees the pixels that the toolbox's test pipeline and preprocessor make."""

import io
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, micro_config, toolbox_model
from exported_models import build
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import MODELS, TRANSFORMS, DefaultScope
from PIL import Image

from mmlaplace.deployment import image_pipeline, verification
from mmlaplace.deployment.deployable import deployable
from mmlaplace.deployment.exporting import describe
from mmlaplace.deployment.toolbox_pipeline import described_pipeline, sizes_made, with_resize

LOAD = dict(type='LoadImageFromFile')
IMAGENET = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
CAFFE = dict(mean=[103.53, 116.28, 123.675], std=[1.0, 1.0, 1.0])
PILLOW = dict(backend='pillow', interpolation='bicubic')
CLASSIFY = partial(dict, type='ClsDataPreprocessor')
DETECT = partial(dict, type='DetDataPreprocessor')
SEGMENT = partial(dict, type='SegDataPreProcessor')
# By name: the toolbox, the steps, and the preprocessor.
CASES = {
    'short-edge-and-crop': (
        'mmpretrain',
        [
            dict(type='ResizeEdge', scale=64, edge='short', **PILLOW),
            dict(type='CenterCrop', crop_size=56),
        ],
        CLASSIFY(**IMAGENET, to_rgb=True),
    ),
    'fixed-opencv': (
        'mmpretrain',
        [dict(type='Resize', scale=(50, 40))],
        CLASSIFY(**CAFFE, to_rgb=False),
    ),
    'crop-then-resize': (
        'mmpretrain',
        [
            dict(
                type='CenterCrop',
                crop_size=60,
                auto_pad=True,
                pad_cfg=dict(type='Pad', pad_val=dict(img=(3, 7, 11))),
            ),
            dict(type='Resize', scale=48, interpolation='lanczos'),
        ],
        CLASSIFY(mean=[0, 0, 0], std=[255, 255, 255], to_rgb=True),
    ),
    'crop-of-two-sides': (
        'mmpretrain',
        [
            dict(
                type='CenterCrop',
                crop_size=(40, 56),
                auto_pad=True,
                pad_cfg=dict(type='Pad', pad_val=7),  # of all channels
            )
        ],
        CLASSIFY(**IMAGENET, to_rgb=True),
    ),
    'efficientnet': (
        'mmpretrain',
        [dict(type='EfficientNetCenterCrop', crop_size=48, crop_padding=16)],
        CLASSIFY(**IMAGENET, to_rgb=True, pad_size_divisor=32, pad_value=1.5),
    ),
    'long-edge-and-square': (
        'mmpretrain',
        [
            dict(type='ResizeEdge', scale=64, edge='long', interpolation='area'),
            dict(type='Pad', pad_to_square=True, size_divisor=48, pad_val=dict(img=114.0)),
        ],
        CLASSIFY(**IMAGENET, to_rgb=True),
    ),
    'pad-by-a-fraction': (
        'mmdet',
        [dict(type='Pad', size_divisor=32, pad_val=dict(img=(123.675, 116.28, 103.53)))],
        DETECT(**IMAGENET, bgr_to_rgb=True),
    ),
    'as-it-is': ('mmpretrain', [], CLASSIFY(**IMAGENET, to_rgb=True)),
    'keep-ratio': (
        'mmdet',
        [dict(type='Resize', scale=(133, 80), keep_ratio=True)],
        DETECT(**IMAGENET, bgr_to_rgb=True, pad_size_divisor=32),
    ),
    'keep-ratio-then-pad-bgr': (
        'mmdet',
        [
            dict(type='Resize', scale=(96, 64), keep_ratio=True, **PILLOW),
            dict(type='Pad', size_divisor=16, pad_val=dict(img=(114, 114, 114))),
        ],
        DETECT(**CAFFE, bgr_to_rgb=False, pad_size_divisor=64, pad_value=2),
    ),
    'factor': ('mmdet', [dict(type='Resize', scale_factor=(0.5, 0.7))], DETECT(pad_size_divisor=1)),
    'multiple': (
        'mmseg',
        [
            dict(type='Resize', scale=(204, 51), keep_ratio=True),
            dict(type='ResizeToMultiple', size_divisor=32),
        ],
        SEGMENT(**IMAGENET, bgr_to_rgb=True, size=(64, 64)),
    ),
    'divisor-in-the-test-alone': (
        'mmseg',
        [dict(type='Pad', size_divisor=8, padding_mode='reflect')],
        SEGMENT(
            **IMAGENET, bgr_to_rgb=True, size=(64, 64), pad_val=0.5, test_cfg=dict(size_divisor=32)
        ),
    ),
    'no-divisor-in-the-test': ('mmseg', [], SEGMENT(**IMAGENET, bgr_to_rgb=True, size_divisor=32)),
    'at-least': (
        'mmseg',
        [dict(type='Resize', scale=(64, 64), keep_ratio=True)],
        SEGMENT(**IMAGENET, bgr_to_rgb=True, size=(64, 64), test_cfg=dict(size=(80, 96))),
    ),
}
PACKS = dict(mmpretrain='PackInputs', mmdet='PackDetInputs', mmseg='PackSegInputs')


def photo(size=(90, 120), channels=3, depth=8) -> np.ndarray:
    """Smooth colours with noise, as resizing by other rules would change both."""
    height, width = size
    rows, columns = np.mgrid[:height, :width]
    waves = [np.sin(rows / (5 + i)) + np.cos(columns / (9 - i)) for i in range(channels)]
    noise = np.random.default_rng(0).normal(0, 0.3, (height, width, channels))
    values = (np.stack(waves, -1) + noise + 2.5) / 5
    return (values.clip(0, 1) * (2**depth - 1)).astype(f'uint{depth}').squeeze()


def case_config(name: str) -> Config:
    scope, steps, _ = CASES[name]
    pipeline = [LOAD, *steps, dict(type='LoadAnnotations'), dict(type=PACKS[scope])]
    if scope == 'mmpretrain':
        pipeline.pop(-2)
    loader = dict(dataset=dict(type='any', pipeline=pipeline))
    return Config(dict(default_scope=scope, test_dataloader=loader))


def toolbox_input(name: str, path) -> torch.Tensor:
    """What the model gets: by the toolbox's own transforms and preprocessor."""
    scope, steps, preprocessor = CASES[name]
    meta = dict(PACKS={}, mmdet=dict(meta_keys=()), mmseg=dict(meta_keys=())).get(scope, {})
    with DefaultScope.overwrite_default_scope(scope):
        pipeline = Compose(
            [TRANSFORMS.build(step) for step in [LOAD, *steps, dict(type=PACKS[scope], **meta)]]
        )
        data = pipeline(dict(img_path=str(path)))
        batch = dict(inputs=[data['inputs']], data_samples=[data['data_samples']])
        return MODELS.build(preprocessor)(batch, False)['inputs']


def facts(name: str) -> tuple:
    """The form of a small classifier with the preprocessor of a case, and its metadata."""
    scope, _, preprocessor = CASES[name]
    model = build('polaformer-pvt')
    with DefaultScope.overwrite_default_scope(scope):
        model.data_preprocessor = MODELS.build(preprocessor)
    form = deployable(model)
    about = describe(form, (96, 96), FakeProgram(), described_pipeline(case_config(name)))
    return form, dict(about, least=1)


class FakeProgram:
    """What :func:`describe` asks of a graph for images of any size."""

    def __init__(self) -> None:
        side = SimpleNamespace(node=SimpleNamespace(expr=self))
        value = SimpleNamespace(shape=(None, 3, side, side))
        node = SimpleNamespace(target='images', meta=dict(val=value))
        self.graph = SimpleNamespace(nodes=[node])

    @staticmethod
    def as_coeff_Mul():
        return (1,)


@pytest.fixture(scope='module', autouse=True)
def toolboxes():
    for name in PACKS:
        pytest.importorskip(f'{name}.utils').register_all_modules(init_default_scope=False)


def assert_same_input(form, ready, expected) -> None:
    images = (torch.from_numpy(ready.pixels) - form.mean) / form.std
    images = images if form.rgb else images.flip(1)
    # One division and subtraction in fp32 of numbers up to 255 / std.
    torch.testing.assert_close(images, expected, atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize('name', CASES)
def test_a_file_gets_the_pixels_of_the_test_pipeline(name, tmp_path):
    form, about = facts(name)
    for size in ((28, 28), (48, 48), (90, 120), (131, 97), (224, 224), (384, 200)):
        path = tmp_path / 'photo.png'
        Image.fromarray(photo(size)).save(path)
        ready = image_pipeline.prepare(image_pipeline.read_image(path, about['color']), about)
        assert_same_input(form, ready, toolbox_input(name, path))


@pytest.mark.parametrize(
    ('name', 'size'),
    [
        ('fixed-opencv', None),
        ('fixed-opencv', (40, 56)),
        ('as-it-is', (40, 56)),
    ],
)
def test_images_are_resized_in_floating_point_if_loaded_so(name, size, tmp_path, monkeypatch):
    """By the pipeline, and to an image size that takes its place."""
    monkeypatch.setitem(LOAD, 'to_float32', True)
    form, about = facts(name)
    path = tmp_path / 'photo.png'
    path.write_bytes(png(photo()))
    about = image_pipeline.of_size(about, size)
    ready = image_pipeline.prepare(image_pipeline.read_image(path), about)
    if size:
        scope, _, preprocessor = CASES[name]
        resize = dict(type='Resize', scale=size[::-1])
        monkeypatch.setitem(CASES, name, (scope, [resize], preprocessor))
    assert_same_input(form, ready, toolbox_input(name, path))
    assert (ready.pixels % 1).any()


def test_boxes_are_undone_by_the_last_resizing_as_in_mmdet(tmp_path):
    steps = [dict(type='Resize', scale=(60, 60)), dict(type='Resize', scale=(90, 30))]
    with DefaultScope.overwrite_default_scope('mmdet'):
        pack = dict(type='PackDetInputs', meta_keys=('scale_factor',))
        pipeline = Compose([TRANSFORMS.build(step) for step in [LOAD, *steps, pack]])
    path = tmp_path / 'photo.png'
    path.write_bytes(png(photo()))
    expected = pipeline(dict(img_path=str(path)))['data_samples'].scale_factor
    how = dict(keep_ratio=False, interpolation='bilinear', backend='cv2')
    steps = [dict(step, **how) for step in steps]
    assert image_pipeline.carried_out(photo(), steps)[1] == expected == (1.5, 0.5)


def jpeg(pixels: np.ndarray, orientation=1) -> bytes:
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file, 'JPEG', exif=exif)
    return file.getvalue()


def png(pixels: np.ndarray) -> bytes:
    import cv2

    return cv2.imencode('.png', pixels)[1].tobytes()


FILES = {
    'grey': lambda: png(photo(channels=1)),
    'rgba': lambda: png(photo(channels=4)),
    'grey16': lambda: png(photo(channels=1, depth=16)),
    'rgb16': lambda: png(photo(depth=16)),
    'turned': lambda: jpeg(photo(), orientation=6),  # by a quarter
    'grey-jpeg': lambda: jpeg(photo(channels=1)),
}


@pytest.mark.parametrize('kind', FILES)
def test_files_of_all_kinds_are_read_as_the_toolbox_reads_them(kind, tmp_path):
    path = tmp_path / 'image.bin'
    path.write_bytes(FILES[kind]())
    form, about = facts('as-it-is')
    ready = image_pipeline.prepare(image_pipeline.read_image(path), about)
    assert ready.size == ((120, 90) if kind == 'turned' else (90, 120))
    assert_same_input(form, ready, toolbox_input('as-it-is', path))


@pytest.mark.parametrize('content', [b'', b'GIF89a', png(photo())[:200]])
def test_a_file_that_is_no_whole_image_is_an_error_of_reading(content, tmp_path):
    path = tmp_path / 'image.png'
    path.write_bytes(content)
    try:
        image = image_pipeline.read_image(path)
    except OSError as error:
        assert 'OpenCV' in str(error)
    else:  # OpenCV fills up what is missing of a PNG, as for the toolbox
        assert content.startswith(b'\x89PNG') and image.shape == (90, 120, 3)


def test_an_image_of_a_detector_is_padded_to_the_one_size_of_a_file():
    form, about = facts('keep-ratio')
    ready = image_pipeline.prepare(photo(), dict(about, task='detection', size=[128, 160]))
    height, width = ready.size
    assert (height, width) == (80, 107) and ready.pixels.shape[2:] == (128, 160)
    model_sees = (torch.from_numpy(ready.pixels) - form.mean) / form.std
    for padding in (model_sees[:, :, height:], model_sees[:, :, :, width:]):
        # Zero, but for a rounding of the mean in fp32.
        torch.testing.assert_close(padding, torch.zeros_like(padding), atol=1e-6, rtol=0)


SLIDE = dict(crop_size=[64, 96], stride=[40, 64])


@pytest.mark.parametrize(
    ('change', 'match'),
    [
        (dict(size=[48, 48]), '90 x 120 pixels of an image of 90 x 120, and this file takes only'),
        (dict(multiple=32, least=33), 'sides of at least 33 that are multiples of 32'),
        (dict(least=100), 'sides of at least 100'),
        (dict(slide=SLIDE, size=[128, 128]), 'windows of 64 x 96 pixels .* takes only 128 x 128'),
        (dict(slide=SLIDE, least=65), 'sides of at least 65'),
        (dict(slide=SLIDE, multiple=64), 'multiples of 64'),
    ],
)
def test_a_size_or_windows_that_a_file_does_not_take_are_one_sentence(change, match):
    _, about = facts('as-it-is')
    image_pipeline.prepare(photo(), dict(about, slide=SLIDE, size=[64, 96]))
    with pytest.raises(ValueError, match=match):
        image_pipeline.prepare(photo(), dict(about, **change))
    with pytest.raises(ValueError, match='0 x 133 pixels .* take one that is less narrow'):
        image_pipeline.prepare(photo((2, 999)), facts('keep-ratio')[1])


@pytest.mark.parametrize(
    ('steps', 'backend'),
    [
        (CASES['short-edge-and-crop'][1], 'pillow'),
        ([dict(type='mmpretrain.ResizeEdge', scale=64, interpolation='bicubic')], 'cv2'),
        ([dict(type='EfficientNetCenterCrop', crop_size=48)], 'cv2'),  # bicubic by default
    ],
)
def test_an_image_size_takes_the_place_of_the_steps(steps, backend):
    cfg = case_config('as-it-is')
    cfg.test_dataloader.dataset.pipeline[1:1] = steps
    asked, wanted = with_resize(cfg, (40, 56)), dict(interpolation='bicubic', backend=backend)
    (resize,) = described_pipeline(asked)['pipeline']
    assert resize == dict(type='Resize', scale=[56, 40], keep_ratio=False, **wanted)
    assert sizes_made([resize]) == {(40, 56)}
    assert asked.test_dataloader.dataset.pipeline[0] == LOAD
    about = dict(facts('as-it-is')[1], **described_pipeline(cfg))
    assert image_pipeline.of_size(about, [40, 56])['pipeline'] == [resize]


def predicted_alike(cfg, model, tmp_path) -> None:
    """The toolbox's inferencer and our way of a file predict the same for photographs."""
    form = deployable(model).requires_grad_(False)
    about = describe(form, (96, 96), FakeProgram(), described_pipeline(cfg), precision='fp32')
    about.update(multiple=form.multiple, least=1)
    paths = []
    for number, size in enumerate(((90, 120), (120, 90), (100, 100))):
        paths.append(tmp_path / f'{number}.png')
        paths[-1].write_bytes(png(photo(size)))
    expected = verification.toolbox_predictions(cfg, model, paths)
    found = verification.in_process(torch.no_grad()(form), about, paths)
    for pair in zip(expected, found):
        found = verification.prediction_differences(form.task, *pair)
        assert found.get('expected', 1) > 0 and not verification.too_much(found, False), found


@pytest.mark.slow
@pytest.mark.parametrize('name', ['polaformer-pvt', 'retinanet', 'mask-rcnn', 'upernet'])
def test_predictions_are_those_of_the_toolboxs_inferencer(name, tmp_path):
    model = build(name)
    if name == 'polaformer-pvt':  # here of BGR images
        with DefaultScope.overwrite_default_scope('mmpretrain'):
            model.data_preprocessor = MODELS.build(CLASSIFY(**CAFFE, to_rgb=False))
    predicted_alike(Config.fromfile(micro_config(name)), model, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('align_corners', [False, True])
def test_a_segmentor_that_slides_predicts_as_mmseg_does(align_corners, tmp_path):
    cfg = Config.fromfile(micro_config('semantic-fpn'))
    resize = dict(type='Resize', scale=(200, 150), keep_ratio=True)
    cfg.test_dataloader.dataset.pipeline.insert(1, resize)
    model = build('semantic-fpn')
    model.align_corners = model.decode_head.align_corners = align_corners
    model.test_cfg = Config(dict(mode='slide', crop_size=(96, 128), stride=(64, 96)))
    predicted_alike(cfg, model, tmp_path)


@pytest.mark.slow
def test_a_model_of_grey_images_takes_one_channel(tmp_path):
    cfg, path = Config.fromfile(micro_config('polaformer-pvt')), tmp_path / 'grey.png'
    cfg.model.backbone.update(in_channels=1, init_cfg=None)
    cfg.data_preprocessor = dict(mean=[100.0], std=[50.0], to_rgb=False)
    cfg.model.data_preprocessor = cfg.data_preprocessor
    cfg.test_dataloader.dataset.pipeline[0] = dict(LOAD, color_type='grayscale')
    form = deployable(toolbox_model(cfg).eval().requires_grad_(False))
    about = describe(form, (96, 96), FakeProgram(), described_pipeline(cfg))
    path.write_bytes(png(photo(channels=1)))
    ready = image_pipeline.prepare(image_pipeline.read_image(path, about['color']), about)
    assert ready.pixels.shape == (1, 1, 90, 120)
    assert form(torch.from_numpy(ready.pixels))[0].shape[1] == 10


@pytest.mark.thorough
def test_the_test_pipelines_of_all_configs_can_be_carried_out():
    for task in ('classification', 'detection', 'segmentation'):
        for path in sorted((ROOT / 'configs' / task).glob('*/*.py')):
            if path.parent.name == '_base_':
                continue
            cfg = Config.fromfile(path)
            made = sizes_made(described_pipeline(cfg)['pipeline'])
            assert made, path
            if path.stem.endswith('_in1k'):
                assert len(made) == 1 and len(set(made.pop())) == 1, path
