"""Kernels and inverses of random shapes and dtypes, against their formulas in fp64."""

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mmlaplace.ops import cholesky_inverse, gaussian_kernel, laplacian_kernel, newton_schulz_inverse

# Each op, and of its formula exp(-rate(bandwidth) * sum_c f(x_c)) the functions f, f' and rate.
KERNELS = {
    'laplacian': (laplacian_kernel, torch.abs, torch.sign, lambda s: 1 / s),
    'gaussian': (gaussian_kernel, torch.square, lambda x: 2 * x, lambda s: 0.5 / s**2),
}
INVERSES = {
    'newton': lambda mat, ridge, backend: newton_schulz_inverse(mat, 30, ridge, backend=backend),
    'cholesky': lambda mat, ridge, backend: cholesky_inverse(mat, ridge, backend=backend),
}
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
seeds = st.integers(0, 2**31)
channels = st.integers(1, 40) | st.sampled_from([48, 64])
EXAMPLES = settings(
    max_examples=100,
    deadline=None,
    derandomize=True,  # the same examples in every run
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def normals(draw, dtype, spread=1.0):
    """A function of shapes that draws tensors."""
    generator = torch.Generator().manual_seed(draw(seeds))

    def normal(*shape, dtype=dtype):
        values = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return (spread * values).to(dtype)

    return normal


@st.composite
def pairs(draw):
    """Queries and keys, what draws a gradient, and a bandwidth."""
    normal = normals(draw, draw(st.sampled_from(DTYPES)), draw(st.sampled_from([1e-3, 0.1, 1, 30])))
    batch, heads, dims = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(channels)
    q, k = (normal(batch, heads, draw(st.integers(1, 60)), dims) for _ in range(2))
    if draw(st.booleans()):  # landmarks that all but coincide
        k = k[:, :, :1] + 1e-6 * k
    return q, k, normals(draw, q.dtype), draw(st.floats(0.05, 50))


def epsilons(dtype):
    """The machine epsilon of the sums, and of the result's rounding."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.finfo(wide).eps, torch.finfo(dtype).eps


@pytest.mark.parametrize('name', KERNELS)
@EXAMPLES
@given(case=pairs())
def test_kernels_and_their_gradients_are_those_of_the_formula(name, computed_by, device, case):
    function, f, slope, rate = KERNELS[name]
    q, k, normal, bandwidth = case
    q, k = (t.detach().to(device).requires_grad_() for t in (q, k))
    out = computed_by(function)(q, k, bandwidth)
    upstream = normal(*out.shape).to(device)
    grads = torch.autograd.grad(out, (q, k), upstream)
    assert out.dtype == q.dtype == grads[0].dtype == grads[1].dtype
    assert out.min() >= 0 and out.max() <= 1

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


@st.composite
def matrices(draw):
    """Laplacian kernels (B, heads, m, m) of few places with landmarks about them, and a ridge."""
    normal = normals(draw, torch.float64)
    size, places = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    centers = normal(2, 1, places, 8).repeat(1, 1, -(-size // places), 1)[:, :, :size]
    points = centers + draw(st.sampled_from([0.0, 1e-6, 1e-2])) * normal(*centers.shape)
    mat = laplacian_kernel(points, points, 4.0).to(draw(st.sampled_from(DTYPES)))
    return mat, draw(st.floats(1e-3, 1.0))


@pytest.mark.parametrize('backend', ['native', 'reference'])
@pytest.mark.parametrize('name', INVERSES)
@EXAMPLES
@given(case=matrices())
def test_inverses_leave_the_residual_they_promise(name, backend, case):
    mat, ridge = case
    identity = torch.eye(mat.shape[-1], dtype=torch.float64)
    ridged = mat.double() + ridge * identity
    eigenvalues = torch.linalg.eigvalsh(ridged)
    assume(eigenvalues.min() > ridge / 2)  # a half may have been rounded to be indefinite
    condition = (eigenvalues[..., -1] / eigenvalues[..., 0]).max()
    out = INVERSES[name](mat, ridge, backend)
    assert out.shape == mat.shape and out.dtype == mat.dtype
    wide, narrow = epsilons(mat.dtype)
    error, allowed = (identity - ridged @ out.double()).abs().max(), 0
    if narrow != wide:  # the rounded inverse of a matrix that may be hardly definite
        truth = torch.linalg.inv(ridged)
        error, allowed = (out.double() - truth).abs().max() / truth.abs().max(), narrow
    assert error <= allowed + wide * (mat.shape[-1] + condition)
