"""The ops on random shapes, strides, dtypes and bandwidths, against their formulas in fp64."""

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mmlaplace.ops import (
    cholesky_inverse,
    gaussian_kernel,
    laplacian_kernel,
    newton_schulz_inverse,
)

# Each op, and of its formula exp(-rate(bandwidth) * sum_c f(x_c)) the functions f, f' and rate.
KERNELS = {
    'laplacian': (laplacian_kernel, torch.abs, torch.sign, lambda s: 1 / s),
    'gaussian': (gaussian_kernel, torch.square, lambda x: 2 * x, lambda s: 0.5 / s**2),
}
INVERSES = {
    'native': lambda mat, ridge: newton_schulz_inverse(mat, 30, ridge, backend='native'),
    'reference': lambda mat, ridge: newton_schulz_inverse(mat, 30, ridge, backend='reference'),
    'cholesky': lambda mat, ridge: cholesky_inverse(mat, ridge, backend='reference'),
    'cholesky-native': lambda mat, ridge: cholesky_inverse(mat, ridge, backend='native'),
}
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
LAYOUTS = ['contiguous', 'transposed', 'sliced', 'reversed', 'expanded', 'overlapping']
EXAMPLES = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,  # the same examples in every run
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def laid_out(layout, shape, normal):
    """A tensor (B, heads, N, d) in one of the layouts; ``normal(*shape)`` makes its memory."""
    batch, heads, rows, dims = shape
    if layout == 'transposed':
        return normal(batch, rows, heads, dims).transpose(1, 2)
    if layout == 'sliced':
        return normal(batch, heads, 2 * rows + 1, dims + 3)[:, :, 1::2, 2:-1]
    if layout == 'reversed':
        return normal(dims, rows, heads, batch).permute(3, 2, 1, 0)
    if layout == 'expanded':
        return normal(1, heads, 1, dims).expand(shape)
    if layout == 'overlapping':  # windows of one row, a channel apart
        return normal(rows + dims).as_strided(shape, (0, 0, 1, 1))
    return normal(*shape)


@st.composite
def pairs(draw):
    """Queries and keys, a generator for more, and a bandwidth."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype, spread = draw(st.sampled_from(DTYPES)), draw(st.sampled_from([1e-3, 0.1, 1.0, 30.0]))

    def normal(*shape):
        values = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return (spread * values).to(dtype)

    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    dims = draw(st.integers(1, 40) | st.sampled_from([48, 64]))
    queries, keys = draw(st.integers(1, 60)), draw(st.integers(1, 60))
    q = laid_out(draw(st.sampled_from(LAYOUTS)), (batch, heads, queries, dims), normal)
    k = laid_out(draw(st.sampled_from(LAYOUTS)), (batch, heads, keys, dims), normal)
    if draw(st.booleans()):  # landmarks that all but coincide
        k = k[:, :, :1] + 1e-6 * k
    return q, k, generator, draw(st.floats(0.05, 50))


def epsilons(dtype):
    """The machine epsilon of the sums, and of the result's rounding."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.finfo(wide).eps, torch.finfo(dtype).eps


