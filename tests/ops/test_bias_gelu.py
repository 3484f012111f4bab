"""The bias and GELU of an FFN in one pass: values, derivatives, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from conftest import by_threads

from mmlaplace.ops.bias_gelu import (
    bias_gelu,
    bias_gelu_backward,
    bias_gelu_reference,
    has_bias_gelu,
)

pytestmark = pytest.mark.skipif(not has_bias_gelu(), reason='the compiled library is missing')
forms = pytest.mark.parametrize('approximate', ['none', 'tanh'])


def tokens(rows, channels):
    """Hidden tokens of which some are far out, on both sides."""
    return torch.linspace(-8, 8, rows * channels).view(channels, rows).t().contiguous()


def both(x, bias, grad, approximate):
    """The result, and the gradients of x and of the bias."""
    out, again, of_x = torch.empty_like(x), torch.empty_like(x), grad.clone()
    bias_gelu(x, bias, approximate, out)
    of_bias = bias_gelu_backward(of_x, x, bias, approximate, again)
    assert torch.equal(again, out)
    return out, of_x, of_bias


# Whole vectors, parts of one, and more rows than a thread takes at once.
@pytest.mark.parametrize('shape', [(1, 1), (5, 7), (9, 16), (33, 45), (600, 64)])
@forms
def test_it_is_gelu_of_the_sum(shape, approximate):
    x, bias, grad = tokens(*shape), torch.randn(shape[1]), torch.randn(shape)
    wide = [tensor.double().requires_grad_() for tensor in (x, bias)]
    truth = bias_gelu_reference(*wide, approximate)
    truth = [truth.detach(), *torch.autograd.grad(truth, wide, grad.double())]
    out, of_x, of_bias = both(x, bias, grad, approximate)
    # Values up to 12 with rounding of 1e-6, and a function that is right to 1e-7 times such values.
    torch.testing.assert_close(out.double(), truth[0], atol=1e-6, rtol=2e-7)
    # Times gradients up to 5.
    torch.testing.assert_close(of_x.double(), truth[1], atol=5e-6, rtol=2e-7)
    # Sums of up to 600 of these, of which many cancel.
    torch.testing.assert_close(of_bias.double(), truth[2], atol=1e-4, rtol=1e-6)


@forms
def test_it_is_as_right_as_torchs(approximate):
    x, bias = tokens(300, 64), torch.zeros(64)
    truth = F.gelu(x.double(), approximate=approximate)
    out, torchs = torch.empty_like(x), F.gelu(x, approximate=approximate)
    bias_gelu(x, bias, approximate, out)
    # Twice, as another version of torch may round better.
    assert (out - truth).abs().max() <= 2 * (torchs - truth).abs().max()


@forms
def test_the_result_may_take_the_place_of_the_tokens(approximate):
    x, bias, grad = tokens(40, 20), torch.randn(20), torch.randn(40, 20)
    expected = both(x, bias, grad, approximate)
    forward, backward, of_x = x.clone(), x.clone(), grad.clone()
    bias_gelu(forward, bias, approximate, forward)
    of_bias = bias_gelu_backward(of_x, backward, bias, approximate, backward)
    for value, other in zip((forward, of_x, of_bias), expected):
        assert torch.equal(value, other)
    assert torch.equal(backward, forward)


@forms
def test_far_values_and_nan(approximate):
    x = torch.tensor([[-1e30, -40.0, 40.0, 1e30, float('inf'), float('nan')]])
    out = torch.empty_like(x)
    bias_gelu(x, torch.zeros(6), approximate, out)
    expected = torch.tensor([[0, 0, 40, 1e30, float('inf'), float('nan')]])
    torch.testing.assert_close(out, expected, atol=0, rtol=0, equal_nan=True)
    of_x = torch.ones(1, 4)
    bias_gelu_backward(of_x, x[:, 1:5].contiguous(), torch.zeros(4), approximate, torch.empty(1, 4))
    assert of_x[0, :2].tolist() == [0, 1]


@forms
def test_results_do_not_depend_on_the_number_of_threads(approximate):
    arguments = tokens(1500, 48), torch.randn(48), torch.randn(1500, 48), approximate
    first, *others = by_threads(lambda: both(*arguments))
    for other in others:
        assert all(map(torch.equal, first, other))


@pytest.mark.parametrize(
    ('x', 'bias', 'named'),
    [
        (torch.zeros(2, 3, dtype=torch.float64), torch.zeros(3), 'x must be .* Double'),
        (torch.zeros(3, 2).t(), torch.zeros(3), 'x must be contiguous'),
        (torch.zeros(2, 3), torch.zeros(2), r'bias must be .* \[3\], got Float of shape \[2\]'),
        (torch.zeros(3), torch.zeros(3), r'x must be \(rows, C\), got shape \[3\]'),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_their_shape(x, bias, named):
    with pytest.raises(RuntimeError, match=named):
        bias_gelu(x, bias, 'none', torch.empty_like(x))
