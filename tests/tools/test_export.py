"""Exported models: what their files compute, what is refused, and the examples that run them."""

import functools
import json
import subprocess

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, load_tool, run_script
from exported_models import build, config
from PIL import Image

from mmlaplace.deployment import exporting, verification
from mmlaplace.deployment.deployable import NotDeployableError, deployable
from mmlaplace.ops import gaussian_kernel, laplacian_kernel, use_backend

FOLDER = ROOT / 'tools/deployment'
TOOL, RUN, QUANTIZE = (FOLDER / f'{name}.py' for name in ('export', 'run_onnx', 'quantize'))
needs_export = pytest.mark.skipif(
    not hasattr(torch.export, 'Dim'), reason='this torch has no torch.export with sizes'
)


@pytest.fixture(scope='module')
def exported(tmp_path_factory):
    """Write a file of a model; returns it and its differences from the toolbox's predictions.

    A model is captured once for all formats, as that takes the most time.
    """
    tool = load_tool('tools/deployment/export.py')
    folder = tmp_path_factory.mktemp('exported')

    @functools.cache
    def captured(name: str):
        model = build(name)
        form = deployable(model).requires_grad_(False)
        size = (48, 48) if form.task == 'classification' else (96, 128)
        with use_backend('reference'):
            return model, form, size, exporting.capture(form, size)

    @functools.cache
    def write(name: str, kind: str):
        pytest.importorskip({'onnx': 'onnxruntime'}.get(kind, 'torch'))
        model, form, size, program = captured(name)
        about = exporting.describe(form, size, program, precision='fp32')
        path = folder / f'{name}{exporting.SUFFIXES[kind]}'
        exporting.WRITERS[kind](program, path, about)
        run, about = exporting.open_exported(path)
        sizes = verification.sizes_to_verify(size, about['multiple'], about['size'] is None)
        assert len(set(sizes)) == 1
        rows = tool.verify(model, form, run, about, sizes)
        assert len(rows) == len(sizes)
        return path, rows

    return write


def check_differences(rows: list) -> None:
    """That none is beyond its tolerance, and that a detector had something to compare."""
    assert not any(row['beyond_tolerance'] for row in rows), rows
    assert all(row.get('expected', 1) > 0 for row in rows)


@needs_export
@pytest.mark.slow
def test_windows_leave_the_number_of_images_open():
    model = build('polaformer-swin')
    form = deployable(model)
    program = exporting.capture(form, (48, 64), dynamic=True)
    about = exporting.describe(form, (48, 64), program)
    assert (about['batch'], about['size']) == (None, [48, 64])
    images = 255 * torch.rand(3, 3, 48, 64)
    # Sums in another order, of probabilities.
    torch.testing.assert_close(program.module()(images), form(images), rtol=0, atol=1e-6)


@needs_export
@pytest.mark.slow
def test_a_classifier_becomes_onnx_of_standard_operators(exported):
    """A conversion takes minutes; .dev_scripts/make_deploy_table.py checks the other families."""
    onnx = pytest.importorskip('onnx')
    path, rows = exported('laplacianformer', 'onnx')
    check_differences(rows)
    model = onnx.load(path)
    assert {node.domain for node in model.graph.node} <= {'', 'ai.onnx'}
    (about,) = (prop.value for prop in model.metadata_props if prop.key == exporting.KEY)
    assert json.loads(about)['size'] == [48, 48]


class Kernels(torch.nn.Module):
    def forward(self, images):
        points = images.flatten(1).unflatten(1, (2, -1, 4))  # (B, heads, N, d)
        return laplacian_kernel(points, points[:, :, :5], 4.0), gaussian_kernel(points, points, 1.0)


@needs_export
@pytest.mark.slow
def test_distances_become_operators_of_onnx(tmp_path):
    pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    kernels, images = Kernels(), torch.rand(1, 3, 8, 8)
    with use_backend('reference'):
        program = torch.export.export(kernels, (images,))
    assert sum('cdist' in str(node.target) for node in program.graph.nodes) == 2
    path = tmp_path / 'kernels.onnx'
    exporting.write_onnx(program, path, dict(outputs=['laplacian', 'gaussian']))
    run, _ = exporting.open_exported(path)
    for found, expected in zip(run(images), kernels(images)):
        # fp32: sums of four numbers in another order.
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


class Sums(torch.nn.Module):
    def forward(self, images):
        tokens = images.flatten(2).transpose(1, 2)  # (B, N, C)
        whole = (255 * images).long()
        return (
            tokens.mean(1), tokens.mean(-2, keepdim=True), tokens.sum(1), tokens.sum(1, True),
            tokens.sum(), tokens.sum(-1), tokens.mean((1, 2)), tokens.sum(1, dtype=torch.float64),
            whole.sum(-2), (whole > 99).sum(-2), F.gelu(tokens), F.gelu(tokens, approximate='tanh'),
        )  # fmt: skip