@pytest.mark.parametrize('name', KERNELS)
@EXAMPLES
@given(case=pairs())
def test_kernels_and_their_gradients_are_those_of_the_formula(name, computed_by, device, case):
    function, f, slope, rate = KERNELS[name]
    q, k, generator, bandwidth = case
    q, k = (t.detach().to(device).requires_grad_() for t in (q, k))
    out = computed_by(function)(q, k, bandwidth)
    upstream = torch.randn(out.shape, generator=generator).to(device, q.dtype)
    grads = torch.autograd.grad(out, (q, k), upstream)
    assert out.dtype == q.dtype == grads[0].dtype == grads[1].dtype

    difference = q.detach().double().unsqueeze(-2) - k.detach().double().unsqueeze(-3)
    truth = torch.exp(-rate(bandwidth) * f(difference).sum(-1))
    wide, narrow = epsilons(q.dtype)
    # A distance is d roundings off, its exponential the same, as x exp(-x) < 1, and two more digits
    # for the exponential itself; then the result is rounded.
    error_of_k = 2 * (q.shape[-1] + 8) * wide + narrow
    assert (out.double() - truth).abs().max() <= error_of_k

    # Summands of the gradients, with the errors of K, of their product and of their sum.
    summands = -rate(bandwidth) * upstream.double().unsqueeze(-1) * slope(difference)
    lengths = out.shape[-1], out.shape[-2]
    for grad, axis, sign, length in zip(grads, (-2, -3), (1, -1), lengths):
        expected = sign * (summands * truth.unsqueeze(-1)).sum(axis)
        allowed = (error_of_k + (length + 8) * wide) * summands.abs().sum(axis)
        smallest = torch.finfo(q.dtype).tiny  # below it digits go
        assert ((grad - expected).abs() <= allowed + narrow * expected.abs() + smallest).all()


@pytest.mark.parametrize('name', KERNELS)
@EXAMPLES
@given(case=pairs())
def test_kernels_are_symmetric_bounded_and_one_at_equal_points(name, computed_by, device, case):
    op = computed_by(KERNELS[name][0])
    q, k, _, bandwidth = case
    q, k = q.to(device), k.to(device)
    out, swapped = op(q, k, bandwidth), op(k, q, bandwidth).transpose(-2, -1)
    wide, narrow = epsilons(q.dtype)
    # The channels may be summed in another order.
    assert (out - swapped).abs().max() <= 2 * (q.shape[-1] + 8) * wide + narrow
    for values in (out, swapped):
        assert values.min() >= 0 and values.max() <= 1
    ones = op(q, q, bandwidth).diagonal(dim1=-2, dim2=-1)
    assert torch.equal(ones, torch.ones_like(ones))


@st.composite
def matrices(draw):
    """Laplacian kernels (B, heads, m, m) of few places with landmarks about them, and a ridge."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    size, places = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    dtype = draw(st.sampled_from(DTYPES))

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    centers = normal(2, 1, places, 8).repeat(1, 1, -(-size // places), 1)[:, :, :size]
    points = centers + draw(st.sampled_from([0.0, 1e-6, 1e-2])) * normal(*centers.shape)
    mat = laplacian_kernel(points, points, 4.0).to(dtype)
    layout = draw(st.sampled_from(['contiguous', 'transposed', 'expanded', 'sliced']))
    if layout == 'transposed':
        mat = mat.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    elif layout == 'expanded':
        mat = mat[:1].expand(3, 2, size, size)
    elif layout == 'sliced':
        mat = torch.nn.functional.pad(mat, (1, 2, 3, 1))[..., 3:-1, 1:-2]
    return mat, draw(st.floats(1e-3, 1.0))


@pytest.mark.parametrize('name', INVERSES)
@EXAMPLES
@given(case=matrices())
def test_inverses_leave_the_residual_they_promise(name, case):
    mat, ridge = case
    identity = torch.eye(mat.shape[-1], dtype=torch.float64)
    ridged = mat.double() + ridge * identity
    eigenvalues = torch.linalg.eigvalsh(ridged)
    assume(eigenvalues.min() > ridge / 2)  # a half may have been rounded to be indefinite
    condition = (eigenvalues[..., -1] / eigenvalues[..., 0]).max()
    out = INVERSES[name](mat, ridge)
    assert out.shape == mat.shape and out.dtype == mat.dtype
    wide, narrow = epsilons(mat.dtype)
    if narrow == wide:
        residual = (identity - ridged @ out.double()).abs().max()
        assert residual <= wide * (mat.shape[-1] + condition)
    else:  # the rounded inverse of a matrix that has been rounded to be hardly definite
        truth = torch.linalg.inv(ridged)
        error = (out.double() - truth).abs().max() / truth.abs().max()
        assert error <= narrow + wide * (mat.shape[-1] + condition)
