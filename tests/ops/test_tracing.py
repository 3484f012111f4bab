"""The native ops inside torch.compile, torch.export and under torch's own op checks."""

import functools

import pytest
import torch
from conftest import NO_GPU, needs_torch
from op_results import results

from mmlaplace import ops
from mmlaplace.ops import _native
from mmlaplace.ops.table import OPS as TABLE

DEVICES = ['cpu', pytest.param('cuda', marks=NO_GPU)]
needs_compile = needs_torch(2, 4)


def points(*shape, device='cpu', dtype=torch.float32, requires_grad=True):
    return torch.randn(*shape, device=device, dtype=dtype, requires_grad=requires_grad)


def spd(device='cpu', dtype=torch.float32):
    x = torch.randn(2, 3, 7, 4, device=device, dtype=dtype)
    return ops.laplacian_kernel(x, x, 4.0, backend='reference').requires_grad_()


def attention(whitening_eps=1e-2, **kw):
    """Arguments of nystrom_attention, with a table of angles."""
    q, k, v, marks = (points(2, 3, tokens, 5, **kw) for tokens in (11, 11, 11, 7))
    rest = {key: value for key, value in kw.items() if key != 'requires_grad'}
    inverse, scale = spd(**rest).detach(), points(2, 3, **kw)
    inverse.requires_grad_(kw.get('requires_grad', True))
    rotary = points(2, 2, 11, requires_grad=False, **rest)
    return q, k, v, marks, inverse, scale, rotary, 'laplacian', 4.0, whitening_eps, 'pairs'


def features(streams=1, **kw):
    """Arguments of linear_attention, with a numerator for one stream."""
    q, k, v, *tops = (
        points(2, 3, *size, **kw) for size in ((11, 6), (7, 6), (7, 5), (11, 6), (7, 6))
    )
    tops = tops if streams == 1 else (None, None)
    return q, k, v, *tops, 1e-2, 'elu_plus_one', streams


def of_table(name, device='cpu', dtype=torch.float32, requires_grad=True):
    """Arguments of a compiled op, as the table of ops calls it."""
    tensors = {
        key: value.to(device, dtype).requires_grad_(requires_grad)
        for key, value in TABLE[name].tensors().items()
    }
    return TABLE[name].compiled_arguments(**tensors)


# Every native op of the library with arguments for it. Two have more kinds than their row.
ARGUMENTS = {name: functools.partial(of_table, name) for name in TABLE}
ARGUMENTS.update(nystrom_attention=attention, linear_attention=features)


def test_every_public_native_op_is_in_the_table():
    assert set(TABLE) == {name for name in _native.AVAILABLE if not name.startswith('_')}


@needs_compile
@pytest.mark.parametrize('name', TABLE)
def test_a_row_of_the_table_calls_the_op_and_its_function_alike(name):
    op, row = getattr(torch.ops.mmlaplace, name), TABLE[name]
    tensors = {key: value.double() for key, value in row.tensors().items()}
    out = op(*row.compiled_arguments(**tensors))
    expected = getattr(ops, name)(**tensors, **row.options, backend='reference')
    torch.testing.assert_close(out[0] if isinstance(out, tuple) else out, expected)


@pytest.mark.sampled(5)
@needs_compile
@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize('name', ARGUMENTS)
def test_opcheck(name, dtype, device):
    op = getattr(torch.ops.mmlaplace, name).default
    tolerances = dict(atol=5e-2, rtol=5e-2) if dtype == torch.bfloat16 else {}
    torch.library.opcheck(op, ARGUMENTS[name](device=device, dtype=dtype), **tolerances)


@needs_compile
@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('size', [7, 64])
@pytest.mark.parametrize('name', ['cholesky_inverse', 'newton_schulz_inverse'])
def test_inverses_of_any_size_have_the_strides_that_graphs_expect(name, size, device):
    op = getattr(torch.ops.mmlaplace, name).default
    mat = torch.eye(size, device=device).expand(2, size, size)
    arguments = (20, 1e-2) if name == 'newton_schulz_inverse' else (1e-2,)
    expected = op(mat.to('meta'), *arguments)
    assert op(mat, *arguments).stride() == expected.stride()


@needs_compile
@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('name', [n for n in ARGUMENTS if f'_{n}_backward' in _native.AVAILABLE])
def test_opcheck_of_the_gradients(name, device):
    backward = getattr(torch.ops.mmlaplace, f'_{name}_backward').default
    arguments = ARGUMENTS[name](device=device, requires_grad=False)
    out = getattr(torch.ops.mmlaplace, name)(*arguments)
    grad = torch.randn_like(out[0] if isinstance(out, tuple) else out)
    tensors = sum(value is None or isinstance(value, torch.Tensor) for value in arguments[:7])
    kept = out[1:] if isinstance(out, tuple) else (out,)  # what the op leaves for its backward
    kept = () if name == 'pooled_landmarks' else kept
    inputs = (grad, *arguments[:tensors], *kept, *arguments[tensors:])
    torch.library.opcheck(backward, inputs)


