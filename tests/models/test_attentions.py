"""The contract of every registered attention; a new one is covered without a new test."""

import pytest
import torch
from conftest import quiet_init, registered
from mmengine.registry import MODELS

from mmlaplace.models import BaseAttention

ATTENTIONS = registered(BaseAttention)
MAPS = [(7, 7), (5, 9), (1, 1), (1, 6), (13, 4)]


def build(name, embed_dims=64, num_heads=2, **kwargs):
    attention = MODELS.build(
        dict(
            type=name, embed_dims=embed_dims, num_heads=num_heads, input_resolution=(7, 7), **kwargs
        )
    )
    quiet_init(attention)
    return attention.eval()


def test_the_registry_has_attentions():
    assert {'LaplacianAttention', 'SoftmaxAttention'} <= set(ATTENTIONS)


@pytest.mark.parametrize('name', ATTENTIONS)
@pytest.mark.parametrize('hw_shape', MAPS)
def test_any_map_keeps_its_shape_and_gives_gradients(name, hw_shape):
    attention = build(name)
    x = torch.randn(2, hw_shape[0] * hw_shape[1], 64, requires_grad=True)
    out = attention(x, hw_shape)
    assert out.shape == x.shape
    (out * torch.randn_like(out)).sum().backward()
    for parameter_name, value in [('x', x), *attention.named_parameters()]:
        assert value.grad is not None, parameter_name
        assert torch.isfinite(value.grad).all(), parameter_name


@pytest.mark.parametrize('name', ATTENTIONS)
def test_a_batch_gives_what_its_images_give_alone(name):
    attention = build(name).double()
    x = torch.randn(3, 35, 64, dtype=torch.float64)
    alone = torch.cat([attention(image[None], (5, 7)) for image in x])
    torch.testing.assert_close(attention(x, (5, 7)), alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize('name', ATTENTIONS)
def test_rows_and_columns_are_not_confused(name):
    attention = build(name)
    x = torch.randn(1, 12, 64)
    assert not torch.allclose(attention(x, (3, 4)), attention(x, (4, 3)), atol=1e-4)


@pytest.mark.parametrize('name', ATTENTIONS)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_autocast_stays_close_to_fp32(name, dtype):
    if dtype == torch.float16 and not hasattr(torch.amp, 'is_autocast_available'):
        pytest.skip('before torch 2.4, autocast on a CPU takes bfloat16 alone')
    attention = build(name)
    x = torch.randn(2, 49, 64)
    exact = attention(x, (7, 7))
    with torch.autocast('cpu', dtype=dtype):
        out = attention(x, (7, 7))
    # Linears round their inputs and outputs to the half: a few roundings of values of size |exact|.
    assert (out.float() - exact).abs().max() <= 8 * torch.finfo(dtype).eps * exact.abs().max()


@pytest.mark.parametrize('name', ATTENTIONS)
def test_wrong_tokens_are_quoted(name):
    with pytest.raises(ValueError, match=r'hw_shape \(7, 7\), got \(2, 48, 64\)'):
        build(name)(torch.randn(2, 48, 64), (7, 7))


@pytest.mark.parametrize('name', ATTENTIONS)
def test_heads_must_divide_channels(name):
    with pytest.raises(ValueError, match=r'embed_dims \(100\).*num_heads \(3\)'):
        build(name, embed_dims=100, num_heads=3)
