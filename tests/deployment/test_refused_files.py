"""What cannot be deployed or run is refused in a sentence, without a traceback."""

import errno
import json
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import ROOT, load_tool, run_script
from mmengine.config import Config
from PIL import Image
from test_image_pipeline import LOAD, case_config, toolboxes  # noqa: F401 (registers)

from mmlaplace.deployment import image_pipeline, verification
from mmlaplace.deployment.deployable import NotDeployableError
from mmlaplace.deployment.toolbox_pipeline import check_channels, described_pipeline

TOOLS = ROOT / 'tools/deployment'
ABOUT = dict(
    task='classification',
    outputs=['scores'],
    batch=None,
    size=None,
    multiple=1,
    least=1,
    color='color',
    pipeline=[],
    pad=dict(multiple=1, size=None, value=[0.0] * 3),
)
SCORES = (np.array([[0.25, 0.75]], np.float32),)


@pytest.mark.parametrize(
    ('channels', 'color', 'wanted'),
    [
        (1, 'color', 'grayscale'),
        (3, 'grayscale', 'color'),
    ],
)
def test_images_without_the_channels_of_the_model_are_refused(channels, color, wanted):
    with pytest.raises(NotDeployableError, match=f'in_channels={channels}.*{wanted!r} there'):
        check_channels(channels, color)
    check_channels(channels, wanted)


@pytest.mark.parametrize(
    ('written', 'match'),
    [
        (None, 'not made by export.py'),
        ('{"task": "classification"}', 'does not say how its images are prepared; export it again'),
    ],
)
def test_a_file_without_its_pipeline_is_one_sentence(written, match):
    with pytest.raises(ValueError, match=f'old.onnx .*{match}'):
        image_pipeline.facts(written, 'old.onnx')


@pytest.fixture
def run_onnx(tmp_path, monkeypatch):
    """Runs the command with an image, for a model of these facts and outputs."""
    tool = load_tool('tools/deployment/run_onnx.py')
    image = tmp_path / 'a cat é.png'
    Image.new('RGB', (40, 50)).save(image)

    def run(*arguments, found=SCORES, **facts):
        about = dict(mmlaplace=json.dumps(dict(ABOUT, **facts)))
        session = SimpleNamespace(
            get_modelmeta=lambda: SimpleNamespace(custom_metadata_map=about),
            get_inputs=lambda: [SimpleNamespace(name='images'), SimpleNamespace(name='sizes')],
            run=lambda names, inputs: found() if callable(found) else found,
        )
        monkeypatch.setattr(tool, 'open_session', lambda *_: session)
        monkeypatch.setattr(sys, 'argv', ['', 'm.onnx', *map(str, (image, *arguments))])
        tool.main()

    return run


def test_a_folder_that_cannot_be_written_is_one_sentence(run_onnx, tmp_path, capsys):
    out = tmp_path / 'a file'
    out.write_text('kept')
    with pytest.raises(SystemExit):
        run_onnx('--out', out)
    assert re.search('--out .*name another folder', capsys.readouterr().err)
    assert out.read_text() == 'kept'


def detector(count: int, score: float) -> dict:
    """The facts and outputs of a detector that finds so many objects with this score."""
    outputs = dict(
        boxes=np.tile(np.array([5.0, 5, 30, 30], np.float32), (1, count, 1)),
        scores=np.full((1, count), score, np.float32),
        labels=np.zeros((1, count), np.int64),
        masks=np.ones((1, count, 28, 28), np.float32),
    )
    found = tuple(outputs.values())
    return dict(task='detection', outputs=[*outputs], mask_threshold=0.5, found=found)


def test_results_of_an_earlier_run_stay_without_force_and_go_with_it(run_onnx, tmp_path, capsys):
    out = tmp_path / 'out'
    run_onnx('--out', out, **detector(3, 0.5))
    masks = [out / f'a cat é_{index}.png' for index in range(3)]
    numbers = out / 'a cat é.json'
    assert sorted(out.iterdir()) == sorted([numbers, *masks])
    (foreign := out / 'a cat é_9.png').write_bytes(b'a photo')
    before = numbers.read_bytes()
    with pytest.raises(SystemExit):
        run_onnx('--out', out, **detector(1, 0.9))
    assert f'{numbers} is there already; --force replaces it' in capsys.readouterr().err
    assert numbers.read_bytes() == before and masks[2].exists()
    run_onnx('--out', out, '--force', **detector(1, 0.9))
    assert sorted(out.iterdir()) == sorted([numbers, masks[0], foreign])
    assert verification.read_predictions(out, 'a cat é')['masks'].shape == (1, 50, 40)
    assert json.loads(numbers.read_text())['scores'] == pytest.approx([0.9])


def test_a_result_is_written_whole_or_not_at_all(run_onnx, tmp_path, monkeypatch, capsys):
    out = tmp_path / 'out'
    run_onnx('--out', out)
    before = (out / 'a cat é.json').read_bytes()

    def full(path, content):
        with open(path, 'wb') as file:
            file.write(content[:3])
        raise OSError(errno.ENOSPC, 'No space left on device')

    monkeypatch.setattr(Path, 'write_bytes', full)
    with pytest.raises(SystemExit):
        run_onnx('--out', out, '--force', found=(np.array([[0.5, 0.5]], np.float32),))
    assert 'No space left on device' in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ['a cat é.json']
    assert (out / 'a cat é.json').read_bytes() == before


