"""Parts of models in one pass: PolaFormer's powers, and its queries."""

import functools

import pytest
import torch

from mmlaplace.models.layers import pola_streams
from mmlaplace.models.layers.signed_powers import SignedPowers
from mmlaplace.ops import _native
from mmlaplace.ops.pola_streams import fits as streams_fit
from mmlaplace.ops.signed_powers import signed_powers, signed_powers_backward

pytestmark = pytest.mark.skipif(
    _native.WHY_MISSING is not None, reason='the compiled library is missing'
)
streams = functools.partial(pola_streams, eps=1e-6)


def by_head(batch, heads, tokens, dims):
    """Random numbers that are a view of tokens by head."""
    return torch.randn(batch, tokens, heads, dims).transpose(1, 2)


@pytest.mark.parametrize('shape', [(1, 1, 3, 1), (2, 3, 500, 5), (2, 2, 700, 32), (1, 2, 9, 40)])
def test_powers_of_each_part(shape):
    batch, heads, tokens, dims = shape
    x = by_head(*shape)
    x[:, :, :2] = 0
    others = 1.05 + 4 * torch.rand(heads, 1, dims), torch.randn(heads, 1, dims)
    grad = torch.randn(batch, heads, tokens, 2 * dims)
    results = signed_powers(x, *others), *signed_powers_backward(grad, x, *others)
    leaves = [tensor.double().requires_grad_() for tensor in (x, *others)]
    out = SignedPowers.apply(*leaves)
    truth = out.detach(), *torch.autograd.grad(out, leaves, grad.double())
    for result, right in zip(results[:2], truth[:2]):
        # The exponent is below 32 and is rounded in three steps; the gradient is once divided.
        error = (result - right).abs()
        assert (error <= 4 * 32 * torch.finfo(torch.float32).eps / 2 * right.abs() + 1e-30).all()
        assert not result[:, :, :2].any()
    for result, right in zip(results[2:], truth[2:]):
        # Sums of up to 1400 terms of both signs, each of which is right to 1e-6.
        close = dict(rtol=1e-5, atol=1e-5 * float(right.abs().max()))
        torch.testing.assert_close(result.double(), right, **close)


def queries(batch, heads, tokens, dims):
    """Queries, and positive power, scale, sums and means."""
    q = by_head(batch, heads, tokens, dims)
    power, scale = (0.8 + torch.rand(2, heads, 1, dims)).unbind()
    means = 0.1 + torch.rand(batch, heads, 2 * dims, 2)
    return q, power, scale, torch.rand(batch, heads, 2 * dims, dims), means


def with_gradients(arguments, grad, create_graph=False):
    leaves = [tensor.clone().requires_grad_() for tensor in arguments]
    out = streams(*leaves)
    return leaves, (out, *torch.autograd.grad(out, leaves, grad, create_graph=create_graph))


# Whole tiles and vectors, parts of them, streams of unequal width, and one without a channel.
@pytest.mark.parametrize('shape', [(2, 3, 300, 5), (1, 2, 256, 32), (2, 1, 130, 1), (1, 1, 9, 16)])
def test_streams_are_the_formula_with_its_gradients(shape):
    arguments, grad = queries(*shape), torch.randn(shape)
    assert streams_fit(arguments[0])
    _, results = with_gradients(arguments, grad)
    _, truth = with_gradients([tensor.double() for tensor in arguments], grad.double())
    for result, right in zip(results, truth):
        # Sums of up to 64 products and then of up to 600 tokens, of terms that are right to 1e-6.
        close = dict(rtol=1e-4, atol=1e-5 * float(right.abs().max()))
        torch.testing.assert_close(result.double(), right, **close)


def test_second_derivatives_of_streams_are_those_of_the_formula():
    arguments, grad = queries(1, 2, 6, 4), torch.randn(1, 2, 6, 4)

    def second(tensors):
        leaves, first = with_gradients(tensors, grad.to(tensors[0].dtype), create_graph=True)
        return torch.autograd.grad(sum((value**2).sum() for value in first[1:]), leaves)

    for found, truth in zip(second(arguments), second([tensor.double() for tensor in arguments])):
        # Derivatives of powers divide by small queries, so values reach 1e3.
        close = dict(rtol=1e-3, atol=1e-4 * float(truth.abs().max()))
        torch.testing.assert_close(found.double(), truth, **close)


def test_a_query_without_keys_is_nothing_and_a_nan_stays_with_its_query():
    q, power, scale, sums, means = arguments = queries(1, 2, 40, 8)
    assert not streams(q, power, scale, 0 * sums, 0 * means).any()
    clean = streams(*arguments)
    q[0, 1, 7, 3] = clean[0, 1, 7] = float('nan')
    torch.testing.assert_close(streams(*arguments), clean, rtol=0, atol=0, equal_nan=True)
