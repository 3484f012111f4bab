"""The ops as standard operators of ONNX, by both exporters, in ONNX Runtime."""

import pytest
import torch
from conftest import needs_torch
from onnx_files import assert_alike, operators, session, to_onnx

from mmlaplace import ops
from mmlaplace.deployment import exporting
from mmlaplace.ops.cholesky_inverse import inverse_by_products
from mmlaplace.ops.newton_start_scale import newton_start_scale
from mmlaplace.ops.rotary import rotary_table

onnx = pytest.importorskip('onnx')
pytest.importorskip('onnxruntime')

HW = (6, 7)


def spd(x):
    return ops.laplacian_kernel(x, x, 4.0)


def attend(x, **options):
    """Attention of tokens that are queries, keys and values."""
    landmarks = ops.pooled_landmarks(x, HW, cells=(3, 3))
    inverse = ops.cholesky_inverse(ops.laplacian_kernel(landmarks, landmarks, 4.0), check=False)
    return ops.nystrom_attention(x, x, x, landmarks, inverse, 4.0, **options)


def attend_turned(x):
    table = rotary_table(*HW, 2, 100.0, 'pairs', x)
    return attend(x, rotary=table, rotary_form='pairs', whitening_eps=1e-5)


# What each op makes of tokens (B, heads, N, d).
OPS = {
    'laplacian_kernel': lambda x: ops.laplacian_kernel(x, x[:, :, :5], 4.0),
    'gaussian_kernel': lambda x: ops.gaussian_kernel(x, x[:, :, :5], 2.0),
    'newton_schulz_inverse': lambda x: ops.newton_schulz_inverse(spd(x), check=False),
    'newton_schulz_inverse, SOFT': lambda x: ops.newton_schulz_inverse(
        spd(x), 4, 0.1, start_scale=newton_start_scale(spd(x), 2.0, halve=True, per_batch=True)
    ),
    'cholesky_inverse': lambda x: ops.cholesky_inverse(spd(x)),
    'inverse_residual': lambda x: ops.inverse_residual(spd(x), spd(x), 0.1),
    'nystrom_attention': attend,
    'nystrom_attention, turned and whitened': attend_turned,
    'pooled_landmarks, ratio': lambda x: ops.pooled_landmarks(x, HW, ratio=4),
}


class Op(torch.nn.Module):
    def __init__(self, *functions):
        super().__init__()
        self.functions = functions

    def forward(self, x):
        return torch.cat([function(x).flatten(1) for function in self.functions], dim=1)


def tokens(batch=2):
    return torch.randn(batch, 2, HW[0] * HW[1], 8)


def check(functions, dynamo):
    module = Op(*functions)
    content = to_onnx(module, (tokens(),), dynamo, dynamic=[{0: 'batch'}])
    assert operators(content) <= {'', 'pkg.onnxscript.torch_lib'}
    run = session(content)
    for batch in (2, 3):
        x = tokens(batch)
        assert_alike(run(x), module(x))


@pytest.mark.parametrize('name', OPS)
def test_an_op_leaves_as_standard_operators(name):
    check([OPS[name]], dynamo=False)


@needs_torch(2, 7)  # since then the new exporter takes dynamic shapes
@pytest.mark.slow
@pytest.mark.thorough
def test_ops_leave_by_the_new_exporter():
    pytest.importorskip('onnxscript')
    # Together, as each export takes seconds. Attention has the Laplacian, pooling and an inverse.
    names = ('gaussian_kernel', 'newton_schulz_inverse, SOFT', 'pooled_landmarks, ratio')
    check([attend_turned, *(OPS[name] for name in names)], dynamo=True)


def test_a_compiled_op_is_refused_where_onnx_has_none():
    op = Op(lambda x: ops.laplacian_kernel(x, x, 4.0, backend='native'))
    with pytest.raises(RuntimeError, match="ONNX has no such operator.*backend='auto'"):
        to_onnx(op, (tokens(),))


@pytest.mark.parametrize('bounded', [False, True])
@pytest.mark.parametrize('ridge', [1e-2, 1e-4, 0.0, None])
def test_the_inverse_by_products_is_that_of_cholesky(ridge, bounded):
    x = 0.1 * torch.randn(3, 2, 49, 16)
    mat = spd(0 * x if ridge is None else x)  # landmarks that are all equal
    shift = 1e-2 if ridge is None else ridge
    expected = ops.cholesky_inverse(mat.double(), shift)
    bound = 49 + shift if bounded else None
    error = (inverse_by_products(mat + shift * torch.eye(49), shift, bound) - expected).norm()
    # The rounding of fp32 times a condition number of 300, or of 4,900.
    assert error < (1e-3 if ridge is None else 1e-4) * expected.norm()


@needs_torch(2, 6)
@pytest.mark.parametrize('limited', ['by each matrix', 'by a number', 'not at all'])
def test_the_steps_of_an_inverse_are_one_node_that_a_file_has_as_standard_operators(
    limited, tmp_path
):
    """An exporter's time grows with the nodes of its graph."""
    pytest.importorskip('onnxscript')

    class Inverse(torch.nn.Module):
        def forward(self, x):
            if limited == 'not at all':
                return ops.newton_schulz_inverse(spd(x), check=False)
            bound = 42.0 if limited == 'by a number' else None
            return inverse_by_products(spd(x) + 1e-2 * torch.eye(42), 1e-2, bound)

    with exporting.backend_of('onnx', 'reference'):
        program = torch.export.export(Inverse(), (tokens(),), strict=False)
    found = [node for node in program.graph.nodes if '_inverse_steps' in str(node.target)]
    assert len(found) == 1
    path = tmp_path / 'inverse.onnx'
    exporting.write_onnx(program, path, dict(inputs=['x'], outputs=['out']))
    content = path.read_bytes()
    assert operators(content) <= {'', 'ai.onnx'}
    kinds = [node.op_type for node in onnx.load_from_string(content).graph.node]
    # A number limits by one operator.
    assert ('Clip' in kinds, 'Min' in kinds) == (
        limited == 'by a number',
        limited == 'by each matrix',
    )
    x = 0.1 * tokens()  # nearly equal, so that all steps are needed
    assert_alike(session(content)(x), Inverse()(x))


def test_an_inverse_has_as_many_steps_as_its_bound_needs():
    counts = {}
    for bound in (None, 49.0, 4.0):
        run = Op(lambda x, bound=bound: ops.cholesky_inverse(spd(x), bound=bound, check=False))
        content = to_onnx(run, (tokens(),))
        nodes = onnx.load_from_string(content).graph.node
        counts[bound] = sum(node.op_type == 'MatMul' for node in nodes)
    # Two products a step but for the first, which has none: a condition number of 1e5, of 4,900
    # and of 400.
    assert counts == {None: 22, 49.0: 18, 4.0: 14}
    with pytest.raises(ValueError, match='bound must be positive, got 0'):
        ops.cholesky_inverse(spd(tokens()), bound=0)
