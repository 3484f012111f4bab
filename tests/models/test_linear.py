"""Linears by the faster library, and FFNs in blocks of rows."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mmlaplace.models.layers import FFN, Linear, linear
from mmlaplace.ops import onednn_linear, use_backend


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """Blocks of 64 rows for each thread, whatever the channels."""
    monkeypatch.setattr(linear, 'BLOCK_BYTES', 1)
    monkeypatch.setattr(onednn_linear, 'BLOCK_BYTES', 1)


@pytest.fixture(params=linear.LIBRARIES)
def library(request, monkeypatch):
    monkeypatch.setenv('MMLAPLACE_LINEAR', request.param)
    return request.param


def plain(ffn, x):
    form = ffn.layers[1].approximate
    hidden = F.gelu(F.linear(x, ffn.layers[0].weight, ffn.layers[0].bias), approximate=form)
    return F.linear(hidden, ffn.layers[3].weight, ffn.layers[3].bias)


def gradients(function, x, weights, create_graph=False):
    out = function(x)
    return torch.autograd.grad(out.square().sum(), [x, *weights], create_graph=create_graph)


@pytest.mark.parametrize('shape', [(3, 301, 16), (1, 1, 16), (0, 5, 16)])
@pytest.mark.parametrize('bias', [True, False])
def test_a_linear_is_torchs(library, shape, bias):
    ours, x = Linear(16, 24, bias=bias), torch.randn(shape, requires_grad=True)
    torchs = nn.Linear(16, 24, bias=bias)
    torchs.load_state_dict(ours.state_dict())
    # Sums of 16 products of order 1 in fp32.
    torch.testing.assert_close(ours(x), torchs(x), atol=1e-5, rtol=1e-5)
    for a, b in zip(*(gradients(layer, x, layer.parameters()) for layer in (ours, torchs))):
        # Sums of up to 903 products of order 10.
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16])
def test_other_dtypes_are_torchs_own(library, dtype):
    ours, x = Linear(16, 24).to(dtype), torch.randn(700, 16, dtype=dtype)
    assert torch.equal(ours(x), F.linear(x, ours.weight, ours.bias))


@pytest.mark.parametrize('form', ['none', 'tanh'])
@pytest.mark.parametrize('by', ['autocast', 'weights'])
def test_inference_in_bf16_is_that_of_fp32(monkeypatch, form, by):
    ffn, x = FFN(16, 4, act_cfg=dict(type='GELU', approximate=form)), torch.randn(2, 600, 16)
    with torch.no_grad():
        expected = plain(ffn, x)
        if by == 'weights':
            out = ffn.bfloat16()(x.bfloat16(), (20, 30))
        else:
            with torch.autocast('cpu', torch.bfloat16):
                out = ffn(x, (20, 30))
    assert out.dtype == torch.bfloat16
    # Inputs, weights and hidden values of order 1 are rounded to 8 bits.
    torch.testing.assert_close(out.float(), expected, atol=0.03, rtol=0.02)


def test_an_unknown_library_is_refused_by_its_name(monkeypatch):
    monkeypatch.setenv('MMLAPLACE_LINEAR', 'mkl')
    with pytest.raises(ValueError, match="MMLAPLACE_LINEAR must be one of .*, got 'mkl'"):
        Linear(16, 24)(torch.randn(2, 16))


@pytest.mark.parametrize('large', [0, 1 << 40], ids=['computed again', 'kept'])
@pytest.mark.parametrize('form', ['none', 'tanh'])
@pytest.mark.parametrize('backend', ['auto', 'reference'])
def test_an_ffn_in_blocks_has_the_plain_ones_values_and_gradients(
    library, monkeypatch, large, form, backend
):
    monkeypatch.setattr(linear, 'LARGE_BYTES', large)
    ffn = FFN(16, 4, act_cfg=dict(type='GELU', approximate=form))
    x = torch.randn(2, 600, 16, requires_grad=True)
    with torch.no_grad(), use_backend(backend):
        # Sums of 64 products of order 1 in fp32.
        torch.testing.assert_close(ffn(x, (20, 30)), plain(ffn, x), atol=1e-5, rtol=1e-5)
    weights = list(ffn.parameters())
    with use_backend(backend):
        ours = gradients(lambda x: ffn(x, (20, 30)), x, weights)
    for a, b in zip(ours, gradients(lambda x: plain(ffn, x), x, weights)):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-4)  # sums over 1,200 tokens


@pytest.mark.parametrize('times', [1, 2], ids=['once', 'twice by the same weights'])
def test_second_derivatives_of_an_ffn_in_blocks(library, monkeypatch, times):
    monkeypatch.setattr(linear, 'LARGE_BYTES', 0)
    ffn, x = FFN(8, 2), torch.randn(1, 200, 8, requires_grad=True)
    weights = [ffn.layers[0].weight, ffn.layers[3].weight]

    def second(function):
        def repeated(x):
            for _ in range(times):
                x = function(x)
            return x

        first = gradients(repeated, x, weights, create_graph=True)
        return torch.autograd.grad(sum(grad.sin().sum() for grad in first), [x, *weights])

    for a, b in zip(second(lambda x: ffn(x, (10, 20))), second(lambda x: plain(ffn, x))):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)  # of sines of sums over 200 tokens


def test_training_keeps_no_hidden_map_where_that_is_large(monkeypatch):
    kept = {}
    for large in (0, 1 << 40):
        monkeypatch.setattr(linear, 'LARGE_BYTES', large)
        ffn, x = FFN(8, 4), torch.randn(1, 400, 8, requires_grad=True)
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: (sizes.append(t.numel()), t)[1], lambda t: t
        ):
            ffn(x, (20, 20))
        kept[large] = max(sizes)
    assert kept == {0: 400 * 8, 1 << 40: 400 * 32}
