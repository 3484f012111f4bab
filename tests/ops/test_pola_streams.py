"""PolaFormer's queries in one pass: values, derivatives of two orders, and what it refuses."""

import pytest
import torch
from conftest import by_threads

from mmlaplace.models import PolaAttention
from mmlaplace.models.layers import pola_streams as streams
from mmlaplace.ops import use_backend
from mmlaplace.ops.pola_streams import fits, pola_streams

pytestmark = pytest.mark.skipif(
    not fits(torch.zeros(1, 1, 1, 1)), reason='the compiled library is missing'
)


def inputs(batch, heads, tokens, dims, dtype=torch.float32):
    """Queries that are a view of tokens by head, power, scale, sums and means, all positive."""
    q = torch.randn(batch, tokens, heads * dims, dtype=dtype).view(batch, tokens, heads, dims)
    power, scale = (0.8 + torch.rand(2, heads, 1, dims, dtype=dtype)).unbind()
    sums = torch.rand(batch, heads, 2 * dims, dims, dtype=dtype)
    means = 0.1 + torch.rand(batch, heads, 2 * dims, 2, dtype=dtype)
    return q.transpose(1, 2), power, scale, sums, means


def with_gradients(arguments, grad, create_graph=False):
    leaves = [tensor.clone().requires_grad_() for tensor in arguments]
    out = streams(*leaves, eps=1e-6)
    return leaves, (out, *torch.autograd.grad(out, leaves, grad, create_graph=create_graph))


# Whole tiles and vectors, parts of them, streams of unequal width, and one without a channel.
@pytest.mark.parametrize('shape', [(2, 3, 300, 5), (1, 2, 256, 32), (2, 1, 130, 1), (1, 1, 9, 16)])
def test_it_is_the_formula_with_its_gradients(shape):
    arguments = inputs(*shape)
    grad = torch.randn(shape)
    _, results = with_gradients(arguments, grad)
    _, truth = with_gradients([tensor.double() for tensor in arguments], grad.double())
    for result, right in zip(results, truth):
        assert result.shape == right.shape
        # Sums of up to 64 products and then of up to 600 tokens, of terms that are right to 1e-6.
        torch.testing.assert_close(
            result.double(), right, rtol=1e-4, atol=1e-5 * float(right.abs().max())
        )


def test_second_derivatives_are_those_of_the_formula():
    arguments, grad = inputs(1, 2, 6, 4), torch.randn(1, 2, 6, 4)

    def second(tensors):
        leaves, first = with_gradients(tensors, grad.to(tensors[0].dtype), create_graph=True)
        _, again = with_gradients(tensors, grad.to(tensors[0].dtype))
        for value, other in zip(first, again):  # sums of 12 terms in other orders
            torch.testing.assert_close(value, other, rtol=1e-4, atol=1e-4)
        return torch.autograd.grad(sum((value**2).sum() for value in first[1:]), leaves)

    for ours, truth in zip(second(arguments), second([tensor.double() for tensor in arguments])):
        # Derivatives of powers divide by small queries, so values reach 1e3.
        torch.testing.assert_close(
            ours.double(), truth, rtol=1e-3, atol=1e-4 * float(truth.abs().max())
        )


def test_the_reference_computes_the_same():
    attention = PolaAttention(64, num_heads=2, input_resolution=(14, 14))
    torch.nn.init.normal_(attention.power)
    x = torch.randn(2, 14 * 14, 64)
    ours = attention(x, (14, 14))
    with use_backend('reference'):
        assert not fits(x)
        torch.testing.assert_close(ours, attention(x, (14, 14)), rtol=1e-5, atol=1e-6)


def test_a_query_without_keys_of_its_signs_is_nothing():
    q, power, scale, sums, means = inputs(1, 1, 3, 4)
    out = streams(q, power, scale, 0 * sums, 0 * means, eps=1e-6)
    assert torch.equal(out, torch.zeros_like(out))


def test_a_nan_stays_with_its_query():
    arguments = inputs(1, 2, 40, 8)
    clean = streams(*arguments, eps=1e-6)
    arguments[0][0, 1, 7, 3] = float('nan')
    out = streams(*arguments, eps=1e-6)
    assert out[0, 1, 7].isnan().all()
    clean[0, 1, 7] = out[0, 1, 7] = 0
    assert torch.equal(out, clean)


def test_results_do_not_depend_on_the_number_of_threads():
    arguments = inputs(2, 3, 1500, 48)
    first, *others = by_threads(lambda: streams(*arguments, eps=1e-6))
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize(
    ('q', 'sums', 'named'),
    [
        (torch.zeros(1, 1, 2, 3).double(), torch.ones(1, 1, 6, 5), 'q must be fp32 .* Double'),
        (
            torch.zeros(2, 3),
            torch.ones(1, 1, 6, 5),
            r'q must be \(B, heads, N, d\), got .* \[2, 3\]',
        ),
        (
            torch.zeros(1, 1, 2, 3),
            torch.ones(1, 1, 6, 3),
            r'sums must .* \[1, 1, 6, 5\], got .* 3\]',
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_their_shape(q, sums, named):
    ones = torch.ones(1, 1, 3)
    with pytest.raises(RuntimeError, match=named):
        pola_streams(q, ones, 0 * ones, sums, 1e-6)
