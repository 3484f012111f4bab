"""PolaFormer's attention: dense formulas for every option, signed powers, deformable filters."""

import pytest
import torch
import torch.nn.functional as F
from conftest import doubles, make_attention, split_heads
from torch.autograd import gradcheck, gradgradcheck

from mmlaplace.models.layers import signed_powers
from mmlaplace.models.layers.deformable import DeformableConv

HW = (6, 8)
CLOSE = dict(rtol=1e-9, atol=1e-9)  # fp64 sums of at most 48 tokens


@pytest.mark.parametrize('options', [
    {}, dict(polarity=False), dict(gate=False), dict(gate_form='matrix'), dict(power=1),
    dict(power=2.5), dict(lepe_kernel=0),
], ids=str)  # fmt: skip
def test_linear_time_form_equals_the_dense_formula(options):
    attention = make_attention('PolaAttention', HW, std=0.5, **options)
    x = doubles(2, 48, 16)
    query, *gate = attention.qkv(x).split(16, dim=-1)
    key, value = attention.kv(x).chunk(2, dim=-1)
    key = key + attention.key_positions.flatten(2).mT
    scale = torch.log(1 + attention.scale.exp())
    query, key, value = split_heads(query / scale), split_heads(key / scale), split_heads(value)
    assert ('power' in dict(attention.named_parameters())) == ('power' not in options)
    power = options.get('power') or 1 + 4 / (1 + (-attention.power).exp())
    plus, minus = ([(s * t).clamp(min=0) ** power for t in (query, key)] for s in (1, -1))
    weights = [plus[0] @ plus[1].mT]
    if attention.polarity:
        opposite = minus[0] @ plus[1].mT + plus[0] @ minus[1].mT
        weights = [weights[0] + minus[0] @ minus[1].mT, opposite]
    streams = zip(weights, value.chunk(len(weights), dim=-1))
    out = torch.cat([w / (w.sum(-1, keepdim=True) + 48e-6) @ part for w, part in streams], dim=-1)
    if attention.lepe is not None:
        images = value.reshape(4, 6, 8, 8).permute(0, 3, 1, 2)  # heads are images
        out = out + attention.lepe.conv(images).flatten(2).mT.view(2, 2, 48, 8)
    out = out.transpose(1, 2).flatten(2)
    if 'gate_form' in options:
        gate = [attention.gate_matrix.flatten(2).mT]
    assert len(gate) == options.get('gate', 1)
    out = out * gate[0] if gate else out
    torch.testing.assert_close(attention(x, HW), attention.proj(out), **CLOSE)


@pytest.mark.parametrize('hw_shape', [(3, 5), (1, 4)])
def test_a_deformable_convolution_equals_that_of_torchvision(hw_shape):
    ops = pytest.importorskip('torchvision.ops')
    conv = DeformableConv(6, 3, 2, 'head_channel').double()
    assert not any(parameter.any() for parameter in conv.offset.parameters())
    torch.nn.init.normal_(conv.offset.weight)  # far enough to leave the map
    x = doubles(2, hw_shape[0] * hw_shape[1], 6).requires_grad_()
    maps = x.mT.unflatten(2, hw_shape)
    weight, bias = conv.filters()
    expected = ops.deform_conv2d(maps, conv.offset(maps), weight, bias, padding=1).flatten(2).mT
    out = conv(x, hw_shape)
    torch.testing.assert_close(out, expected, **CLOSE)
    wanted, grad = [x, conv.offset.weight, conv.conv.weight, conv.conv.bias], torch.randn_like(out)
    grads = (torch.autograd.grad(y, wanted, grad) for y in (out, expected))
    torch.testing.assert_close(*grads, **CLOSE)


# Signed powers by one exponential.


def formula(x, power, scale):
    return torch.cat([F.relu(x / scale) ** power, F.relu(-x / scale) ** power], dim=-1)


def inputs(tokens):
    """x, powers and scales of which a derivative may be taken."""
    power, scale = 1.05 + 4 * torch.rand(3, 1, 5), 0.5 + torch.rand(3, 1, 5)
    x = torch.randn(2, 3, tokens, 5)
    return [value.double().requires_grad_() for value in (x, power, scale)]


def test_signed_powers_and_their_gradients_are_those_of_the_formula():
    leaves, chance = inputs(6), doubles(2, 3, 6, 10)
    leaves[0].data[0, 0, :2] = 0
    outs = [function(*leaves) for function in (signed_powers, formula)]
    found = [(out, *torch.autograd.grad((out * chance).sum(), leaves)) for out in outs]
    # The same numbers in fp64; exp(p log x) rounds the exponent, whose size is below 100.
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-12)


def test_signed_powers_have_derivatives_of_two_orders():
    leaves = inputs(2)
    leaves[0].data[leaves[0].abs() < 0.1] = 0.1  # finite differences must not cross zero
    assert gradcheck(signed_powers, leaves)
    assert gradgradcheck(signed_powers, leaves)
