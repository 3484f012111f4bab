"""Kernels of random shapes and dtypes, against their formulas in fp64."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mmlaplace.ops import gaussian_kernel, laplacian_kernel

# Each op, and of its formula exp(-rate(bandwidth) * sum_c f(x_c)) the functions f, f' and rate.
KERNELS = {
    'laplacian': (laplacian_kernel, torch.abs, torch.sign, lambda s: 1 / s),
    'gaussian': (gaussian_kernel, torch.square, lambda x: 2 * x, lambda s: 0.5 / s**2),
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
