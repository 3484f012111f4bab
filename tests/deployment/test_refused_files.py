"""What cannot be deployed or run is refused in a sentence, without a traceback."""

import json
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import load_tool
from mmengine.config import Config
from PIL import Image
from test_image_pipeline import LOAD, case_config, toolboxes  # noqa: F401 (registers)

from mmlaplace.deployment import image_pipeline, verification
from mmlaplace.deployment.deployable import NotDeployableError
from mmlaplace.deployment.toolbox_pipeline import check_channels, described_pipeline

ABOUT = dict(
    task='classification', outputs=['scores'], batch=None, size=None, multiple=1, least=1,
    color='color', pipeline=[], pad=dict(multiple=1, size=None, value=[0.0] * 3),
)  # fmt: skip


@pytest.mark.parametrize(('channels', 'color', 'wanted'), [
    (1, 'color', 'grayscale'), (3, 'grayscale', 'color'),
])  # fmt: skip
def test_images_without_the_channels_of_the_model_are_refused(channels, color, wanted):
    with pytest.raises(NotDeployableError, match=f'in_channels={channels}.*{wanted!r} there'):
        check_channels(channels, color)
    check_channels(channels, wanted)


@pytest.mark.parametrize(('written', 'match'), [
    (None, 'not made by export.py'), ('{"task": "classification"}', 'export it again'),
])  # fmt: skip
def test_a_file_without_its_pipeline_is_one_sentence(written, match):
    with pytest.raises(ValueError, match=f'old.onnx .*{match}'):
        image_pipeline.facts(written, 'old.onnx')


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch, capsys):
    tool = load_tool('tools/deployment/run_onnx.py')
    facts = dict(mmlaplace=json.dumps(ABOUT))
    session = SimpleNamespace(
        get_modelmeta=lambda: SimpleNamespace(custom_metadata_map=facts),
        get_inputs=lambda: [SimpleNamespace(name='images')],
        run=lambda names, inputs: [np.array([[0.25, 0.75]], np.float32)],
    )
    monkeypatch.setattr(tool, 'open_session', lambda *_: session)
    image, out = tmp_path / 'a cat é.png', tmp_path / 'a file'
    Image.new('RGB', (40, 50)).save(image)
    out.write_text('kept')
    monkeypatch.setattr(sys, 'argv', ['run_onnx.py', 'm.onnx', str(image), '--out', str(out)])
    with pytest.raises(SystemExit):
        tool.main()
    assert '--out' in (told := capsys.readouterr().err) and 'name another folder' in told
    assert out.read_text() == 'kept'


@pytest.mark.parametrize('number', [1, 3])
def test_a_detection_that_the_toolbox_does_not_have_is_beyond_tolerance(number):
    boxes = np.array([[0, 0, 9, 9], [20, 20, 30, 30], [40, 40, 50, 50]], np.float32)
    found = dict(boxes=boxes, scores=np.full(3, 0.5, np.float32), labels=np.ones(3, np.int64))
    expected = {name: value[:number] for name, value in found.items()}
    rows = [
        verification.prediction_differences('detection', expected, found),
        verification.differences(
            SimpleNamespace(task='detection', details={}),
            {name: torch.from_numpy(value) for name, value in expected.items()},
            {name: torch.from_numpy(value)[None] for name, value in found.items()},
        ),
    ]
    for row in rows:
        assert verification.too_much(row, False) == (dict(extra=2) if number == 1 else {})


REFUSED = {
    'Normalize': dict(type='Normalize', mean=[0.0] * 3, std=[1.0] * 3),
    'RandomFlip': dict(type='RandomFlip', prob=0.5),
    'RandomGrayscale': dict(type='RandomGrayscale'),
    'scale_factor': dict(type='Resize', scale_factor=0.5, keep_ratio=True),
    'interpolation': dict(type='Resize', scale=8, backend='pillow', interpolation='area'),
    'ResizeShortestEdge': dict(type='mmdet.ResizeShortestEdge', scale=8, max_size=9),
}


@pytest.mark.parametrize('name', REFUSED)
def test_a_step_that_a_file_cannot_carry_out_is_refused_by_name(name):
    cfg = case_config('as-it-is')
    cfg.test_dataloader.dataset.pipeline.insert(1, REFUSED[name])
    with pytest.raises(NotDeployableError, match=f'(?s)the test pipeline has .*{name}'):
        described_pipeline(cfg)


@pytest.mark.parametrize('side', [math.inf, math.nan, 0, -48, 48.5])
@pytest.mark.parametrize('step', [
    lambda side: dict(type='Resize', scale=(64, side), keep_ratio=True),
    lambda side: dict(type='Resize', scale=(side, side)),
    lambda side: dict(type='mmpretrain.ResizeEdge', scale=side),
    lambda side: dict(type='mmseg.ResizeToMultiple', size_divisor=side),
    lambda side: dict(type='Pad', size=(side, 64)),
    lambda side: dict(type='Pad', size_divisor=side),
], ids=['ratio', 'Resize', 'ResizeEdge', 'ResizeToMultiple', 'Pad', 'divisor'])  # fmt: skip
def test_a_size_that_is_no_number_of_pixels_is_refused_with_its_value(step, side):
    cfg = case_config('as-it-is')
    cfg.test_dataloader.dataset.pipeline.insert(1, written := step(side))
    name = written['type'].split('.')[-1]
    match = f'(?s)test pipeline has {name}.*{side}.* must be of whole numbers above 0'
    with pytest.raises(NotDeployableError, match=match):
        described_pipeline(cfg)


@pytest.mark.parametrize('factor', [math.inf, math.nan, 0.0, -0.5])
def test_a_factor_that_leaves_no_image_is_refused_with_its_value(factor):
    cfg = case_config('as-it-is')
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(type='Resize', scale_factor=factor))
    with pytest.raises(NotDeployableError, match=f'scale_factor=.*{factor}.* must be above 0'):
        described_pipeline(cfg)


def test_mmsegs_resize_after_a_pad_is_refused():
    """There mmseg gives logits the size from before the resizing."""
    cfg = case_config('no-divisor-in-the-test')
    pad, resize = dict(type='Pad', size_divisor=8), dict(type='Resize', scale=(32, 32))
    cfg.test_dataloader.dataset.pipeline[1:1] = [resize, pad]
    assert len(described_pipeline(cfg)['pipeline']) == 2
    cfg.test_dataloader.dataset.pipeline[1:3] = [pad, resize]
    with pytest.raises(NotDeployableError, match='Resize must precede Pad and CenterCrop'):
        described_pipeline(cfg)


@pytest.mark.parametrize('load', [
    dict(imdecode_backend='pillow'), dict(color_type='unchanged'),
])  # fmt: skip
def test_another_way_to_read_images_is_refused_by_name(load):
    cfg = case_config('as-it-is')
    cfg.test_dataloader.dataset.pipeline[0] = dict(LOAD, **load)
    with pytest.raises(NotDeployableError, match='LoadImageFromFile.*imdecode_backend must be'):
        described_pipeline(cfg)


def test_a_config_without_a_test_pipeline_is_refused():
    with pytest.raises(NotDeployableError, match='no test_dataloader.dataset.pipeline'):
        described_pipeline(Config(dict(default_scope='mmpretrain')))
