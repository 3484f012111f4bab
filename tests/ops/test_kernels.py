"""The two kernels: agreement with independent truths, gradients, precisions, shapes, bad input."""

import pytest
import torch
from conftest import by_threads
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
SHAPES = [(1, 4, 8), (3, 49, 17), (49, 49, 32), (97, 10, 59), (1025, 49, 64), (130, 70, 111)]


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


@pytest.mark.parametrize('shape', SHAPES)
def test_agrees_with_scikit_learn(name, op, shape, device):
    q, k = tokens(*shape, device=device)
    out = op(q, k, 1.7).cpu()
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            x, y = q[b, h].cpu().numpy(), k[b, h].cpu().numpy()
            expected = torch.from_numpy(OPS[name][1](x, y, 1.7))
            # scikit-learn expands the Gaussian's square, which costs it some digits of fp64.
            torch.testing.assert_close(out[b, h], expected, atol=1e-10, rtol=0)


def with_gradients(function, q, k, grad):
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    out = function(q, k)
    return (out, *torch.autograd.grad(out, (q, k), grad.to(out.dtype)))


@pytest.mark.sampled(5)
@pytest.mark.parametrize('shape', SHAPES)
def test_values_and_gradients_are_those_of_the_formula(name, op, shape, device):
    q, k = tokens(*shape, device=device)
    grad = torch.randn(2, 3, *shape[:2], dtype=torch.float64, device=device)
    formula = OPS[name][2]
    results = with_gradients(lambda q, k: op(q, k, 1.7), q, k, grad)
    truth = with_gradients(
        lambda q, k: formula(q[..., :, None, :] - k[..., None, :, :], 1.7), q, k, grad
    )
    for result, expected in zip(results, truth):
        # Sums of up to 1,025 numbers of order 1 in fp64.
        torch.testing.assert_close(result, expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
def test_errors_are_at_most_twice_those_of_the_formula_in_the_same_precision(
    name, op, dtype, device
):
    q, k = tokens(97, 49, 64, dtype, device)
    grad = torch.randn(2, 3, 97, 49, device=device).to(dtype)
    formula = OPS[name][2]

    def same_precision(q, k):
        return formula(q[..., :, None, :] - k[..., None, :, :], 1.7)

    results = with_gradients(lambda q, k: op(q, k, 1.7), q, k, grad)
    plain = with_gradients(same_precision, q, k, grad)
    exact = with_gradients(same_precision, q.double(), k.double(), grad)
    for result, same, truth in zip(results, plain, exact):
        assert result.dtype == dtype
        error, allowed = (result.double() - truth).abs().max(), (same.double() - truth).abs().max()
        # One unit in the last place more: both may be exact to the last digit.
        assert error <= 2 * allowed + torch.finfo(dtype).eps * truth.abs().max()


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precisions_accumulate_in_fp32(op, dtype, device):
    q, k = tokens(97, 49, 64, dtype, device)
    out = op(q, k, 1.7)
    assert out.dtype == dtype
    exact = op(q.double(), k.double(), 1.7)
    # Values in (0, 1]: one rounding of the result; fp32 also rounds the sums over d.
    tolerance = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    assert (out.double() - exact).abs().max() <= tolerance


def test_gradcheck(op, device):
    q, k = tokens(5, 4, 3, device=device)
    q.requires_grad_()
    k.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: op(q, k, 1.7), (q, k))


def test_gradient_at_coinciding_points_is_zero(op, device):
    q = torch.randn(1, 1, 4, 8, dtype=torch.float64, device=device, requires_grad=True)
    op(q, q.detach(), 2.0).diagonal(dim1=-2, dim2=-1).sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))


def test_gradient_where_one_coordinate_coincides(op, device):
    q = torch.tensor([[[[0.0, -0.0, 1.0, -2.0]]]], device=device, requires_grad=True)
    k = torch.tensor([[[[-0.0, 0.0, 0.5, -2.0]]]], device=device, requires_grad=True)
    op(q, k, 1.0).sum().backward()
    zero = torch.tensor([True, True, False, True], device=device)
    assert torch.equal(q.grad[0, 0, 0] == 0, zero)
    assert torch.equal(k.grad, -q.grad)


