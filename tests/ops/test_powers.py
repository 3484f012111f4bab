"""The powers of PolaFormer's features in one pass: values, derivatives, and what it refuses."""

import pytest
import torch
from conftest import by_threads

from mmlaplace.models.layers.signed_powers import SignedPowers
from mmlaplace.ops import use_backend
from mmlaplace.ops.signed_powers import fits, signed_powers, signed_powers_backward

pytestmark = pytest.mark.skipif(
    not fits(torch.zeros(1, 1, 1, 1)), reason='the compiled library is missing'
)


def inputs(batch, heads, tokens, dims):
    """x, power and shift, and a gradient. x is a view of tokens by head."""
    x = torch.randn(batch, tokens, heads * dims).view(batch, tokens, heads, dims).transpose(1, 2)
    x[:, :, :2] = 0
    power = 1.05 + 4 * torch.rand(heads, 1, dims)
    return x, power, torch.randn(heads, 1, dims), torch.randn(batch, heads, tokens, 2 * dims)


def truth_of(x, power, shift, grad):
    leaves = [tensor.double().requires_grad_() for tensor in (x, power, shift)]
    out = SignedPowers.apply(*leaves)
    return out.detach(), *torch.autograd.grad(out, leaves, grad.double())


def both(x, power, shift, grad):
    return signed_powers(x, power, shift), *signed_powers_backward(grad, x, power, shift)


# Whole vectors, parts of one, and more rows than a thread takes at once.
@pytest.mark.parametrize('shape', [(1, 1, 3, 1), (2, 3, 500, 5), (2, 2, 700, 32), (1, 2, 9, 40)])
def test_it_is_the_power_of_each_part(shape):
    arguments = inputs(*shape)
    results, truth = both(*arguments), truth_of(*arguments)
    for result, right in zip(results[:2], truth[:2]):
        # The exponent is below 32 and is rounded in three steps; the gradient is once divided.
        error = (result - right).abs()
        assert (error <= 4 * 32 * torch.finfo(torch.float32).eps / 2 * right.abs() + 1e-30).all()
    for result, right in zip(results[2:], truth[2:]):
        # Sums of up to 1400 terms of both signs, each of which is right to 1e-6.
        torch.testing.assert_close(
            result.double(), right, rtol=1e-5, atol=1e-5 * float(right.abs().max())
        )
    assert not results[0][:, :, :2].any()
    assert not results[1][:, :, :2].any()


def test_the_gradient_may_have_any_strides():
    x, power, shift, grad = inputs(2, 2, 40, 8)
    other = grad.transpose(2, 3).contiguous().transpose(2, 3)
    results = both(x, power, shift, other), both(x.contiguous(), power, shift, grad)
    assert all(map(torch.equal, *results))


def test_ends_of_the_range():
    x = torch.tensor([float('inf'), -float('inf'), 3e38, -1e-20, 1e-40, float('nan')])
    ones = torch.ones(1, 1, 6)
    out = signed_powers(x.view(1, 1, 1, 6), 0.5 * ones, 0 * ones).view(2, 6)
    inf, nan = float('inf'), float('nan')
    expected = torch.tensor([[inf, 0, 3e38**0.5, 0, 1e-20, nan], [0, inf, 0, 1e-10, 0, nan]])
    # The exponent is up to 64, with an error of a unit in its last place.
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=0, equal_nan=True)
    out = signed_powers(x.view(1, 1, 1, 6), 2 * ones, 0 * ones).view(2, 6)
    expected = torch.tensor([[inf, 0, inf, 0, 0, nan], [0, inf, 0, 0, 0, nan]])
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def test_results_do_not_depend_on_the_number_of_threads():
    arguments = inputs(2, 3, 1500, 48)
    first, *others = by_threads(lambda: both(*arguments))
    for other in others:
        assert all(map(torch.equal, first, other))


def test_training_takes_it_and_second_derivatives_do_not(monkeypatch):
    calls = []
    monkeypatch.setattr(
        'mmlaplace.ops.signed_powers.signed_powers_backward',
        lambda *args: calls.append(args) or signed_powers_backward(*args),
    )
    x, power, shift, grad = inputs(1, 2, 6, 8)
    leaves = [tensor.clone().requires_grad_() for tensor in (x, power, shift)]
    first = torch.autograd.grad(SignedPowers.apply(*leaves), leaves, grad)
    assert len(calls) == 1
    again = torch.autograd.grad(SignedPowers.apply(*leaves), leaves, grad, create_graph=True)
    assert len(calls) == 1 and all(tensor.requires_grad for tensor in again)
    with use_backend('reference'):
        assert not fits(x)
    for ours, theirs in zip(first, again):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)  # sums of 6 terms up to 100


@pytest.mark.parametrize(
    ('x', 'power', 'named'),
    [
        (torch.zeros(1, 1, 2, 3).double(), torch.ones(1, 1, 3), 'x must be fp32 .* Double'),
        (torch.zeros(2, 3), torch.ones(1, 1, 3), r'x must be \(B, heads, N, d\), got .* \[2, 3\]'),
        (torch.zeros(1, 2, 2, 3), torch.ones(1, 1, 3), r'power must be fp32 of shape \[2, 1, 3\]'),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_their_shape(x, power, named):
    with pytest.raises(RuntimeError, match=named):
        signed_powers(x, power, torch.zeros_like(power))
