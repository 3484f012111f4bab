"""The two kernels: scikit-learn's values, coinciding points, NaN, autocast and bandwidths."""

import pytest
import torch
from conftest import ON_X86
from op_results import results
from sklearn.metrics import pairwise

from mmlaplace.ops import gaussian_kernel, laplacian_kernel

# Each op with scikit-learn's function, and its factor for a bandwidth of 1.7.
OPS = {
    'laplacian_kernel': (laplacian_kernel, pairwise.laplacian_kernel, 1 / 1.7),
    'gaussian_kernel': (gaussian_kernel, pairwise.rbf_kernel, 0.5 / 1.7**2),
}


@pytest.fixture(params=OPS, name='name')
def _name(request):
    return request.param


@pytest.fixture(name='op')
def _op(name, computed_by):
    return computed_by(OPS[name][0])


def tokens(queries, keys, dims, dtype=torch.float64, device='cpu'):
    # Divided by sqrt(d), so that the kernel is neither 0 nor 1 at any d.
    shapes = [(2, 3, count, dims) for count in (queries, keys)]
    q, k = (torch.randn(shape, dtype=torch.float64) * dims**-0.5 for shape in shapes)
    return q.to(device, dtype), k.to(device, dtype)


# N, M, d: one query, many of them, and sizes off powers of two.
@pytest.mark.parametrize('shape', [(1, 4, 8), (1025, 49, 64), (130, 70, 111)])
def test_values_are_those_of_scikit_learns_formula(name, op, shape, device):
    q, k = tokens(*shape, device=device)
    _, theirs, gamma = OPS[name]
    for out, x, y in zip(*(tensor.flatten(0, 1).cpu() for tensor in (op(q, k, 1.7), q, k))):
        expected = torch.from_numpy(theirs(x.numpy(), y.numpy(), gamma=gamma))
        # scikit-learn expands the Gaussian's square, which costs it some digits of fp64.
        torch.testing.assert_close(out, expected, atol=1e-10, rtol=0)


@ON_X86
def test_tiny_kernels_are_zeros_on_a_cpu_and_the_callers_tiny_numbers_stay(name):
    q, k = (
        torch.zeros(1, 1, 1, 1),
        torch.tensor([[[[1.0], [88.0], [200.0]]]]),
    )  # exp(-88) is subnormal, and slow
    if name == 'gaussian_kernel':
        k = (2 * k).sqrt()  # the exponents are those of the Laplacian
    out = OPS[name][0](q, k, 1.0).flatten()
    assert out[0] > 0.3 and out[1:].tolist() == [0, 0]
    assert (torch.full((9,), 1e-39) * 1.0).min() > 0


def test_gradient_at_coinciding_points_is_zero(op, device):
    q = torch.tensor([[[[0.0, -0.0, 1.0, -2.0]]]], device=device, requires_grad=True)
    k = torch.tensor([[[[-0.0, 0.0, 0.5, -2.0]]]], device=device, requires_grad=True)
    op(q, k, 1.0).sum().backward()
    assert (q.grad[0, 0, 0] == 0).tolist() == [True, True, False, True]
    assert torch.equal(k.grad, -q.grad)


# Dimensions that are whole vectors of the CPU code, and keys that leave a lane over, or not so.
@pytest.mark.parametrize('dims', [8, 32, 59])
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_nan_makes_its_row_and_column_nan_and_nothing_else(op, dtype, dims, device):
    q, k = tokens(50, 49, dims, dtype, device)
    expected = torch.zeros(2, 3, 50, 49, dtype=torch.bool, device=device)
    rows, columns = [0, 7, 49], [0, 17, 48]
    q[0, 0, rows, dims - 1] = k[1, 2, columns, 0] = float('nan')
    expected[0, 0, rows] = expected[1, 2, :, columns] = True
    assert torch.equal(op(q, k, 1.0).isnan(), expected)


def test_mixed_dtypes_fit_under_autocast_alone(op, device):
    q, k = tokens(20, 5, 16, torch.bfloat16, device)
    marks = k.float().requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        for out in (op(q, marks, 1.7), op(marks, q, 1.7).transpose(-2, -1)):
            assert out.dtype == torch.float32
            torch.testing.assert_close(out, op(q.float(), marks, 1.7))
        with pytest.raises(ValueError, match='float64'):  # that autocast leaves alone, as in torch
            op(q, marks.double(), 1.7)
    out.sum().backward()
    assert marks.grad.dtype == torch.float32
    with pytest.raises(ValueError, match='bfloat16.*float32.*share dtype'):
        op(q, marks, 1.7)


# The smallest bandwidth whose exponent, of 2, is finite in fp32: 1 / (ln 2 * 3.4e38), and
# 3.4e38^-1/2.
SMALLEST = {'laplacian_kernel': 4.24e-39, 'gaussian_kernel': 5.42e-20}


def test_bandwidths_down_to_the_smallest_are_right_and_smaller_ones_quoted(name, op, device):
    q, _ = tokens(5, 5, 3, torch.float32, device)
    upstream = torch.ones(2, 3, 5, 5, device=device)
    for bandwidth, off in ((1.01 * SMALLEST[name], 0), (1e30, 1)):
        out, *grads = results(lambda q, k: op(q, k, bandwidth), [q, q], upstream)  # noqa: B023
        expected = torch.full((5, 5), float(off), device=device).fill_diagonal_(1)
        assert torch.equal(out, expected.expand_as(out))
        assert all(grad.isfinite().all() for grad in grads)
    with pytest.raises(ValueError, match=rf'at least {SMALLEST[name]}.*fp32, got 1e-39'):
        op(q, q, 1e-39)