def test_one_tensor_as_both(op, device):
    points = torch.randn(2, 1, 9, 4, dtype=torch.float64, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: op(x, x + 0.1, 2.0), points)


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
    grad = torch.ones(2, 3, 50, 49, device=device)
    spoilt = q.clone()
    spoilt[0, 1, 7, 3] = float('nan')
    clean = with_gradients(lambda q, k: op(q, k, 1.0), q, k, grad)
    _, of_q, of_k = with_gradients(lambda q, k: op(q, k, 1.0), spoilt, k, grad)
    assert of_q[0, 1, 7].isnan().all()
    assert of_k[0, 1].isnan().all()
    for result, before in ((of_q, clean[1]), (of_k, clean[2])):
        result[0, 1] = before[0, 1]
        assert torch.equal(result, before)


def strided(x, order):
    """The same values, laid out in memory with the axes in another order."""
    inverse = [order.index(axis) for axis in range(4)]
    return x.permute(order).contiguous().permute(inverse)


@pytest.mark.parametrize('order', [(3, 1, 0, 2), (0, 2, 1, 3), (2, 3, 0, 1)])
def test_any_strides(op, order, device):
    q, k = tokens(30, 6, 16, device=device)
    grad = torch.randn(2, 3, 30, 6, dtype=torch.float64, device=device)
    contiguous = with_gradients(lambda q, k: op(q, k, 2.0), q, k, grad)
    other = with_gradients(
        lambda q, k: op(strided(q, order), strided(k, order), 2.0), q, k, strided(grad, order)
    )
    for result, expected in zip(other, contiguous):
        torch.testing.assert_close(result, expected)
    expanded = with_gradients(lambda q, k: op(q, k, 2.0), q, k, grad[:1, :1].expand_as(grad))
    repeated = with_gradients(lambda q, k: op(q, k, 2.0), q, k, grad[:1, :1].repeat(2, 3, 1, 1))
    for result, expected in zip(expanded, repeated):
        torch.testing.assert_close(result, expected)


def test_a_slice_that_starts_off_alignment(op, device):
    memory = torch.randn(2, 3, 20, 33, device=device)
    sliced = memory[..., 1:]
    torch.testing.assert_close(op(sliced, sliced, 3.0), op(sliced.clone(), sliced.clone(), 3.0))


@pytest.mark.parametrize(
    ('queries', 'keys'),
    [((0, 2, 5, 4), (0, 2, 3, 4)), ((2, 2, 0, 4), (2, 2, 3, 4)), ((2, 2, 5, 4), (2, 2, 0, 4))],
)
def test_empty_inputs(op, queries, keys, device):
    q = torch.randn(*queries, requires_grad=True, device=device)
    k = torch.randn(*keys, requires_grad=True, device=device)
    out = op(q, k, 1.0)
    assert out.shape == (*queries[:3], keys[2])
    out.sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))
    assert torch.equal(k.grad, torch.zeros_like(k))


def test_results_are_the_same_run_to_run(op, device):
    q, k = tokens(3000, 49, 16, torch.float32, device)
    grad = torch.randn(2, 3, 3000, 49, device=device)
    first = with_gradients(lambda q, k: op(q, k, 2.0), q, k, grad)
    for _ in range(3):
        again = with_gradients(lambda q, k: op(q, k, 2.0), q, k, grad)
        assert all(torch.equal(a, b) for a, b in zip(first, again))


def test_results_do_not_depend_on_the_number_of_threads(op, device):
    if device != 'cpu':
        pytest.skip('threads are the CPU’s')
    q, k = tokens(3000, 49, 16, torch.float32)
    grad = torch.randn(2, 3, 3000, 49)
    results = by_threads(lambda: with_gradients(lambda q, k: op(q, k, 2.0), q, k, grad))
    for other in results[1:]:
        for result, expected in zip(other, results[0]):
            torch.testing.assert_close(result, expected, atol=0, rtol=0)


