"""The operators for ONNX Runtime: their library, files that call them, and what is said without."""

import functools

import pytest
import torch
from conftest import ROOT, load_tool, micro_config, toolbox_model
from mmengine.config import Config
from onnx_files import assert_alike

from mmlaplace.deployment import exporting, onnx_ops
from mmlaplace.deployment.deployable import deployable
from mmlaplace.deployment.toolbox_pipeline import described_pipeline
from mmlaplace.ops.cholesky_inverse import cholesky_inverse_reference
from mmlaplace.ops.gaussian_kernel import gaussian_kernel_reference
from mmlaplace.ops.laplacian_kernel import laplacian_kernel_reference
from mmlaplace.ops.nystrom_attention import nystrom_attention_reference

FOLDER = ROOT / 'tools/deployment'
CONFIG = micro_config('laplacianformer')
INPUTS = ('q', 'k', 'v', 'landmarks', 'inverse', 'scale', 'rotary')
KERNELS = dict(laplacian=laplacian_kernel_reference, gaussian=gaussian_kernel_reference)
onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')


def file_of(operator, inputs, **attributes):
    """The bytes of an ONNX file with one operator, of inputs of any size."""
    from onnx import TensorProto, helper

    node = helper.make_node(operator, inputs, ['out'], domain=onnx_ops.DOMAIN, **attributes)
    values = [helper.make_tensor_value_info(i, TensorProto.FLOAT, None) for i in (*inputs, 'out')]
    graph = helper.make_graph([node], 'one', values[:-1], values[-1:])
    opsets = [helper.make_opsetid(*one) for one in (('', 18), (onnx_ops.DOMAIN, onnx_ops.VERSION))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


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


def problem(queries, marks, dims, kernel, rotary):
    """Inputs of the op, tokens as ``(B, heads, N, d)``."""
    q, k, v = torch.randn(3, 2, 2, queries, dims)
    landmarks = torch.randn(2, 2, marks, dims)
    matrix = KERNELS[kernel](landmarks, landmarks, 4.0)
    angles = torch.randn(dims // 2, queries)
    inputs = dict(q=q, k=k, v=v, landmarks=landmarks, scale=torch.randn(2, 2).exp())
    inputs['inverse'] = cholesky_inverse_reference(matrix, 1e-2)
    return inputs | (dict(rotary=torch.stack((angles.cos(), angles.sin()))) if rotary else {})


@pytest.mark.build
@pytest.mark.parametrize(
    ('kernel', 'whitening', 'adjacent', 'rotary'),
    [
        ('laplacian', 1e-5, False, True),
        ('laplacian', -1.0, True, True),
        ('gaussian', 1e-5, False, False),
    ],
)
def test_the_attention_is_the_references(kernel, whitening, adjacent, rotary, session):
    options = dict(kernel=kernel, bandwidth=4.0)
    attributes = dict(options, whitening=whitening, adjacent=int(adjacent))
    content = file_of('NystromAttention', INPUTS if rotary else INPUTS[:-1], **attributes)
    for sizes in ((1, 4, 8), (97, 9, 17), (1025, 3, 59)):
        inputs = problem(*sizes, kernel, rotary)
        expected = nystrom_attention_reference(
            **dict(dict(rotary=None), **inputs),
            **options,
            whitening_eps=whitening if whitening > 0 else None,
            rotary_form='pairs' if adjacent else 'half',
        )
        # The operator has tokens as (B, N, heads, d).
        given = inputs | {name: inputs[name].transpose(1, 2) for name in 'qkv'}
        # The kernels of the compiled op, whose sums are in another order.
        found = session(content)(**given)
        assert_alike(found.transpose(1, 2), expected)
    assert torch.equal(found, session(content, threads=2)(**given))


@pytest.mark.build
def test_the_inverse_is_that_of_the_reference_and_nan_where_there_is_none(session):
    run = session(file_of('CholeskyInverse', ['mat'], ridge=1e-2))
    for size in (1, 49, 65):
        points = torch.randn(3, 2, size, 16)
        mat = laplacian_kernel_reference(points, points, 4.0)
        assert_alike(run(mat=mat), cholesky_inverse_reference(mat, 1e-2))
    assert run(mat=torch.tensor([[1.0, 2.0], [2.0, 1.0]])).isnan().all()


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
    assert ours == {'CholeskyInverse', 'NystromAttention'}

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
