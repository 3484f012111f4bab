"""Files for OpenVINO: written by export.py, and run by run_onnx.py as the toolbox predicts."""

import json

import numpy as np
import pytest
import torch
from conftest import ROOT, load_tool, micro_config, output_of, refusal_of, run_python
from exported_models import build
from mmengine.config import Config
from PIL import Image

from mmlaplace.deployment import exporting, openvino_runtime, verification
from mmlaplace.deployment.deployable import deployable
from mmlaplace.deployment.toolbox_pipeline import described_pipeline
from mmlaplace.ops import use_backend

TOOL, RUN = (ROOT / f'tools/deployment/{name}.py' for name in ('export', 'run_onnx'))
SIZES = dict(classification=(48, 48), segmentation=(96, 128), detection=(192, 256))
pytest.importorskip('onnxscript')
pytest.importorskip('openvino')
pytestmark = pytest.mark.skipif(not hasattr(torch.export, 'Dim'), reason='this torch has no export')


def exported(name, folder):
    """The task of a model, and its files for OpenVINO and ONNX."""
    form = deployable(build(name)).requires_grad_(False)
    size = SIZES[form.task]
    with use_backend('reference'):
        program = exporting.capture(form, size)
    pipeline = described_pipeline(Config.fromfile(micro_config(name)))
    about = exporting.describe(
        form, size, program, pipeline, precision='fp32', classes=['cat', 'dog']
    )
    paths = [folder / 'model.xml', folder / 'model.onnx']
    exporting.write('onnx', program, paths[1], about)
    exporting.convert_to_openvino(paths[1], paths[0], about)
    return form.task, paths


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'size'),
    [
        ('polaformer-pvt', (48, 48)),
        pytest.param('semantic-fpn', (90, 120), marks=pytest.mark.thorough),
        pytest.param('retinanet', (120, 160), marks=pytest.mark.thorough),
        pytest.param('mask-rcnn', (120, 160), marks=pytest.mark.thorough),
    ],
)
def test_openvino_predicts_what_the_toolbox_does(name, size, tmp_path):
    task, paths = exported(name, tmp_path)
    image = tmp_path / 'noise.png'
    pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    Image.fromarray(pixels).save(image)
    cfg = Config.fromfile(micro_config(name))
    (expected,) = verification.toolbox_predictions(cfg, build(name), [image])
    for path in paths:
        out = tmp_path / path.suffix[1:]
        output_of(
            RUN,
            path,
            image,
            '--out',
            out,
            '--top',
            1000,
            '--precision',
            'f32',
            '--runtime',
            'openvino',
        )
        found = verification.read_predictions(out, image.stem)
        differences = verification.prediction_differences(task, expected, found)
        assert not verification.too_much(differences, half=False), (path, differences)


@pytest.mark.slow
def test_the_tool_verifies_in_fp32_and_in_the_default_precision(tmp_path):
    weights, out = tmp_path / 'weights.pth', tmp_path / 'model.xml'
    torch.save(dict(state_dict=build('polaformer-pvt').state_dict()), weights)
    arguments = (micro_config('polaformer-pvt'), weights, '--format', 'openvino', '--out', out)
    report = tmp_path / 'report.json'
    output_of(TOOL, *arguments, '--verify', '--report', report)
    found = json.loads(report.read_text())
    assert found['deployed']['images'] == 3 and not found['deployed']['beyond_tolerance']
    precision = openvino_runtime.default_precision(openvino_runtime.core_with())
    default = found.get('in_default_precision', dict(precision='f32', scores=0))
    assert default['precision'] == precision and default['scores'] < 0.1
    assert (default['scores'] > 1e-4) == (precision == 'bf16')
    assert out.with_suffix('.bin').is_file()
    told = refusal_of(
        RUN, out, tmp_path / 'a.png', '--runtime', 'onnxruntime', '--precision', 'f32'
    )
    assert '--precision is for --runtime openvino' in told
    out.with_suffix('.bin').unlink()
    assert 'model.bin is missing' in refusal_of(RUN, out, tmp_path / 'a.png')


def test_a_number_that_is_not_finite_in_bf16_is_an_error():
    judged = load_tool('tools/deployment/export.py').judged
    about = dict(precision='bf16')
    assert judged([dict(scores=0.3)], about)['beyond_tolerance'] == []
    assert judged([dict(scores=float('nan'))], about)['beyond_tolerance'] == ['scores']
    assert judged([dict(scores=0.3)], dict(precision='fp32'))['beyond_tolerance'] == ['scores']


def test_a_signal_after_two_cores_does_not_end_the_process():
    """As the end of a worker of torch's DataLoader, whose handler runs on a stack of the thread."""
    code = (
        'import gc, os, signal\n'
        'from mmlaplace.deployment.openvino_runtime import core_with, default_precision\n'
        'seen = []\n'
        'cores = [core_with(), core_with()]\n'
        'list(map(default_precision, cores))\n'
        'while cores: cores.pop(0), gc.collect()\n'
        'signal.signal(signal.SIGCHLD, lambda *_: seen.append(1))\n'
        'if not (child := os.fork()): os._exit(0)\n'
        'os.waitpid(child, 0)\n'
        'print("signals:", len(seen))\n'
    )
    result = run_python('-c', code)
    assert (result.returncode, result.stdout) == (0, 'signals: 1\n'), result.stderr
