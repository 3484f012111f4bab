"""The short way of the public ops: the compiled op at once, and the long way where it refuses."""

import functools

import pytest
import torch
from called_ops import Called
from conftest import needs_torch
from op_results import results
from test_contracts import OPS, example
from torch.autograd import forward_ad

from mmlaplace.ops import _native, cholesky_inverse, laplacian_kernel, newton_schulz_inverse
from mmlaplace.ops.newton_start_scale import newton_start_scale
from mmlaplace.ops.precision import full_fp32

pytestmark = pytest.mark.skipif(
    _native.WHY_MISSING is not None, reason='the compiled library is missing'
)
# On a CPU torch's products compute linear_attention.
names = pytest.mark.parametrize('name', [name for name in OPS if name != 'linear_attention'])
INVERSES = {
    'cholesky_inverse': cholesky_inverse,
    'newton_schulz_inverse': newton_schulz_inverse,
    'newton_start_scale': functools.partial(
        newton_start_scale, factor=1.8, halve=True, per_batch=False
    ),
}
inverses = pytest.mark.parametrize('name', INVERSES)


@names
def test_the_short_way_has_the_values_and_derivatives_of_the_long_one(name):
    tensors, options = example(name)
    leaves = [tensor.requires_grad_() for tensor in tensors.values()]

    def derivatives(backend):
        out = OPS[name](**tensors, **options, backend=backend)
        first = torch.autograd.grad(out.sin().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(value.sin().sum() for value in first), leaves)
        return (out, *first, *second)

    torch.testing.assert_close(derivatives('auto'), derivatives('native'), rtol=0, atol=0)


@names
@pytest.mark.parametrize('context', [torch.no_grad, torch.enable_grad])
def test_no_derivative_in_forward_mode_is_left_out_silently(name, context):
    tensors, options = example(name)
    with context(), forward_ad.dual_level(), pytest.raises(NotImplementedError, match='jvp'):
        duals = {
            key: forward_ad.make_dual(value, torch.ones_like(value))
            for key, value in tensors.items()
        }
        OPS[name](**duals, **options)


def test_what_is_right_in_another_form_than_the_ops_is_computed():
    q = torch.randn(1, 2, 6, 4)
    attend, last = OPS['nystrom_attention'], (q[:, :, :3], torch.eye(3).expand(1, 2, 3, 3), 4.0)
    expected = attend(q, q.bfloat16().float(), q, *last)
    assert torch.equal(attend(q, q.bfloat16(), q, *last), expected)
    bandwidth = torch.tensor(4.0, requires_grad=True)
    assert laplacian_kernel(q, q, bandwidth).requires_grad


def large(size=513):
    points = torch.randn(2, 1, size, 32, dtype=torch.float64)
    return laplacian_kernel(points, points, 4.0)[:, 0]


@inverses
def test_large_matrices_take_the_reference(name):
    mat, function = large(), INVERSES[name]
    reference = functools.partial(function, backend='reference')
    with Called() as called:
        out = function(mat)
    assert 'aten' in called.namespaces
    assert torch.equal(out, reference(mat))
    with pytest.raises(RuntimeError, match=f'{name}: .*at most 512 rows, got 513'):
        function(mat, backend='native')
    torch.testing.assert_close(torch.func.vmap(function)(mat), out)
    if name != 'newton_start_scale':
        found, expected = (
            results(one, dict(mat=mat), torch.ones_like(out)) for one in (function, reference)
        )
        assert all(map(torch.equal, found, expected))


class Inverse(torch.nn.Module):
    def forward(self, mat):
        return INVERSES[self.name](mat)


@needs_torch(2, 5)
@inverses
@pytest.mark.parametrize('size', [512, 513])
def test_a_graph_holds_the_reference_for_large_matrices_alone(name, size):
    mat, module = large(size), Inverse()
    module.name = name
    program = torch.export.export(module, (mat,), strict=False)
    assert ('mmlaplace' in program.graph_module.code) == (size == 512)
    torch.testing.assert_close(program.module()(mat), module(mat))


def test_full_fp32_leaves_tf32_as_it_was(monkeypatch):
    settings = torch.backends.cuda.matmul
    name, allowed = 'fp32_precision', 'tf32'
    if not hasattr(torch._C, '_set_fp32_precision_setter'):
        name, allowed = 'allow_tf32', True
    monkeypatch.setattr(settings, name, allowed)
    with pytest.raises(ZeroDivisionError), full_fp32(torch.device('cuda')):
        assert getattr(settings, name) in ('ieee', False)
        raise ZeroDivisionError
    with full_fp32(torch.device('cpu')):
        assert getattr(settings, name) == allowed
