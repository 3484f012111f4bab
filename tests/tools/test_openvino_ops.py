"""The operators for OpenVINO: their library, files that call them, and what is said without."""

import functools
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT, load_tool, micro_config, toolbox_model
from mmengine.config import Config
from onnx_files import assert_alike
from runtime_operators import (
    INPUTS,
    LINEAR,
    NYSTROM,
    WHOLE_INPUTS,
    file_of,
    linear_problem,
    nystrom_cases,
    openvino_has_bf16,
    problem,
    whole_problem,
)

from mmlaplace.deployment import exporting, openvino_runtime
from mmlaplace.deployment.deployable import deployable
from mmlaplace.deployment.toolbox_pipeline import described_pipeline
from mmlaplace.ops.cholesky_inverse import cholesky_inverse_reference
from mmlaplace.ops.laplacian_kernel import laplacian_kernel_reference
from mmlaplace.ops.newton_schulz_inverse import newton_schulz_inverse_reference
from mmlaplace.ops.normalized_nystrom_attention import normalized_nystrom_attention_reference

CONFIG = micro_config('laplacianformer')
onnx = pytest.importorskip('onnx')
openvino = pytest.importorskip('openvino')


@pytest.fixture(scope='module')
def library(tmp_path_factory):
    """The library, with the kernels for this machine alone and unoptimised, in a minute."""
    tool = load_tool('tools/deployment/build_openvino_ops.py')
    out = tmp_path_factory.mktemp('library') / 'openvino_ops.so'
    vectors = dict(AVX512=64, AVX2=32).get(torch.backends.cpu.get_cpu_capability(), 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('CXXFLAGS', f'-O1 -DMMLAPLACE_VECTOR_BYTES={vectors}')
        tool.build(out)
    return out


@pytest.fixture(scope='module')
def opened(library):
    """A function of arrays by name, that OpenVINO computes in a precision on some threads."""
    core = openvino_runtime.core_with(library)

    @functools.cache
    def compiled(content, precision='f32', threads=1):
        model = core.read_model(content, b'')
        return openvino_runtime.compiled(core, model, precision, threads)

    def run(content, *options, **inputs):
        model = compiled(content, *options)
        names = [value.any_name for value in model.inputs]
        arrays = [inputs[name].contiguous().numpy() for name in names]
        return torch.from_numpy(openvino_runtime.runner(model)(*arrays)[0])

    run.compiled = compiled
    return run


@pytest.mark.build
@pytest.mark.parametrize(('kernel', 'whitening', 'adjacent', 'rotary'), NYSTROM)
def test_the_attention_is_the_references(kernel, whitening, adjacent, rotary, opened):
    content, cases = nystrom_cases(kernel, whitening, adjacent, rotary)
    for given, expected in cases:
        found = opened(content, **given)
        assert_alike(found, expected)  # the kernels of the compiled op have sums in another order
    assert torch.equal(found, opened(content, 'f32', 2, **given))


@pytest.mark.build
def test_the_attention_with_normalised_rows_is_the_references(opened):
    names = [name for name in INPUTS if name != 'scale']
    content = file_of(
        'NormalizedNystromAttention',
        names,
        kernel='laplacian',
        bandwidth=4.0,
        floor=1e-6,
        adjacent=0,
    )
    inputs = problem(97, 9, 16, 'laplacian', True)
    del inputs['scale']
    expected = normalized_nystrom_attention_reference(
        **inputs, kernel='laplacian', bandwidth=4.0, floor=1e-6, rotary_form='half'
    )
    given = inputs | {name: inputs[name].transpose(1, 2) for name in 'qkv'}
    assert_alike(opened(content, **given).transpose(1, 2), expected)


@pytest.mark.build
def test_inverses_are_those_of_the_references(opened):
    exact = file_of('CholeskyInverse', ['mat'], ridge=1e-2)
    steps = dict(ridge=1e-2, num_iters=20)
    iteration = file_of('NewtonSchulzInverse', ['mat'], **steps)
    scaled = file_of('NewtonSchulzInverse', ['mat', 'scale'], **steps)
    for size in (1, 49, 65):
        points = torch.randn(3, 2, size, 16)
        mat = laplacian_kernel_reference(points, points, 4.0)
        scale = torch.rand(3, 2) / size**2
        assert_alike(opened(exact, mat=mat), cholesky_inverse_reference(mat, 1e-2))
        assert_alike(opened(iteration, mat=mat), newton_schulz_inverse_reference(mat, 20, 1e-2))
        few = newton_schulz_inverse_reference(mat, 20, 1e-2, scale)
        assert_alike(opened(scaled, mat=mat, scale=scale), few)
    assert opened(exact, mat=torch.tensor([[[[1.0, 2.0], [2.0, 1.0]]]])).isnan().all()


@pytest.mark.build
@pytest.mark.parametrize('case', LINEAR)
def test_attention_by_products_of_features_is_the_references(case, opened):
    content, given, expected = linear_problem(*case)
    found = opened(content, **given)
    assert_alike(found, expected)
    assert torch.equal(found, opened(content, 'f32', 2, **given))  # sums do not depend on threads


@pytest.mark.build
@pytest.mark.parametrize(
    ('changes', 'said'),
    [
        (dict(features='cosine'), 'features must be none, relu, elu_plus_one or powers, got cos'),
        (dict(streams=3), 'streams must be 1 or 2, got 3'),
        (dict(streams=2), 'two streams exchange halves of the features, and there are 5'),
    ],
)
def test_wrong_options_of_products_of_features_are_one_sentence(changes, said, opened):
    options = dict(features='relu', eps=1e-6, streams=1) | changes
    content = file_of('LinearAttention', ['q', 'k', 'v'], **options)
    q = torch.randn(1, 4, 2, 5)
    with pytest.raises(RuntimeError, match=said):
        opened(content, q=q, k=q, v=q)


# The stages of laplacianformer-tiny at 224 x 224, an odd map, a line, and cells by a ratio.
MAPS = [
    dict(heads=2, hw_shape=(56, 56)),
    dict(heads=16, hw_shape=(7, 7)),
    dict(heads=4, hw_shape=(13, 29), cells=(7, 7), floor=1e-6),
    dict(heads=4, hw_shape=(11, 9), cells=(4, 3), floor=1e-6, of_queries=True),
    dict(heads=3, hw_shape=(1, 37), cells=(1, 37), rotary=False),
    dict(heads=2, hw_shape=(10, 11), ratio=4, whitening=-1.0, gamma=False),
    dict(heads=2, hw_shape=(8, 9), kernel='gaussian', adjacent=True, of_queries=True),
]


@pytest.mark.build
@pytest.mark.parametrize('options', MAPS)
def test_the_whole_mixing_rule_is_the_references(options, opened):
    inputs, attributes, expected = whole_problem(**options)
    content = file_of('LandmarkAttention', list(WHOLE_INPUTS), given=inputs, **attributes)
    found = opened(content, **inputs)
    assert_alike(found, expected)
    # Other threads sum in the same order.
    assert torch.equal(found, opened(content, 'f32', 2, **inputs))
    if not openvino_has_bf16():
        return
    # Where OpenVINO computes in bf16, the operator has inputs that are rounded.
    half = opened(content, 'bf16', **inputs)
    assert torch.nn.functional.cosine_similarity(half.flatten(), expected.flatten(), 0) > 0.9999


@pytest.mark.build
def test_several_requests_at_once_give_what_one_gives(opened):
    problems = [whole_problem(heads=2, hw_shape=(size, size + 3)) for size in range(5, 13)]
    inputs, attributes, _ = problems[0]
    content = file_of('LandmarkAttention', list(WHOLE_INPUTS), given=inputs, **attributes)
    model = opened.compiled(content, 'f32', 2)
    wrong = []

    def ask():
        run = openvino_runtime.runner(model)
        for _ in range(10):
            for given, _, expected in problems:
                found = run(*(x.numpy() for x in given.values()))[0]
                if np.abs(found - expected.numpy()).max() > 1e-4 * expected.abs().max().item():
                    wrong.append(given['map'])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.build
@pytest.mark.thorough
def test_requests_of_changing_sizes_keep_no_memory(opened):
    def pages():
        return int(Path('/proc/self/statm').read_text().split()[1])

    problems = [whole_problem(heads=2, hw_shape=(size, 2 * size)) for size in range(4, 24)]
    inputs, attributes, _ = problems[0]
    content = file_of('LandmarkAttention', list(WHOLE_INPUTS), given=inputs, **attributes)
    after = []
    for _ in range(5):
        for _ in range(10):
            for given, _, _ in problems:
                opened(content, **given)
        after.append(pages())
    # A thousand requests. What OpenVINO caches of shapes is there after the first 200.
    assert after[-1] < after[0] + 2**20 // 4096 * 8


@pytest.mark.build
def test_wrong_shapes_are_one_sentence(opened):
    inputs, attributes, _ = whole_problem(heads=2, hw_shape=(5, 6))
    content = file_of('LandmarkAttention', list(WHOLE_INPUTS), given=inputs, **attributes)
    inputs['map'] = torch.tensor([5, 7, 5, 5])
    with pytest.raises(RuntimeError, match='a map of 5 x 7 must have the 30 tokens of q'):
        opened(content, **inputs)


@pytest.mark.build
@pytest.mark.skipif(not hasattr(torch.export, 'Dim'), reason='this torch has no torch.export')
@pytest.mark.parametrize(
    ('name', 'operators'),
    [
        ('laplacianformer', {'LandmarkAttention'}),
        ('softpp', {'NewtonSchulzInverse', 'NystromAttention'}),
        ('polaformer-pvt', {'LinearAttention'}),
    ],
)
def test_a_whole_classifier_calls_them(name, operators, library, tmp_path, monkeypatch):
    pytest.importorskip('onnxscript')
    tool = load_tool('tools/deployment/export.py')
    cfg = Config.fromfile(micro_config(name))
    torch.manual_seed(0)
    model = toolbox_model(cfg).eval().requires_grad_(False)
    model.head.fc.weight *= 10  # random ones find all classes alike
    form, path = deployable(model).requires_grad_(False), tmp_path / 'model.xml'
    with exporting.backend_of('openvino', 'native'):
        program = exporting.capture(form, (48, 48))
    about = exporting.describe(
        form, (48, 48), program, described_pipeline(cfg), precision='fp32', backend='native'
    )
    monkeypatch.setattr(openvino_runtime, 'library_path', lambda: tmp_path / 'none.so')
    with pytest.raises(FileNotFoundError, match='build_openvino_ops.py.* makes it'):
        exporting.write_openvino(program, path, about)
    monkeypatch.setattr(openvino_runtime, 'library_path', lambda: library)
    exporting.write_openvino(program, path, about)
    core = openvino_runtime.core_with(library)
    found = core.read_model(str(path))
    ours = {op.get_type_name() for op in found.get_ops()}
    assert operators <= ours
    run, about = exporting.open_exported(path)
    (row,) = tool.verify(model, form, run, about, [(48, 48)])
    assert not row['beyond_tolerance'], row

    monkeypatch.setattr(openvino_runtime, 'library_path', lambda: tmp_path / 'none.so')
    with pytest.raises(FileNotFoundError, match='build_openvino_ops.py.* makes it'):
        exporting.open_exported(path)


def test_what_openvino_cannot_open_is_one_sentence(tmp_path):
    library = tmp_path / 'library.so'
    library.write_bytes(b'abc')
    with pytest.raises(ValueError, match=r'library.so cannot be loaded .*build_openvino_ops.py'):
        openvino_runtime.core_with(library)
    path = tmp_path / 'model.xml'
    path.write_text('<net>')
    with pytest.raises(FileNotFoundError, match=r'model.bin is missing'):
        exporting.open_exported(path)
    path.with_suffix('.bin').write_bytes(b'')
    with pytest.raises(ValueError, match='cannot be read by OpenVINO'):
        exporting.open_exported(path)

    class Old:
        def get_property(self, device, name):
            return ['FP32', 'INT8']

    with pytest.raises(ValueError, match='no bf16 on this processor, but FP32, INT8; take f32'):
        openvino_runtime.check_precision(Old(), 'bf16')
    openvino_runtime.check_precision(Old(), 'default')
    with pytest.raises(ValueError, match="must be one of .*, got 'half'"):
        openvino_runtime.check_precision(Old(), 'half')


def test_the_build_names_the_library_that_openvino_lacks(tmp_path):
    tool = load_tool('tools/deployment/build_openvino_ops.py')
    with pytest.raises(FileNotFoundError, match=r'no libopenvino.so.\* .*from PyPI'):
        tool.libraries_in(tmp_path)
    assert (
        openvino_runtime.library_path().name
        == f'openvino_ops_{openvino.__version__.split("-")[0]}.so'
    )
    assert openvino_runtime.library_path().parent == (ROOT / 'mmlaplace/lib')