def test_autocast_gives_fp32(op, device):
    q, k = tokens(20, 5, 16, torch.bfloat16, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = op(q, k, 1.7)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, op(q.float(), k.float(), 1.7))


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


def test_meta_tensors_have_the_shape(name):
    q, k = torch.empty(2, 3, 20, 8, device='meta'), torch.empty(2, 3, 5, 8, device='meta')
    assert OPS[name][0](q, k, 1.0).shape == (2, 3, 20, 5)


@pytest.mark.parametrize(
    ('q', 'k', 'bandwidth', 'error', 'message'),
    [
        (torch.ones(3, 4, 8), torch.ones(1, 3, 4, 8), 1.0, ValueError, r'\(3, 4, 8\)'),
        (torch.ones(3, 4, 8), torch.ones(3, 4, 8), 1.0, ValueError, r'q must have the four axes'),
        (torch.ones(1, 1, 4, 8), torch.ones(8), 1.0, ValueError, r'k must have the four axes'),
        (torch.ones(5 * [1]), torch.ones(5 * [1]), 1.0, ValueError, r'q must have the four axes'),
        (torch.ones(1, 2, 4, 8), torch.ones(1, 3, 4, 8), 1.0, ValueError, r'\(1, 3, 4, 8\)'),
        (torch.ones(1, 3, 4, 8), torch.ones(1, 3, 4, 7), 1.0, ValueError, r'\(1, 3, 4, 7\)'),
        (torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8).double(), 1.0, ValueError, 'float64'),
        (torch.ones(1, 1, 2, 8).int(), torch.ones(1, 1, 2, 8).int(), 1.0, TypeError, 'int32'),
        ([1.0], torch.ones(1, 1, 2, 8), 1.0, TypeError, 'list'),
        (torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8), 0.0, ValueError, 'got 0.0'),
        (torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8), -4, ValueError, 'got -4'),
        (torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8), float('nan'), ValueError, 'nan'),
    ],
)
def test_bad_input_is_quoted(name, q, k, bandwidth, error, message):
    with pytest.raises(error, match=message):
        OPS[name][0](q, k, bandwidth)


# The smallest bandwidth whose exponent, of 2, is finite in fp32: 1 / (ln 2 * 3.4e38), and
# 3.4e38^-1/2.
SMALLEST = {'laplacian_kernel': 4.24e-39, 'gaussian_kernel': 5.42e-20}


def test_bandwidths_down_to_the_smallest_are_right_and_smaller_ones_quoted(name, op, device):
    q, k = tokens(5, 5, 3, torch.float32, device)
    for bandwidth in (1.01 * SMALLEST[name], 1e30):
        out = op(q, q, bandwidth)
        assert torch.equal(out.diagonal(dim1=-2, dim2=-1), torch.ones(2, 3, 5, device=device))
        off = out.masked_select(~torch.eye(5, dtype=torch.bool, device=device))
        assert (off == (0 if bandwidth < 1 else 1)).all()
        _, of_q, of_k = with_gradients(lambda q, k: op(q, k, bandwidth), q, k, torch.ones_like(out))  # noqa: B023
        assert of_q.isfinite().all() and of_k.isfinite().all()
    with pytest.raises(ValueError, match=rf'at least {SMALLEST[name]}.*fp32, got 1e-39'):
        op(q, q, 1e-39)


def test_the_old_name_of_the_bandwidth_is_answered_by_the_new_one(name):
    q, k = tokens(2, 2, 2)
    with pytest.raises(TypeError, match=f"{name} has no argument 'scale'.*'bandwidth'"):
        OPS[name][0](q, k, scale=4.0)
    assert torch.equal(OPS[name][0](q, k, bandwidth=4.0), OPS[name][0](q, k, 4.0))


def test_unknown_backend(name):
    q, k = tokens(2, 2, 2)
    with pytest.raises(ValueError, match="'triton'"):
        OPS[name][0](q, k, 1.0, backend='triton')
