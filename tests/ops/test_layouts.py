"""Every op takes each of its tensors in any layout, and gives what it gives for contiguous ones."""

import functools

import pytest
import torch
import torch.nn.functional as F
from test_contracts import KERNELS, OPS, example

from mmlaplace import ops
from mmlaplace.models.layers import pola_streams, signed_powers
from mmlaplace.ops.gelu_ffn import gelu_ffn, has_onednn, onednn_linear
from mmlaplace.ops.newton_start_scale import newton_start_scale

FAR = 1e30  # beside the values of a tensor: a sum with one of these is seen


def axes_reversed(x):
    order = tuple(reversed(range(x.dim())))
    return x.permute(order).contiguous().permute(order)


# Functions of a tensor. A result may have other values, but has its shape.
LAYOUTS = {
    'every second value': lambda x: torch.stack([x, torch.full_like(x, FAR)], -1)[..., 0],
    'every second row': lambda x: torch.stack([torch.full_like(x, FAR), x], 1).flatten(0, 1)[1::2],
    'all axes reversed': axes_reversed,
    'a part of a larger tensor': lambda x: F.pad(x, (1, 2), value=FAR)[..., 1:-2],
    'one row for all': lambda x: x[:1].expand_as(x),
    'a lazy minus': lambda x: torch._neg_view(-x),
}


def results(function, tensors, arranged):
    """The outputs, and the gradients of those tensors that have one."""
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in tensors.items()}
    outs = function(**{name: arranged(name, leaf) for name, leaf in leaves.items()})
    outs = outs if isinstance(outs, tuple) else (outs,)
    found, differentiable = [out.detach() for out in outs], [o for o in outs if o.requires_grad]
    if differentiable:
        upstream = [arranged('gradient', out.detach().sin()) for out in differentiable]
        wanted = [*leaves.values()]
        found += torch.autograd.grad(differentiable, wanted, upstream, allow_unused=True)
    return found


def assert_any_layout(function, tensors, dtype=torch.float32):
    # Products of torch sum by the strides. Halves round once more.
    close = dict(rtol=1e-4, atol=1e-4) if dtype == torch.float32 else dict(rtol=2e-2, atol=2e-2)
    for layout, arrange in LAYOUTS.items():
        for chosen in (*tensors, 'gradient', None):  # each alone, and then all

            def arranged(name, tensor, contiguous, chosen=chosen, arrange=arrange):
                tensor = arrange(tensor) if chosen in (name, None) else tensor
                return tensor.contiguous().resolve_neg() if contiguous else tensor

            found, expected = (
                results(function, tensors, functools.partial(arranged, contiguous=contiguous))
                for contiguous in (False, True)
            )
            message = f'{chosen or "all"} as {layout}: %s'
            torch.testing.assert_close(found, expected, **close, msg=message.__mod__)


def randoms(**shapes):
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def public(name, dtype, device):
    tensors, options = example(name, dtype, device)
    if name in KERNELS:
        tensors['bandwidth'] = options.pop('bandwidth') + torch.rand(2, 3, 1, 1, device=device)
    if name == 'newton_schulz_inverse':
        tensors['start_scale'] = 0.01 + torch.rand(2, 3, device=device) / 99
    for option in ('rotary', 'scale'):
        if isinstance(options.get(option), torch.Tensor):
            tensors[option] = options.pop(option).to(device, dtype)
    return functools.partial(OPS[name], **options), tensors


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('name', OPS)
def test_public_ops(name, dtype, backend, device):
    function, tensors = public(name, dtype, device)
    assert_any_layout(functools.partial(function, backend=backend), tensors, dtype)


def test_start_scales_and_residuals(backend, device):
    _, tensors = public('cholesky_inverse', torch.float32, device)
    scale = functools.partial(
        newton_start_scale, factor=1.8, halve=True, per_batch=False, backend=backend
    )
    assert_any_layout(scale, tensors)
    tensors['inverse'] = torch.randn_like(tensors['mat'])
    assert_any_layout(functools.partial(ops.inverse_residual, ridge=0.1), tensors)


def powers():
    """Arguments of PolaFormer's features, all positive."""
    heads = {name: 0.8 + torch.rand(3, 1, 5) for name in ('power', 'scale')}
    return {'x': 0.1 + torch.rand(2, 3, 9, 5), **heads}


def test_fused_powers_and_streams():
    assert_any_layout(signed_powers, powers())
    q, power, scale = powers().values()
    sums, means = torch.rand(2, 3, 10, 5), torch.rand(2, 3, 10, 2)
    streams = functools.partial(pola_streams, eps=1e-6)
    assert_any_layout(streams, dict(q=q, power=power, scale=scale, sums=sums, means=means))


FFN = dict(first=(8, 6), first_bias=(8,), second=(4, 8), second_bias=(4,))


def ffn(x, approximate='tanh', **weights):
    return gelu_ffn(x, *weights.values(), approximate)


@pytest.mark.skipif(not has_onednn(torch.float32), reason='torch has no oneDNN')
@pytest.mark.parametrize('blocks', [1, 1 << 20], ids=['in blocks', 'at once'])
@pytest.mark.parametrize('large', [0, 1 << 40], ids=['computed again', 'kept'])
def test_fused_ffn(monkeypatch, blocks, large):
    monkeypatch.setattr('mmlaplace.ops.gelu_ffn.BLOCK_BYTES', blocks)  # 64 rows at least
    monkeypatch.setattr('mmlaplace.ops.gelu_ffn.LARGE_BYTES', large)
    tensors = randoms(x=(3, 70, 6), **FFN)
    assert_any_layout(ffn, tensors)
    assert_any_layout(torch.no_grad()(ffn), tensors)
    linear = torch.no_grad()(lambda x, weight, bias: onednn_linear(x, weight, bias))
    assert_any_layout(linear, randoms(x=(3, 70, 6), weight=(4, 6), bias=(4,)))


def test_fused_ops_of_nothing():
    x, *others = powers().values()
    assert signed_powers(x[..., :0, :], *others).shape == (2, 3, 0, 10)
    out, of_x, *of_weights = results(ffn, randoms(x=(0, 6), **FFN), lambda name, tensor: tensor)
    assert out.shape == (0, 4) and of_x.shape == (0, 6)
    assert not any(grad.any() for grad in of_weights)


@pytest.mark.parametrize(('hidden', 'out'), [(0, 4), (8, 0), (0, 0)])
def test_a_fused_ffn_without_channels(hidden, out):
    shapes = dict(first=(hidden, 6), first_bias=(hidden,), second=(out, hidden), second_bias=(out,))
    tensors = randoms(x=(3, 6), **shapes)
    x, first, first_bias, second, second_bias = tensors.values()
    expected = F.linear(F.gelu(F.linear(x, first, first_bias)), second, second_bias)
    found, of_x, *_ = results(ffn, tensors, lambda name, tensor: tensor)
    assert torch.equal(found, expected) and not of_x.any()
    assert torch.equal(torch.no_grad()(ffn)(**tensors), expected)


def test_graphs_expect_the_strides_that_fused_ops_give():
    x, *others = (axes_reversed(tensor) for tensor in powers().values())
    sums, of_features = (axes_reversed(torch.rand(2, 3, *shape)) for shape in ((10, 7), (9, 10)))
    for name, arguments in (
        ('_signed_powers', (x, *others)),
        ('_signed_powers_backward', (of_features, x, *others)),
        ('_pola_streams', (x, *others, sums, 1e-6)),
    ):
        op = getattr(torch.ops.mmlaplace, name).default
        torch.library.opcheck(op, arguments, test_utils='test_faketensor')