@needs_export
@pytest.mark.slow
def test_sums_over_tokens_and_gelu_leave_in_forms_that_runtimes_are_fast_at(tmp_path):
    onnx = pytest.importorskip('onnx')
    onnxruntime = pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    sums, images = Sums(), torch.randn(2, 3, 8, 9)
    height, width = (torch.export.Dim(name, min=2, max=99) for name in ('height', 'width'))
    program = torch.export.export(
        sums, (images,), dynamic_shapes=dict(images={2: height, 3: width})
    )
    path, names = tmp_path / 'sums.onnx', [f'out_{i}' for i in range(12)]
    exporting.write_onnx(program, path, dict(outputs=names))
    run, _ = exporting.open_exported(path)
    for given in (images, torch.randn(2, 3, 11, 6)):
        for found, expected in zip(run(given), sums(given)):
            # fp32: sums of 72 numbers in another order; an erf of its own.
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    made = [node.op_type for node in onnx.load(path).graph.node]
    # Four are sums over tokens. The others are over other dimensions, or of no fp32 numbers.
    assert (made.count('MatMul'), made.count('ReduceMean'), made.count('ReduceSum')) == (4, 1, 5)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / 'optimized.onnx')
    onnxruntime.InferenceSession(str(path), options, providers=['CPUExecutionProvider'])
    optimized = onnx.load(options.optimized_model_filepath).graph.node
    assert 'Gelu' in {node.op_type for node in optimized}


@needs_export
@pytest.mark.slow
def test_a_classifier_becomes_pt2_without_ops_of_ours(exported):
    path, rows = exported('polaformer-pvt', 'pt2')
    check_differences(rows)
    nodes = torch.export.load(path).graph.nodes
    assert not [node for node in nodes if 'mmlaplace' in str(node.target)]


