"""PolaFormer's attention: dense formulas for every option, signed powers, deformable filters."""

import pytest
import torch
import torch.nn.functional as F
from conftest import doubles, make_attention, quiet_init, split_heads
from torch.autograd import gradcheck, gradgradcheck

from mmlaplace.models import PolaAttention
from mmlaplace.models.layers import linear_attention, signed_powers
from mmlaplace.models.layers.deformable import DeformableConv

HW = (6, 8)
CLOSE = dict(rtol=1e-9, atol=1e-9)  # fp64 sums of at most 48 tokens
needs_compile = pytest.mark.skipif(
    not hasattr(torch.amp, 'is_autocast_available'),
    reason='before torch 2.4, torch.compile traces no context managers of libraries',
)


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


def test_a_matrix_of_gates_is_resized():
    attention = make_attention('PolaAttention', HW, std=0.5, gate_form='matrix')
    without = make_attention('PolaAttention', HW, gate=False)
    without.load_state_dict({k: v for k, v in attention.state_dict().items() if 'matrix' not in k})
    attention.proj = without.proj = torch.nn.Identity()
    x = doubles(2, 15, 16)
    smaller = F.interpolate(attention.gate_matrix, (3, 5), mode='bilinear').flatten(2).mT
    torch.testing.assert_close(attention(x, (3, 5)), without(x, (3, 5)) * smaller, **CLOSE)
    assert attention.resize_weight('gate_matrix', torch.ones(1, 16, 3, 4)).shape == (1, 16, *HW)


@pytest.mark.parametrize(('init', 'mean', 'std', 'least', 'most'), [
    # Kaiming's bound with d / 2 = 16 columns: sqrt(6 / 16) = 0.61, and std sqrt(2 / 16).
    ('kaiming_uniform', 0, 0.354, -0.6124, 0.6124),
    ('zeros', 0, 0, 0, 0),
    ('normal', 0, 1, -6, 6),
    ('uniform', 0.5, 0.289, 0, 1),
    ('ones', 1, 0, 1, 1),
])  # fmt: skip
def test_a_matrix_starts_in_the_papers_five_ways(init, mean, std, least, most):
    attention = PolaAttention(64, 2, (14, 14), gate_form='matrix', gate_init=init)
    quiet_init(attention)
    matrix = attention.gate_matrix
    # 12544 values: five errors of a mean of std 1 are 0.045.
    assert matrix.mean().item() == pytest.approx(mean, abs=0.05)
    assert matrix.std().item() == pytest.approx(std, abs=0.05)
    assert least <= matrix.min() and matrix.max() <= most
    assert not std or len(matrix.unique()) > 1000  # no row, column or stream is a copy


def test_a_deformable_convolution_starts_as_the_depthwise_one_and_its_shifts_move_it():
    deformable, depthwise = (
        make_attention('PolaAttention', HW, init=False, lepe_deformable=on) for on in (True, False)
    )
    state = {k: v for k, v in deformable.state_dict().items() if 'offset' not in k}
    depthwise.load_state_dict(state)
    x = doubles(2, 48, 16)
    torch.testing.assert_close(deformable(x, HW), depthwise(x, HW), **CLOSE)
    conv = DeformableConv(16, 3, 2, 'head_channel').double()
    assert conv.conv.weight.shape == (8, 1, 3, 3)
    with torch.no_grad():
        conv.offset.bias[1::2] = 1.0  # every place one column to the right
    shifted = F.pad(x.mT.unflatten(2, HW), (0, 1))[..., 1:].flatten(2).mT
    plain = super(DeformableConv, conv).forward(shifted, HW).unflatten(1, HW)
    # The last columns see zeros where the shifted map ends.
    inside = conv(x, HW).unflatten(1, HW)[:, :, 1:-1]
    torch.testing.assert_close(inside, plain[:, :, 1:-1], **CLOSE)


@pytest.mark.parametrize('filters_per', ['channel', 'head_channel'])
@pytest.mark.parametrize('hw_shape', [(3, 5), (1, 4)])
def test_a_deformable_convolution_equals_that_of_torchvision(hw_shape, filters_per):
    ops = pytest.importorskip('torchvision.ops')
    conv = DeformableConv(6, 3, 2, filters_per).double()
    torch.nn.init.normal_(conv.offset.weight)  # far enough to leave the map
    x = doubles(2, hw_shape[0] * hw_shape[1], 6).requires_grad_()
    maps = x.mT.unflatten(2, hw_shape)
    weight, bias = conv.filters()
    expected = ops.deform_conv2d(maps, conv.offset(maps), weight, bias, padding=1).flatten(2).mT
    out = conv(x, hw_shape)
    torch.testing.assert_close(out, expected, **CLOSE)
    wanted = [x, conv.offset.weight, conv.conv.weight, conv.conv.bias]
    grad = torch.randn_like(out)
    for one, other in zip(*(torch.autograd.grad(y, wanted, grad) for y in (out, expected))):
        torch.testing.assert_close(one, other, **CLOSE)


# Signed powers by one exponential.


def formula(x, power, scale):
    return torch.cat([F.relu(x / scale) ** power, F.relu(-x / scale) ** power], dim=-1)


def inputs(dtype=torch.float64, tokens=6):
    x = torch.randn(2, 3, tokens, 5, dtype=dtype)
    power = 1.05 + 4 * torch.rand(3, 1, 5, dtype=dtype)
    return x, power, 0.5 + torch.rand(3, 1, 5, dtype=dtype)


def traced(function):
    graph = torch.jit.trace(function, inputs())
    assert 'aten::pow' not in str(graph.graph)  # of which ONNX Runtime takes ten times as long
    return graph


WAYS = {
    'eager': lambda function: function,
    'compiled': lambda f: torch.compile(f, fullgraph=True, backend='aot_eager'),
    'traced': traced,
}


@pytest.mark.parametrize('way', ['eager', pytest.param('compiled', marks=needs_compile), 'traced'])
def test_signed_powers_and_their_gradients_are_those_of_the_formula(way):
    values, chance = inputs(), doubles(2, 3, 6, 10)
    values[0][0, 0, :2] = 0
    found = []
    for function in (WAYS[way](signed_powers), formula):
        leaves = [tensor.clone().requires_grad_() for tensor in values]
        out = function(*leaves)
        found.append((out.detach(), *torch.autograd.grad((out * chance).sum(), leaves)))
    # The same numbers in fp64; exp(p log x) rounds the exponent, whose size is below 100.
    for mine, theirs in zip(*found):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_signed_powers_have_derivatives_of_two_orders_and_take_vmap():
    x, power, scale = inputs(tokens=2)
    mapped = torch.func.vmap(signed_powers, in_dims=(0, None, None))(x[:, None], power, scale)
    torch.testing.assert_close(mapped[:, 0], signed_powers(x, power, scale))
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


@pytest.mark.parametrize('head_dims', [3, 5, 8])  # the streams of an odd head differ in width
def test_streams_are_linear_attentions(head_dims):
    attention = PolaAttention(2 * head_dims, 2, input_resolution=(3, 4)).double()
    torch.nn.init.normal_(attention.power)
    q, k, v = doubles(3, 2, 2, 12, head_dims)
    query, key = attention.features(q), attention.features(k)
    pairs = zip((query, query.roll(head_dims, dims=-1)), v.chunk(2, dim=-1))
    streams = [linear_attention(one, key, value, attention.eps) for one, value in pairs]
    torch.testing.assert_close(attention.mix(q, k, v, (3, 4)), torch.cat(streams, -1), **CLOSE)
