"""Signed powers by one exponential: values, derivatives of two orders, zeros, NaN and infinity."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck, gradgradcheck

from mmlaplace.models import PolaAttention
from mmlaplace.models.layers import linear_attention, signed_powers

needs_compile = pytest.mark.skipif(
    not hasattr(torch.amp, 'is_autocast_available'),
    reason='before torch 2.4, torch.compile traces no context managers of libraries',
)


def formula(x, power, scale):
    return torch.cat([F.relu(x / scale) ** power, F.relu(-x / scale) ** power], dim=-1)


def inputs(dtype=torch.float64, tokens=6):
    x = torch.randn(2, 3, tokens, 5, dtype=dtype)
    power = 1.05 + 4 * torch.rand(3, 1, 5, dtype=dtype)
    return x, power, 0.5 + torch.rand(3, 1, 5, dtype=dtype)


def with_gradients(function, x, power, scale, chance):
    leaves = [tensor.clone().requires_grad_() for tensor in (x, power, scale)]
    out = function(*leaves)
    return (out.detach(), *torch.autograd.grad((out * chance).sum(), leaves))


def test_signed_powers_and_their_gradients_are_those_of_the_formula():
    x, power, scale = inputs()
    x[0, 0, :2] = 0
    chance = torch.randn(2, 3, 6, 10, dtype=torch.float64)
    ours = with_gradients(signed_powers, x, power, scale, chance)
    # The same numbers in fp64; exp(p log x) rounds the exponent, whose size is below 100.
    for mine, theirs in zip(ours, with_gradients(formula, x, power, scale, chance)):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_signed_powers_have_derivatives_of_two_orders():
    x, power, scale = inputs(tokens=2)
    x = torch.where(x.abs() < 0.1, 0.1, x)  # finite differences must not cross zero
    leaves = [tensor.requires_grad_() for tensor in (x, power, scale)]
    assert gradcheck(signed_powers, leaves)
    assert gradgradcheck(signed_powers, leaves)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('value', [0.0, -0.0, 1e-30, -1e-300])
def test_signed_powers_of_nothing_are_nothing(value, dtype):
    x, power, scale = inputs(dtype)
    power.fill_(1.5)
    leaves = [tensor.requires_grad_() for tensor in (torch.full_like(x, value), power, scale)]
    out = signed_powers(*leaves)
    first = torch.autograd.grad(out.sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(grad.sum() for grad in first), leaves)
    assert out.max() <= (1e-30 / 0.5) ** 1.5 * 1.01  # scales are at least 0.5; rounded below 1e-38
    assert all(grad.abs().max() < 1e-8 for grad in first)  # 1.5 * sqrt(1.1e-19 / 0.5 ** 3)
    assert all(grad.isfinite().all() for grad in second)
    if x.new_tensor(value) == 0:
        assert not any(grad.any() for grad in (out, *first))


def test_signed_powers_in_fp32_are_as_exact_as_their_power():
    x, power, scale = inputs(torch.float32, tokens=500)
    exact = formula(x.double(), power.double(), scale.double())
    # The exponent p log|x / s| is below 16 here, and is rounded in three steps.
    error = (signed_powers(x, power, scale) - exact).abs()
    assert (error <= 3 * 16 * torch.finfo(torch.float32).eps / 2 * exact + 1e-10).all()


def test_nan_and_infinity_stay_in_their_channel():
    x = torch.tensor([float('nan'), float('inf'), -float('inf'), 2.0]).view(1, 1, 1, 4)
    out = signed_powers(x, torch.full((1, 1, 4), 2.0), torch.ones(1, 1, 4)).view(2, 4)
    assert out[:, 0].isnan().all()
    assert out[0, 1] == out[1, 2] == float('inf')
    torch.testing.assert_close(out[:, 3], torch.tensor([4.0, 0.0]))


def test_signed_powers_take_vmap():
    x, power, scale = inputs()
    mapped = torch.func.vmap(signed_powers, in_dims=(0, None, None))(x[:, None], power, scale)
    torch.testing.assert_close(mapped[:, 0], signed_powers(x, power, scale))


@needs_compile
def test_signed_powers_compile_in_one_graph_with_their_gradients():
    x, power, scale = inputs()
    chance = torch.randn(2, 3, 6, 10, dtype=torch.float64)
    compiled = torch.compile(signed_powers, fullgraph=True, backend='aot_eager')
    ours = with_gradients(compiled, x, power, scale, chance)
    for mine, theirs in zip(ours, with_gradients(signed_powers, x, power, scale, chance)):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)  # other orders of sums


def test_signed_powers_of_a_recorded_graph_are_the_same_with_their_gradients():
    x, power, scale = inputs()
    x[0, 0, :2] = 0
    chance = torch.randn(2, 3, 6, 10, dtype=torch.float64)
    traced = torch.jit.trace(signed_powers, (x, power, scale))
    assert 'aten::pow' not in str(traced.graph)  # of which ONNX Runtime takes ten times as long
    ours = with_gradients(traced, x, power, scale, chance)
    for mine, theirs in zip(ours, with_gradients(signed_powers, x, power, scale, chance)):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)  # as in the first test


@pytest.mark.parametrize('head_dims', [3, 5, 8])  # the streams of an odd head differ in width
def test_streams_of_pola_are_linear_attentions(head_dims):
    attention = PolaAttention(2 * head_dims, 2, input_resolution=(3, 4)).double()
    torch.nn.init.normal_(attention.power)
    q, k, v = torch.randn(3, 2, 2, 12, head_dims, dtype=torch.float64)
    query, key = attention.features(q), attention.features(k)
    opposite = query.roll(head_dims, dims=-1)
    streams = [
        linear_attention(*args, attention.eps)
        for args in zip((query, opposite), (key, key), v.chunk(2, dim=-1))
    ]
    expected = torch.cat(streams, dim=-1)
    torch.testing.assert_close(attention.mix(q, k, v, (3, 4)), expected, rtol=1e-10, atol=1e-10)