def test_what_onnx_runtime_cannot_run_is_one_sentence(run_onnx, capsys):
    def broken():
        raise RuntimeError('[ONNXRuntimeError] : 1 : FAIL : Non-zero status code')

    with pytest.raises(SystemExit):
        run_onnx(found=broken)
    told = capsys.readouterr().err.splitlines()[-1]
    assert 'cannot run m.onnx for 50 x 40 pixels by CPUExecutionProvider' in told
    assert 'Non-zero status code' in told and 'export it with --image-size 50 40' in told


@pytest.mark.parametrize(
    ('given', 'match'),
    [
        (
            ['--providers', 'CUDA', 'CPUExecutionProvider'],
            '--providers CUDA: .* CPUExecutionProvider',
        ),
        (['--library', '{}'], '--library .* cannot be loaded .*build_onnxruntime_ops.py'),
        ([], 'cannot be opened .*; export it again'),
        (['--image-size', '0', '48'], 'argument --image-size: must be an integer .*, got 0'),
        (['--top', '-1'], 'argument --top: must be an integer .*, got -1'),
    ],
)
def test_what_onnx_runtime_cannot_open_is_one_sentence(given, match, tmp_path):
    pytest.importorskip('onnxruntime')
    model = tmp_path / 'cut.onnx'
    model.write_bytes(b'abc')
    given = [argument.format(model) for argument in given]
    result = run_script(TOOLS / 'run_onnx.py', model, 'cat.png', *given)
    assert result.returncode and not result.stdout
    assert re.search(match, result.stderr.splitlines()[-1])


def test_a_provider_that_is_not_there_is_refused_before_the_export():
    pytest.importorskip('onnxruntime')
    words = ('c.py', 'w.pth', '--verify', '--providers', 'CUDA', '--out', 'n.onnx')
    result = run_script(TOOLS / 'export.py', *words)
    assert re.search('no provider CUDA here, but .*CPUExecutionProvider', result.stderr)


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


def sized(side) -> list:
    return [
        dict(type='Resize', scale=(64, side), keep_ratio=True),
        dict(type='Resize', scale=(side, side)),
        dict(type='mmpretrain.ResizeEdge', scale=side),
        dict(type='mmseg.ResizeToMultiple', size_divisor=side),
        dict(type='Pad', size=(side, 64)),
        dict(type='Pad', size_divisor=side),
    ]


@pytest.mark.parametrize(
    ('step', 'match'),
    [
        (dict(type='Normalize', mean=[0.0] * 3, std=[1.0] * 3), 'Normalize'),
        (dict(type='RandomFlip', prob=0.5), 'RandomFlip'),
        (dict(type='RandomGrayscale'), 'RandomGrayscale'),
        (dict(type='Resize', scale_factor=0.5, keep_ratio=True), 'scale_factor'),
        (dict(type='Resize', scale=8, backend='pillow', interpolation='area'), 'interpolation'),
        (dict(type='mmdet.ResizeShortestEdge', scale=8, max_size=9), 'ResizeShortestEdge'),
        *(
            (dict(type='Resize', scale_factor=factor), f'scale_factor=.*{factor}.* above 0')
            for factor in (math.inf, math.nan, 0.0, -0.5)
        ),
        *(
            (step, f'{step["type"].split(".")[-1]}.*{side}.* must be of whole numbers above 0')
            for side in (math.inf, math.nan, 0, -48, 48.5)
            for step in sized(side)
        ),
    ],
)
def test_a_step_that_a_file_cannot_carry_out_is_refused_by_name_and_value(step, match):
    cfg = case_config('as-it-is')
    cfg.test_dataloader.dataset.pipeline.insert(1, step)
    with pytest.raises(NotDeployableError, match=f'(?s)the test pipeline has .*{match}'):
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


def test_floats_that_pillow_would_resize_are_refused():
    """It rounds them to whole numbers first."""
    cfg = case_config('as-it-is')
    cfg.test_dataloader.dataset.pipeline[0] = dict(LOAD, to_float32=True)
    resize = dict(type='Resize', scale=8)
    cfg.test_dataloader.dataset.pipeline.insert(1, dict(resize, backend='cv2'))
    assert described_pipeline(cfg)['pipeline'][0] == dict(type='ToFloat32')
    cfg.test_dataloader.dataset.pipeline[1] = dict(resize, backend='pillow')
    with pytest.raises(NotDeployableError, match='set to_float32=False in LoadImageFromFile'):
        described_pipeline(cfg)


def test_another_way_to_read_images_is_refused_by_name():
    cfg = case_config('as-it-is')
    cfg.test_dataloader.dataset.pipeline[0] = dict(LOAD, imdecode_backend='pillow')
    with pytest.raises(NotDeployableError, match='LoadImageFromFile.*imdecode_backend must be'):
        described_pipeline(cfg)


def test_a_config_without_a_test_pipeline_is_refused():
    with pytest.raises(NotDeployableError, match='no test_dataloader.dataset.pipeline'):
        described_pipeline(Config(dict(default_scope='mmpretrain')))
