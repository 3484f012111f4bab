"""What cannot be deployed or run is refused in a sentence, without a traceback."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import load_tool
from PIL import Image

from mmlaplace.deployment import image_pipeline, verification
from mmlaplace.deployment.deployable import NotDeployableError
from mmlaplace.deployment.toolbox_pipeline import check_channels

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
            SimpleNamespace(task='detection'),
            {name: torch.from_numpy(value) for name, value in expected.items()},
            {name: torch.from_numpy(value)[None] for name, value in found.items()},
        ),
    ]
    for row in rows:
        assert verification.too_much(row, False) == (dict(extra=2) if number == 1 else {})
