"""Exported models: what their files compute, what is refused, and the examples that run them."""

import functools
import json
import math
import subprocess
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import ROOT, load_tool, micro_config, output_of, refusal_of, run_script
from exported_models import build
from mmengine.config import Config
from onnx_files import operators
from PIL import Image

from mmlaplace.deployment import exporting, verification
from mmlaplace.deployment.deployable import deployable
from mmlaplace.deployment.toolbox_pipeline import described_pipeline
from mmlaplace.ops import use_backend

FOLDER = ROOT / 'tools/deployment'
TOOL, RUN, QUANTIZE, PREPARE = (
    FOLDER / f'{name}.py' for name in ('export', 'run_onnx', 'quantize', 'prepare_image')
)
# Of an image of 90 x 120 the test pipeline of the detectors makes 192 x 256.
SIZES = dict(classification=(48, 48), segmentation=(96, 128), detection=(192, 256))
NO_EXPORT = 'this torch has no torch.export with sizes'
needs_export = pytest.mark.skipif(not hasattr(torch.export, 'Dim'), reason=NO_EXPORT)


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """Write a file of a model, which is captured once for all formats; returns the file."""
    if not hasattr(torch.export, 'Dim'):
        pytest.skip(NO_EXPORT)
    tool = load_tool('tools/deployment/export.py')
    folder = tmp_path_factory.mktemp('exported')

    @functools.cache
    def captured(name: str):
        model = build(name)
        form = deployable(model).requires_grad_(False)
        size = SIZES[form.task]
        with use_backend('reference'):
            return model, form, size, exporting.capture(form, size)

    @functools.cache
    def write(name: str, kind: str):
        for package in ('onnxruntime', 'onnxscript') if kind == 'onnx' else ():
            pytest.importorskip(package)
        model, form, size, program = captured(name)
        pipeline = described_pipeline(Config.fromfile(micro_config(name)))
        about = exporting.describe(form, size, program, pipeline, precision='fp32')
        path = folder / f'{name}{exporting.SUFFIXES[kind]}'
        exporting.WRITERS[kind](program, path, about)
        run, about = exporting.open_exported(path)
        sizes = verification.sizes_to_verify(size, about['multiple'], about['size'] is None)
        rows = tool.verify(model, form, run, about, sizes)
        assert rows and not any(row['beyond_tolerance'] for row in rows), rows
        assert all(row.get('expected', 1) > 0 for row in rows)  # of a detector
        return path

    return write


def test_a_classifier_becomes_onnx_and_pt2_without_operators_of_ours(exported):
    assert operators(exported('laplacianformer', 'onnx').read_bytes()) <= {'', 'ai.onnx'}
    nodes = torch.export.load(exported('polaformer-pvt', 'pt2')).graph.nodes
    assert not [node for node in nodes if 'mmlaplace' in str(node.target)]