IN_ALL_OPS = (
    'laplacian_kernel',
    'gaussian_kernel',
    'newton_schulz_inverse',
    'cholesky_inverse',
    'nystrom_attention',
    'normalized_nystrom_attention',
    'kernel_attention',
    'linear_attention',
    'pooled_landmarks',
)


def all_ops(q, k, ops=ops):
    marks = ops.pooled_landmarks(k, (1, k.shape[2]), cells=(1, 5))
    matrix = ops.laplacian_kernel(marks, marks, 4.0)
    skewed = matrix + 0.1 * matrix.triu(1)  # of which Cholesky inverts the mean of both triangles
    weights = ops.newton_schulz_inverse(matrix) @ ops.cholesky_inverse(skewed, 0.5)
    mixed = ops.nystrom_attention(q, k, k, marks, weights, 4.0, whitening_eps=1e-2)
    mixed = mixed + ops.normalized_nystrom_attention(q, k, k, marks, weights, 4.0, floor=0.5)
    mixed = mixed + ops.kernel_attention(q, k, k, 4.0)
    # On a CPU it is torch's products unless asked, and so no op.
    linear = ops.linear_attention(q, k, k, features='elu_plus_one', backend='native')
    return mixed + linear + ops.gaussian_kernel(q, marks, 2.0) @ weights @ marks


class AllOps(torch.nn.Module):
    def forward(self, q, k):
        return all_ops(q, k)


@pytest.mark.slow
@needs_compile
@pytest.mark.parametrize('device', DEVICES)
@pytest.mark.parametrize('backend', ['auto', pytest.param('reference', marks=pytest.mark.thorough)])
# Sizes are symbols after a change, or at once.
@pytest.mark.parametrize('dynamic', [None, pytest.param(True, marks=pytest.mark.thorough)])
def test_compile_in_one_graph_for_any_size(backend, device, dynamic):
    bandwidth = torch.nn.Parameter(torch.tensor([[[2.0]], [[3.0]], [[4.0]]], device=device))

    def function(q, k):
        marks = ops.laplacian_kernel(k, k, bandwidth)
        few = ops.newton_schulz_inverse(marks, 3, start=0.1 * marks)  # that have not converged
        few = few + ops.newton_schulz_inverse(marks, 3, start_scale=0.1)
        return all_ops(q, k) + ops.laplacian_kernel(q, k, 4.0) @ few @ k

    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend='aot_eager')
    for tokens in (12, 31, 17):  # the last two by one graph
        q, k = points(2, 3, tokens, 8, device=device), points(2, 3, 5, 8, device=device)
        with ops.use_backend(backend):
            expected, result = function(q, k), compiled(q, k)
        torch.testing.assert_close(result, expected)
        inputs = (q, k, bandwidth)
        grads, truth = (torch.autograd.grad(x.square().sum(), inputs) for x in (result, expected))
        # The same kernels; the products between them may be summed in another order.
        torch.testing.assert_close(grads, truth, rtol=1e-4, atol=1e-4)


@needs_compile
@pytest.mark.slow
def test_a_step_compiles_whose_backward_runs_outside_of_its_graphs():
    # As in mmengine with compile=dict(target='train_step'), where parts of a model run eagerly.
    def step(q):
        ops.laplacian_kernel(q, q[:, :, :3], 4.0).square().sum().backward()
        return q.grad

    q = points(1, 2, 9, 4)
    expected = step(q).clone()
    q.grad = None
    torch.testing.assert_close(torch.compile(step, backend='eager')(q), expected, atol=0, rtol=0)


def test_jit_trace_keeps_the_ops():
    q, k = points(2, 3, 12, 8, requires_grad=False), points(2, 3, 5, 8, requires_grad=False)
    traced = torch.jit.trace(all_ops, (q, k))
    assert all(f'mmlaplace::{name}' in str(traced.graph) for name in IN_ALL_OPS)
    torch.testing.assert_close(traced(2 * q, 2 * k), all_ops(2 * q, 2 * k))


@needs_torch(2, 6)
@pytest.mark.parametrize('backend', ['auto', 'reference'])
def test_an_exported_graph_keeps_the_ops_and_their_gradients(backend):
    q, k = points(2, 3, 12, 8, requires_grad=False), points(2, 3, 5, 8, requires_grad=False)
    tokens = torch.export.Dim('tokens', min=2, max=4096)
    with ops.use_backend(backend):
        program = torch.export.export(AllOps(), (q, k), dynamic_shapes=({2: tokens}, None))
        code = program.graph_module.print_readable(print_output=False)
        kept = [name for name in IN_ALL_OPS if f'mmlaplace.{name}.default' in code]
        assert kept == (list(IN_ALL_OPS) if backend == 'auto' else ['linear_attention'])
        inputs = points(2, 3, 40, 8), k.requires_grad_()  # no gradients when the graph was made
        found, expected = (
            results(f, inputs, torch.ones_like(inputs[0])) for f in (program.module(), all_ops)
        )
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)  # sums in another order
