"""The operators for ONNX Runtime: their library, files that call them, and what is said without."""

import functools

import pytest
import torch
from conftest import ROOT, load_tool, micro_config, toolbox_model
from mmengine.config import Config
from onnx_files import assert_alike
from runtime_operators import (
    LINEAR,
    NYSTROM,
    WHOLE_INPUTS,
    file_of,
    linear_problem,
    nystrom_cases,
    whole_problem,
)

from mmlaplace.deployment import exporting, onnx_ops
from mmlaplace.deployment.deployable import deployable
from mmlaplace.deployment.toolbox_pipeline import described_pipeline
from mmlaplace.ops.cholesky_inverse import cholesky_inverse_reference
from mmlaplace.ops.laplacian_kernel import laplacian_kernel_reference

FOLDER = ROOT / 'tools/deployment'
CONFIG = micro_config('laplacianformer')
onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')


@pytest.fixture(scope='module')
def library(tmp_path_factory):
    """The library, with the kernels for this machine alone and unoptimised, which takes seconds."""
    tool = load_tool('tools/deployment/build_onnxruntime_ops.py')
    try:
        headers = tool.find_headers(None)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    out = tmp_path_factory.mktemp('library') / 'onnxruntime_ops.so'
    vectors = dict(AVX512=64, AVX2=32).get(torch.backends.cpu.get_cpu_capability(), 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('CXXFLAGS', f'-O1 -DMMLAPLACE_VECTOR_BYTES={vectors}')
        tool.build(headers, out)
    return out


@pytest.fixture(scope='module')
def session(library):
    """A function of tensors, by name, that ONNX Runtime computes."""

    @functools.cache
    def opened(content, threads=1):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # neither errors, which are raised, nor unknown sizes
        options.register_custom_ops_library(str(library))
        runtime = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])
        return lambda **inputs: torch.from_numpy(
            runtime.run(None, {n: x.contiguous().numpy() for n, x in inputs.items()})[0]
        )

    return opened


@pytest.mark.build
@pytest.mark.parametrize(('kernel', 'whitening', 'adjacent', 'rotary'), NYSTROM)
def test_the_attention_is_the_references(kernel, whitening, adjacent, rotary, session):
    content, cases = nystrom_cases(kernel, whitening, adjacent, rotary)
    for given, expected in cases:
        found = session(content)(**given)
        assert_alike(found, expected)  # the kernels of the compiled op have sums in another order
    assert torch.equal(found, session(content, threads=2)(**given))


@pytest.mark.build
def test_the_inverse_is_that_of_the_reference_and_nan_where_there_is_none(session):
    run = session(file_of('CholeskyInverse', ['mat'], ridge=1e-2))
    for size in (1, 49, 65):
        points = torch.randn(3, 2, size, 16)
        mat = laplacian_kernel_reference(points, points, 4.0)
        assert_alike(run(mat=mat), cholesky_inverse_reference(mat, 1e-2))
    assert run(mat=torch.tensor([[[[1.0, 2.0], [2.0, 1.0]]]])).isnan().all()


@pytest.mark.build
@pytest.mark.parametrize(
    'options',
    [
        dict(hw_shape=(13, 29), cells=(7, 7)),
        dict(hw_shape=(10, 11), ratio=4, floor=1e-6, of_queries=True),
        dict(hw_shape=(1, 37), cells=(1, 37), rotary=False, gamma=False),
    ],
)
def test_the_whole_mixing_rule_is_the_references(options, session):
    inputs, attributes, expected = whole_problem(heads=4, **options)
    content = file_of('LandmarkAttention', WHOLE_INPUTS, given=inputs, **attributes)
    found = session(content)(**inputs)
    assert_alike(found, expected)
    assert torch.equal(found, session(content, threads=2)(**inputs))


@pytest.mark.build
@pytest.mark.parametrize('case', LINEAR)
def test_attention_by_products_of_features_is_the_references(case, session):
    content, given, expected = linear_problem(*case)
    found = session(content)(**given)
    assert_alike(found, expected)
    assert torch.equal(found, session(content, threads=2)(**given))


@pytest.mark.build
@pytest.mark.skipif(not hasattr(torch.export, 'Dim'), reason='this torch has no torch.export')
def test_a_whole_classifier_calls_them(library, tmp_path, monkeypatch):
    pytest.importorskip('onnxscript')
    tool = load_tool('tools/deployment/export.py')
    cfg = Config.fromfile(CONFIG)
    torch.manual_seed(0)
    model = toolbox_model(cfg).eval().requires_grad_(False)
    model.head.fc.weight *= 10  # random ones find all classes alike
    form, path = deployable(model).requires_grad_(False), tmp_path / 'model.onnx'
    with exporting.backend_of('onnx', 'native'):
        program = exporting.capture(form, (48, 48))
    about = exporting.describe(
        form, (48, 48), program, described_pipeline(cfg), precision='fp32', backend='native'
    )
    exporting.write_onnx(program, path, about)
    ours = {node.op_type for node in onnx.load(path).graph.node if node.domain == 'mmlaplace'}
    assert ours == {'LandmarkAttention'}

    monkeypatch.setattr(onnx_ops, 'LIBRARY', library)
    run, about = exporting.open_exported(path)
    (row,) = tool.verify(model, form, run, about, [(48, 48)])
    assert not row['beyond_tolerance'], row


def test_a_file_that_calls_them_says_which_library_it_lacks(tmp_path, monkeypatch):
    path = tmp_path / 'model.onnx'
    path.write_bytes(file_of('CholeskyInverse', ['mat'], ridge=1e-2))
    monkeypatch.setattr(onnx_ops, 'LIBRARY', tmp_path / 'none.so')
    with pytest.raises(FileNotFoundError, match='build_onnxruntime_ops.py.* makes it'):
        exporting.open_exported(path)