@pytest.mark.thorough
@pytest.mark.build
def test_a_package_of_aotinductor_runs_from_cpp(exported, tmp_path):
    path = exported('polaformer-pvt', 'aoti')
    include, library = (f'{torch.__path__[0]}/{name}' for name in ('include', 'lib'))
    program = tmp_path / 'aoti_classify'
    subprocess.run(
        [
            'g++',
            '-std=c++17',
            FOLDER / 'aoti_classify.cpp',
            '-o',
            program,
            f'-I{include}',
            f'-I{include}/torch/csrc/api/include',
            f'-L{library}',
            f'-Wl,-rpath,{library}',
            '-ltorch',
            '-ltorch_cpu',
            '-lc10',
            f'-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}',
        ],
        check=True,
    )
    photo = verification.photographs((48, 48))[0].byte().float()
    given, image = tmp_path / 'photo.png', tmp_path / 'photo.ppm'
    Image.fromarray(photo[0].permute(1, 2, 0).byte().numpy()).save(given)
    output_of(PREPARE, path, given, image)
    said = subprocess.run([program, path, image], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    run, _ = exporting.open_exported(path)
    scores, labels = run(photo)[0][0].topk(5)
    lines = [line.split() for line in said.stdout.splitlines()]
    assert [int(label) for label, _ in lines] == labels.tolist()
    # Printed with six digits.
    assert [float(score) for _, score in lines] == pytest.approx(scores.tolist(), rel=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ('name', 'size', 'seen'),
    [
        ('polaformer-pvt', (48, 48), '48 x 48'),
        ('semantic-fpn', (90, 120), '90 x 120'),  # which is padded to 96 x 128
        ('retinanet', (120, 160), '192 x 256'),
    ],
)
def test_a_model_of_each_task_becomes_onnx_with_its_selection(name, size, seen, exported, tmp_path):
    """And run_onnx.py predicts with it what the toolbox's inferencer does."""
    task, path, noise = deployable(build(name)).task, exported(name, 'onnx'), []
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
        noise.append(tmp_path / f'{number}.png')
        Image.fromarray(pixels).save(noise[-1])
    printed = output_of(RUN, path, *noise, '--out', tmp_path / 'out')
    assert f'0.png: {seen}\n  class ' in printed
    sizes = [Image.open(picture).size for picture in (tmp_path / 'out').glob('*.png')]
    assert sizes == [size[::-1]] * (3 if task == 'segmentation' else 0)
    cfg = Config.fromfile(micro_config(name))
    for image, expected in zip(noise, verification.toolbox_predictions(cfg, build(name), noise)):
        found = verification.read_predictions(tmp_path / 'out', image.stem)
        differences = verification.prediction_differences(task, expected, found)
        assert not verification.too_much(differences, half=False), differences


@needs_export
@pytest.mark.slow
def test_the_tool_writes_verifies_and_times_a_file_for_one_size(tmp_path):
    pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    name, weights, out = 'polaformer-pvt', tmp_path / 'weights.pth', tmp_path / 'model.onnx'
    torch.save(dict(state_dict=build(name).state_dict()), weights)
    output_of(
        TOOL,
        micro_config(name),
        weights,
        '--fp16',
        '--out',
        out,
        '--verify',
        '--benchmark',
        '--rounds',
        1,
        '--report',
        tmp_path / 'report.json',
    )
    report = json.loads((tmp_path / 'report.json').read_text())
    assert report['differences'][0]['size'] == [48, 48]
    assert report['deployed']['images'] == 3 and not report['deployed']['beyond_tolerance']
    assert report['milliseconds'][0]['runtime'] > 0
    assert report['about']['precision'] == 'fp16' and report['about']['batch'] == 1
    # Half of the weights, and a graph without notes of where it was made.
    assert report['megabytes'] < 0.6 * weights.stat().st_size / 2**20
    assert bytes(ROOT) not in out.read_bytes()


def test_int8_takes_less_room_and_keeps_the_order_of_classes(exported, noise_images, tmp_path):
    path = exported('polaformer-pvt', 'onnx')
    for split in ('train', 'val'):
        noise_images(tmp_path / split, 48, classes=3)
    data = [f'{name}_dataloader.dataset.data_root={tmp_path}' for name in ('train', 'test')]
    out, report = tmp_path / 'int8.onnx', tmp_path / 'int8.json'
    output_of(
        QUANTIZE,
        path,
        micro_config('polaformer-pvt'),
        '--out',
        out,
        '--report',
        report,
        '--max-loss',
        100,
        '--rounds',
        1,
        '--cfg-options',
        *data,
    )
    found = json.loads(report.read_text())
    assert found['images'] == 6
    assert found['megabytes']['int8'] < 0.5 * found['megabytes']['fp32']
    (run, _), (plain, _) = map(exporting.open_exported, (out, path))
    photo = verification.photographs((48, 48))[0]
    # Random weights scaled up; eight bits of each activation leave the classes in much the same
    # order.
    assert (run(photo)[0] - plain(photo)[0]).abs().max() < 0.3


def test_images_that_cannot_be_read_are_told_before_a_file_is_quantised(
    exported, noise_images, tmp_path
):
    path, out = exported('polaformer-pvt', 'onnx'), tmp_path / 'int8.onnx'
    for split in ('train', 'val'):
        noise_images(tmp_path / split, 48, classes=3)

    def told(*options):
        result = run_script(QUANTIZE, path, micro_config('polaformer-pvt'), '--out', out, *options)
        assert result.returncode and not out.exists() and 'Traceback' not in result.stderr
        return result.stderr.strip().splitlines()[-1]

    def roots(train, test):
        folders = dict(train=train, val=tmp_path, test=test).items()
        return ('--cfg-options', *(f'{k}_dataloader.dataset.data_root={v}' for k, v in folders))

    assert 'none' in told(*roots(tmp_path / 'none', tmp_path))
    assert 'none' in told(*roots(tmp_path, tmp_path / 'none'))
    image = tmp_path / 'val/01/1.png'
    whole = image.read_bytes()
    image.write_bytes(whole[: len(whole) // 2])
    assert f'{image} is not a complete image' in told(*roots(tmp_path, tmp_path))


def test_an_image_for_another_program_is_prepared_as_the_file_says(exported, tmp_path):
    path, given = exported('polaformer-pvt', 'pt2'), tmp_path / 'photo.png'
    pixels = np.random.default_rng(0).integers(0, 256, (48, 48, 3), np.uint8)
    Image.fromarray(pixels).save(given)
    output_of(PREPARE, path, given, tmp_path / 'photo.ppm')
    assert np.array_equal(np.asarray(Image.open(tmp_path / 'photo.ppm')), pixels)
    Image.fromarray(pixels[:40]).save(given)
    for arguments, message in (
        ((given, tmp_path / 'a.ppm'), 'takes only 48 x 48'),
        ((given, given), 'is an input; name another file'),
        ((given, tmp_path / 'photo.ppm'), 'is there already; --force replaces it'),
        ((tmp_path / 'none.png', tmp_path / 'a.ppm'), 'there is no file'),
    ):
        assert message in refusal_of(PREPARE, path, *arguments)
    assert 'was not made by export.py' in refusal_of(PREPARE, given, given, tmp_path / 'a.ppm')


def test_a_quantised_file_does_not_replace_its_model(tmp_path):
    pytest.importorskip('onnxruntime')
    path = tmp_path / 'model.onnx'
    path.write_bytes(b'abc')
    told = refusal_of(QUANTIZE, path, micro_config('polaformer-pvt'), '--out', path, '--force')
    assert 'is the model itself' in told
    assert path.read_bytes() == b'abc'


def test_results_have_the_names_of_classes_and_keep_the_folders_of_images(capsys):
    tool = load_tool('tools/deployment/run_onnx.py')
    found = dict(scores=np.array([0.2, 0.7, 0.1]))
    about = dict(task='classification', classes=['cat', 'dog', 'owl'])
    tool.tell(found, about, top=2)
    tool.tell(found, dict(about, classes=[]), top=1)
    boxes = dict(labels=np.array([2]), scores=np.array([0.5]), boxes=np.array([[1, 2, 3, 4]]))
    tool.tell(boxes, dict(about, task='detection'), top=5)
    tool.tell(dict(labels=np.ones((2, 2), int)), dict(about, task='segmentation'), top=5)
    said = capsys.readouterr().out.split('\n  ')
    assert [line.strip() for line in said] == [
        'dog: 70.0%',
        'cat: 20.0%',
        'class 1: 70.0%',
        'owl: 50.0% at 1.0 2.0 3.0 4.0',
        'dog: 100.0% of the pixels',
    ]

    def places(*paths):
        return [str(place) for place in tool.places_of([Path(path) for path in paths])]

    assert places('val/cat/1.jpg', 'val/dog/2.jpg') == ['1', '2']
    assert places('val/cat/1.jpg', 'val/dog/1.jpg') == ['cat/1', 'dog/1']
    assert places('val/1.jpg', 'val/1.png', 'val/2.png') == ['1.jpg', '1.png', '2']


@needs_export
def test_an_export_that_fails_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    tool, out = load_tool('tools/deployment/export.py'), tmp_path / 'model.pt2'
    out.write_bytes(b'before')

    def broken(program, path, about):
        path.write_bytes(b'half')
        raise RuntimeError('no space')

    monkeypatch.setitem(exporting.WRITERS, 'pt2', broken)
    monkeypatch.setattr(exporting, 'capture', lambda *_: None)
    monkeypatch.setattr(exporting, 'describe', lambda *_, **__: {})
    arguments = mock.Mock(fp16=False, format='pt2', backend='reference', out=out, config='a.py')
    with pytest.raises(RuntimeError, match='no space'):
        tool.export(None, Config.fromfile(micro_config('polaformer-pvt')), arguments, (48, 48))
    assert out.read_bytes() == b'before'


@pytest.mark.parametrize('half', [False, True])
def test_a_difference_that_is_no_number_is_beyond_every_tolerance(half):
    fine = dict(scores=1e-5, boxes=0.01)
    assert not verification.too_much(fine, half)
    for name in fine:
        assert list(verification.too_much(dict(fine, **{name: float('nan')}), half)) == [name]
    largest = load_tool('tools/deployment/export.py').largest
    assert all(math.isnan(largest(row)) for row in ([math.nan, 1.0], [1.0, math.nan, 2.0]))
    assert largest([1.0, 3.0, 2.0]) == 3.0


@needs_export
@pytest.mark.thorough
def test_small_images_are_captured_and_verified_at_sizes_that_a_dynamic_file_takes():
    form = deployable(build('polaformer-pvt')).requires_grad_(False)
    with use_backend('reference'):
        exporting.capture(form, (28, 32), 1, True)
    for size in verification.sizes_to_verify((28, 32), 1, True):
        assert min(size) > 32
    assert verification.sizes_to_verify((28, 32), 1, False) == [(28, 32)]


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('none.onnx', 'there is no file .*export.py makes it'),
        ('a.bin', 'must end with one of'),
        ('cut.onnx', 'cannot be read as ONNX'),
    ],
)
def test_what_is_no_exported_file_is_one_sentence(tmp_path, name, message):
    pytest.importorskip('onnxruntime')
    (tmp_path / 'a.bin').write_bytes(b'abc')
    (tmp_path / 'cut.onnx').write_bytes(b'abc')
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        exporting.open_exported(tmp_path / name)
