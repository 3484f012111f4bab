"""The two kernels: agreement with independent truths, gradients, precisions and NaN."""

import pytest
import torch
from conftest import fast_with
from sklearn.metrics.pairwise import laplacian_kernel as sklearn_laplacian
from sklearn.metrics.pairwise import rbf_kernel as sklearn_rbf

from mmlaplace.ops import gaussian_kernel, laplacian_kernel

# Each op with scikit-learn's function of (x, y, bandwidth) as the independent truth, and with its
# formula written out on differences (B, heads, N, M, d), to be computed in any precision.
OPS = {
    'laplacian_kernel': (
        laplacian_kernel,
        lambda x, y, s: sklearn_laplacian(x, y, gamma=1 / s),
        lambda difference, s: torch.exp(-difference.abs().sum(-1) / s),
    ),
    'gaussian_kernel': (
        gaussian_kernel,
        lambda x, y, s: sklearn_rbf(x, y, gamma=0.5 / s**2),
        lambda difference, s: torch.exp(-difference.square().sum(-1) / (2 * s**2)),
    ),
}
# N, M, d: one query, fewer queries than keys, sizes around and off powers of two.
SHAPES = [(1, 4, 8), (3, 49, 17), (97, 10, 59), (1025, 49, 64), (130, 70, 111)]


@pytest.fixture(params=OPS, name='name')
def _name(request):
    return request.param


@pytest.fixture(name='op')
def _op(name, computed_by):
    return computed_by(OPS[name][0])


def tokens(num_queries, num_keys, dims, dtype=torch.float64, device='cpu', batch=2, heads=3):
    # Divided by sqrt(d), so that the kernel is neither 0 nor 1 at any d.
    scale = dims**-0.5
    q = torch.randn(batch, heads, num_queries, dims, dtype=torch.float64) * scale
    k = torch.randn(batch, heads, num_keys, dims, dtype=torch.float64) * scale
    return q.to(device, dtype), k.to(device, dtype)


def with_gradients(function, q, k, grad):
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    out = function(q, k)
    return (out, *torch.autograd.grad(out, (q, k), grad.to(out.dtype)))


@pytest.mark.parametrize('shape', fast_with(SHAPES, SHAPES[1], SHAPES[2]))
def test_values_and_gradients_are_those_of_the_formula(name, op, shape, device):
    q, k = tokens(*shape, device=device)
    upstream = torch.randn(2, 3, *shape[:2], dtype=torch.float64, device=device)
    _, of_scikit_learn, formula = OPS[name]
    results = with_gradients(lambda q, k: op(q, k, 1.7), q, k, upstream)
    truth = with_gradients(
        lambda q, k: formula(q[..., :, None, :] - k[..., None, :, :], 1.7), q, k, upstream
    )
    # Sums of up to 1,025 numbers of order 1 in fp64.
    torch.testing.assert_close(results, truth, atol=1e-10, rtol=0)
    for out, x, y in zip(*(tensor.flatten(0, 1).cpu().detach() for tensor in (results[0], q, k))):
        expected = torch.from_numpy(of_scikit_learn(x.numpy(), y.numpy(), 1.7))
        # scikit-learn expands the Gaussian's square, which costs it some digits of fp64.
        torch.testing.assert_close(out, expected, atol=1e-10, rtol=0)


def test_gradient_at_coinciding_points_is_zero(op, device):
    q = torch.tensor([[[[0.0, -0.0, 1.0, -2.0]]]], device=device, requires_grad=True)
    k = torch.tensor([[[[-0.0, 0.0, 0.5, -2.0]]]], device=device, requires_grad=True)
    op(q, k, 1.0).sum().backward()
    assert (q.grad[0, 0, 0] == 0).tolist() == [True, True, False, True]
    assert torch.equal(k.grad, -q.grad)


def test_large_distances_give_zero_and_no_nan(op, device):
    q = torch.full((1, 1, 3, 4), 1e4, device=device, requires_grad=True)
    k = torch.full((1, 1, 2, 4), -1e4, device=device, requires_grad=True)
    out = op(q, k, 0.5)
    out.sum().backward()
    assert out.abs().max() == q.grad.abs().max() == k.grad.abs().max() == 0


# Dimensions that are whole vectors of the CPU code, and keys that leave a lane over, or not so.
@pytest.mark.parametrize('dims', [8, 32, 59])
@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_nan_makes_its_row_and_column_nan_and_nothing_else(op, dtype, dims, device):
    q, k = tokens(50, 49, dims, dtype, device)
    expected = torch.zeros(2, 3, 50, 49, dtype=torch.bool, device=device)
    for row in (0, 7, 49):
        q[0, 0, row, dims - 1] = float('nan')
        expected[0, 0, row] = True
    for column in (0, 17, 48):
        k[1, 2, column, 0] = float('nan')
        expected[1, 2, :, column] = True
    assert torch.equal(op(q, k, 1.0).isnan(), expected)


def test_nan_in_the_gradient_stays_in_its_matrix(op, device):
    q, k = tokens(50, 49, 32, torch.float32, device)
    spoilt = q.clone()
    spoilt[0, 1, 7, 3] = float('nan')
    clean, found = (
        with_gradients(lambda q, k: op(q, k, 1.0), queries, k, torch.ones_like(q @ k.mT))[1:]
        for queries in (q, spoilt)
    )
    assert found[0][0, 1, 7].isnan().all() and found[1][0, 1].isnan().all()
    for result, before in zip(found, clean):
        result[0, 1] = before[0, 1]
        assert torch.equal(result, before)


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
        out, *grads = with_gradients(lambda q, k: op(q, k, bandwidth), q, q, upstream)  # noqa: B023
        expected = torch.full((5, 5), float(off), device=device).fill_diagonal_(1)
        assert torch.equal(out, expected.expand_as(out))
        assert all(grad.isfinite().all() for grad in grads)
    with pytest.raises(ValueError, match=rf'at least {SMALLEST[name]}.*fp32, got 1e-39'):
        op(q, q, 1e-39)


def test_the_old_name_of_the_bandwidth_is_answered_by_the_new_one(name):
    with pytest.raises(TypeError, match=f"{name} has no argument 'scale'.*'bandwidth'"):
        OPS[name][0](*tokens(2, 2, 2), scale=4.0)