@needs_export
@pytest.mark.build
def test_a_package_of_aotinductor_runs_from_cpp(exported, tmp_path):
    path, rows = exported('polaformer-pvt', 'aoti')
    check_differences(rows)
    include, library = (f'{torch.__path__[0]}/{name}' for name in ('include', 'lib'))
    program = tmp_path / 'aoti_classify'
    subprocess.run(
        ['g++', '-std=c++17', FOLDER / 'aoti_classify.cpp', '-o', program,
         f'-I{include}', f'-I{include}/torch/csrc/api/include', f'-L{library}',
         f'-Wl,-rpath,{library}', '-ltorch', '-ltorch_cpu', '-lc10',
         f'-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}'],
        check=True,
    )  # fmt: skip
    photo = verification.photographs((48, 48))[0]
    image = tmp_path / 'photo.ppm'
    Image.fromarray(photo[0].permute(1, 2, 0).byte().numpy()).save(image)
    said = subprocess.run([program, path, image], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    run, _ = exporting.open_exported(path)
    scores, labels = run(photo)[0][0].topk(5)
    lines = [line.split() for line in said.stdout.splitlines()]
    assert [int(label) for label, _ in lines] == labels.tolist()
    # Printed with six digits.
    assert [float(score) for _, score in lines] == pytest.approx(scores.tolist(), rel=1e-5)
    broken = subprocess.run([program, path, path], capture_output=True, text=True)
    assert broken.returncode == 1 and 'is no P6 image' in broken.stderr


@needs_export
@pytest.mark.slow
@pytest.mark.parametrize('name', ['retinanet', 'semantic-fpn'])
def test_detectors_and_segmentors_become_onnx_with_their_selection(name, exported, tmp_path):
    pytest.importorskip('onnxscript')
    path, rows = exported(name, 'onnx')
    check_differences(rows)
    image = tmp_path / 'photo.png'
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    Image.fromarray(pixels).save(image)
    result = run_script(RUN, path, image, '--out', tmp_path / 'out')
    assert result.returncode == 0, result.stderr
    assert 'photo.png: 96 x 128\n  class ' in result.stdout
    pictures = sorted((tmp_path / 'out').glob('*.png'))
    assert bool(pictures) == (name != 'retinanet')
    assert all(Image.open(picture).size == (128, 96) for picture in pictures)


@needs_export
@pytest.mark.slow
def test_the_tool_writes_verifies_and_times_a_file_for_one_size(tmp_path):
    pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    name, weights, out = 'polaformer-pvt', tmp_path / 'weights.pth', tmp_path / 'model.onnx'
    torch.save(dict(state_dict=build(name).state_dict()), weights)
    command = [TOOL, config(name), weights, '--fp16', '--out', out]
    result = run_script(
        *command, '--verify', '--benchmark', '--rounds', 1, '--report', tmp_path / 'report.json'
    )
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads((tmp_path / 'report.json').read_text())
    assert report['differences'][0]['size'] == [48, 48]
    assert report['milliseconds'][0]['runtime'] > 0
    assert report['about']['precision'] == 'fp16' and report['about']['batch'] == 1
    # Half of the weights, and a graph without notes of where it was made.
    assert report['megabytes'] < 0.6 * weights.stat().st_size / 2**20
    assert bytes(ROOT) not in out.read_bytes()
    result = run_script(*command)
    assert result.returncode == 2 and '--force replaces it' in result.stderr

    image = tmp_path / 'photo.png'
    Image.new('RGB', (60, 40), (200, 100, 50)).save(image)
    result = run_script(RUN, out, image)
    assert result.returncode == 0, result.stderr
    assert 'photo.png: 48 x 48\n  class ' in result.stdout
    result = run_script(RUN, out, image, '--image-size', 64, 64)
    assert result.returncode == 2
    assert 'exported for images of 48 x 48 alone, got --image-size 64 64' in result.stderr


@needs_export
@pytest.mark.slow
def test_int8_takes_less_room_and_keeps_products_of_activations(exported, tmp_path):
    pytest.importorskip('onnxruntime')
    onnx = pytest.importorskip('onnx')
    path, _ = exported('polaformer-pvt', 'onnx')
    photos = [
        photo[0].permute(1, 2, 0).byte().numpy() for photo in verification.photographs((96, 96))
    ]
    for split in ('train', 'val'):
        for label, photo in enumerate(photos):
            folder = tmp_path / split / str(label)
            folder.mkdir(parents=True)
            Image.fromarray(photo[:48, :48]).save(folder / 'a.png')
            Image.fromarray(photo[48:, 48:]).save(folder / 'b.png')
    data = [f'{name}_dataloader.dataset.data_root={tmp_path}' for name in ('train', 'test')]
    out, report = tmp_path / 'int8.onnx', tmp_path / 'int8.json'
    result = run_script(
        QUANTIZE, path, config('polaformer-pvt'), '--out', out, '--report', report,
        '--max-loss', 100, '--rounds', 1, '--cfg-options', *data,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(report.read_text())
    assert found['images'] == 6
    assert found['megabytes']['int8'] < 0.5 * found['megabytes']['fp32']
    graph = onnx.load(out).graph
    assert 'DequantizeLinear' in {node.op_type for node in graph.node}
    # Products with ones are sums of the attention, and stay in fp32.
    ones = {
        tensor.name
        for tensor in graph.initializer
        if len(tensor.dims) == 2 and (onnx.numpy_helper.to_array(tensor) == 1).all()
    }
    sums = [node for node in graph.node if node.op_type == 'MatMul' and node.input[1] in ones]
    assert sums
    (run, about), (plain, _) = map(exporting.open_exported, (out, path))
    assert about['task'] == 'classification'
    photo = verification.photographs((48, 48))[0]
    # Random weights scaled up; eight bits of each activation leave the classes in much the same
    # order.
    assert (run(photo)[0] - plain(photo)[0]).abs().max() < 0.3


@pytest.mark.slow
def test_what_cannot_be_exported_is_refused_with_the_reason():
    model = build('mask-rcnn')
    model.test_cfg.rcnn.nms = dict(type='soft_nms', iou_threshold=0.5)
    with pytest.raises(NotDeployableError, match="test_cfg.nms.type='soft_nms' cannot be exported"):
        deployable(model)
    model.roi_head.__class__ = type('CascadeRoIHead', (type(model.roi_head),), {})
    with pytest.raises(NotDeployableError, match='a MaskRCNN with a CascadeRoIHead cannot'):
        deployable(model)
    with pytest.raises(NotDeployableError, match='a Linear cannot be exported: it is no classif'):
        deployable(torch.nn.Linear(1, 1))
    if not hasattr(torch.export, 'Dim'):
        return
    form = deployable(build('retinanet'))
    with pytest.raises(NotDeployableError, match='for one image at a time, not 2'):
        exporting.capture(form, (96, 128), batch=2)
    with pytest.raises(NotDeployableError, match='multiples of 32, got 100 x 128'):
        exporting.capture(form, (100, 128))
    form.has_windows = True
    with pytest.raises(NotDeployableError, match='in windows fixes the size of the images, and a'):
        exporting.capture(form, (96, 128), dynamic=True)


def test_a_missing_exporter_names_the_extra(monkeypatch):
    def without(name, *args, **kwargs):
        if name == 'onnxscript':
            raise ImportError(f'No module named {name!r}')
        return original(name, *args, **kwargs)

    original = exporting.import_module
    monkeypatch.setattr(exporting, 'import_module', without)
    with pytest.raises(ImportError, match=r'this needs onnxscript.*"mmlaplace\[deploy\]"'):
        exporting.require_packages('json', 'onnxscript')


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (('--out', 'model.pt'), 'the name of onnx files ends with .onnx'),
        (('--backend', 'native', '--fp16'), 'the operators for ONNX Runtime are fp32 alone'),
    ],
)
def test_options_that_do_not_go_together_are_named(options, message):
    result = run_script(TOOL, config('laplacianformer'), 'none.pth', *options)
    assert result.returncode == 2 and message in result.stderr


@pytest.mark.parametrize('half', [False, True])
def test_a_difference_that_is_no_number_is_beyond_every_tolerance(half):
    fine = dict(scores=1e-5, boxes=0.01)
    assert not verification.too_much(fine, half)
    for name in fine:
        assert list(verification.too_much(dict(fine, **{name: float('nan')}), half)) == [name]


def test_an_unknown_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match='ends with none of'):
        exporting.open_exported(tmp_path / 'model.bin')
