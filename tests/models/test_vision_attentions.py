"""What the authors' files cannot show of the vision attentions."""

import pytest
import torch
import torch.nn.functional as F
from conftest import doubles, make_attention, split_heads
from mmengine.registry import MODELS
from torch.autograd import gradcheck, gradgradcheck

from mmlaplace.models.layers import signed_powers
from mmlaplace.models.layers.deformable import DeformableConv

CLOSE = dict(atol=1e-10, rtol=1e-10)  # two orders of the same fp64 sums


def build(name, hw_shape=(7, 7), **options):
    return make_attention(name, hw_shape, **options)


def test_mixture_of_blocks_equals_the_formula():
    attention = build('MHLAAttention', grid=2)
    q, k, v = doubles(3, 1, 2, 35, 8)
    torch.nn.init.uniform_(attention.mixture)
    rows, columns = torch.arange(5) // 3, torch.arange(7) // 4  # blocks of 3 x 4, some cut
    block = (2 * rows[:, None] + columns).flatten()
    scores = (q.relu() + 1e-6) @ (k.relu() + 1e-6).mT * attention.mixture[block][:, block]
    expected = scores @ v / (scores.sum(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(attention.mix(q, k, v, (5, 7)), expected, **CLOSE)


def test_circulant_weights_of_a_head_belong_to_offsets_on_a_torus():
    """In the authors' files each channel has its own."""
    attention = build('CirculantAttention', weights_per='head')
    q, k, v = doubles(3, 1, 2, 35, 8)
    maps = [x.unflatten(2, (5, 7)) for x in (k, v)]
    offsets = [(i, j) for i in range(5) for j in range(7)]
    keys, values = (
        torch.stack([x.roll((-i, -j), (2, 3)).flatten(2, 3) for i, j in offsets]) for x in maps
    )
    scores = (q * keys).sum((3, 4), keepdim=True) / (35 * 8) ** 0.5  # (offsets, B, heads, 1, 1)
    expected = (scores.softmax(0) * values).sum(0)
    torch.testing.assert_close(attention.mix(q, k, v, (5, 7)), expected, **CLOSE)


def test_the_rate_of_the_inner_step_scales_it():
    """In the authors' files it is 1. The outputs of the convolution are linear in its filters."""
    q, k, v = doubles(3, 2, 35, 8)
    outs = []
    for rate in (0.0, 0.7, 1.0):
        torch.manual_seed(0)
        attention = build('TTTAttention', std=0.5, inner_lr=rate)
        outs.append(attention.convolve(q, k, v, (5, 7)))
    assert not torch.allclose(outs[0], outs[2])
    torch.testing.assert_close(outs[1], 0.3 * outs[0] + 0.7 * outs[2], **CLOSE)


def test_sums_that_no_half_holds_reach_the_norm_of_nala():
    attention, outs = build('NaLaAttention'), []
    q, k = torch.zeros(2, 1, 2, 35, 8)
    v = torch.rand(1, 2, 35, 8).half()  # so that it is the same in all dtypes
    # Queries and keys that share no feature: the normaliser is its epsilon, and the rotated
    # products are not zero.
    q[..., 0], k[..., 1] = 1.0, 1.0
    for dtype in (torch.float64, torch.float16):
        mixed = attention.to(dtype).mix(*(x.to(dtype) for x in (q, k, v)), (5, 7))
        assert dtype == torch.float16 or mixed.abs().max() > torch.finfo(torch.float16).max
        gate = torch.ones(1, 35, 16, dtype=dtype)
        outs.append(attention.apply_gate(attention.merge_heads(mixed), gate))
    assert outs[1].dtype == torch.float16
    # Eleven bits of a result of size one, and fp32 before it.
    torch.testing.assert_close(outs[1].double(), outs[0], atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize('hw_shape', [(5, 7), (3, 1), (1, 4), (1, 1)])
def test_places_of_patches_have_sums_of_their_own_on_a_map_of_any_size(hw_shape):
    attention = build('SeparableAttention', patch_size=2)
    x = doubles(2, hw_shape[0] * hw_shape[1], 16)
    score, k, v = attention.qkv(x).split([1, 16, 16], -1)
    out = torch.empty(2, *hw_shape, 16).double()
    for i in (0, 1):
        for j in (0, 1):
            s, key, value = (t.unflatten(1, hw_shape)[:, i::2, j::2] for t in (score, k, v))
            weights = s.flatten(1).softmax(1)[..., None]
            context = (weights * key.flatten(1, 2)).sum(1)
            out[:, i::2, j::2] = context[:, None, None] * value.relu()
    expected = attention.proj(out.flatten(1, 2))
    torch.testing.assert_close(attention(x, hw_shape), expected, **CLOSE)


def test_windows_are_averaged_place_by_place_with_reflected_borders():
    attention = build('FaViTAttention')
    x = doubles(2, 15 * 9, 16)
    for step in (1, 2):
        extent = 6 * step + 1
        maps = F.pad(x.mT.unflatten(2, (15, 9)), (0, -9 % extent, 0, -15 % extent), 'reflect')
        windows = maps.unfold(2, extent, extent).unfold(3, extent, extent)[..., ::step, ::step]
        expected = windows.mean((2, 3)).flatten(2).mT.unflatten(-1, (2, 8)).transpose(1, 2)
        out = attention.averages(x, (15, 9), step)
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


@pytest.mark.slow
def test_large_kernels_equal_those_of_mmpretrain():
    van = pytest.importorskip('mmpretrain.models.backbones.van')
    theirs, ours = van.SpatialAttention(16).double(), build('LargeKernelAttention', shortcut=True)
    gating = 'spatial_gating_unit.'
    starts = {
        'value.': 'proj_1.',
        'proj.': 'proj_2.',
        'near.conv.': f'{gating}DW_conv.',
        'far.': f'{gating}DW_D_conv.',
        'weight.': f'{gating}conv1.',
    }
    for start, their_start in starts.items():
        for kind in ('weight', 'bias'):
            own, value = ours.get_parameter(start + kind), theirs.get_parameter(their_start + kind)
            own.data = value.data.view_as(own)
    x = doubles(2, 16, 5, 9)
    out = ours(x.flatten(2).mT, (5, 9)).mT.unflatten(2, (5, 9))
    torch.testing.assert_close(out, theirs(x), **CLOSE)


def test_flatten_stays_finite_where_powers_underflow():
    attention = build('FLattenAttention').float()
    torch.nn.init.constant_(attention.scale, 50.0)  # the authors' code gives NaN from 40 on
    torch.nn.init.constant_(attention.qkv.bias, -5.0)  # every query is dead
    x = torch.randn(2, 49, 16, requires_grad=True)
    out = attention(x, (7, 7))
    out.sum().backward()
    assert all(t.isfinite().all() for t in (out, x.grad, attention.scale.grad))


@pytest.mark.parametrize(
    ('hw_shape', 'kernel_size', 'dilation'), [((6, 9), 3, 1), ((7, 8), 3, 2), ((2, 9), 3, 3)]
)
def test_a_query_sees_the_nearest_places_of_its_residue(hw_shape, kernel_size, dilation):
    """Against a softmax over the whole map with all other places masked."""
    attention = build('NeighborhoodAttention', hw_shape, kernel_size=kernel_size, dilation=dilation)
    seen = torch.ones(1, 1, dtype=torch.bool)
    for side in hw_shape:
        step = min(dilation, max(1, side // kernel_size))
        axis = torch.zeros(side, side, dtype=torch.bool)
        for query in range(side):
            alike = list(range(query % step, side, step))
            count = min(kernel_size, side // step)
            start = min(max(query // step - count // 2, 0), len(alike) - count)
            axis[query, alike[start : start + count]] = True
        seen = torch.kron(seen.int(), axis.int()).bool()
    q, k, v = doubles(3, 1, 2, hw_shape[0] * hw_shape[1], 8)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(attention.mix(q, k, v, hw_shape), expected, **CLOSE)


@pytest.mark.parametrize('heads', [1, 3])
def test_half_of_the_heads_see_the_map_and_half_their_block(heads):
    hw_shape, side = (5, 7), 3
    attention = build('ELFATTAttention', hw_shape, embed_dims=12, num_heads=heads, window_size=side)
    x = doubles(2, 35, 12)
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in attention.qkv(x).chunk(3, -1))
    if heads == 1:  # its channels are two heads
        q, k, v = (t.unflatten(-1, (2, -1)).squeeze(1).transpose(1, 2) for t in (q, k, v))
    rows, columns = torch.arange(5) // side, torch.arange(7) // side
    block = (3 * rows[:, None] + columns).flatten()
    far = q[:, :1].softmax(-1) @ k[:, :1].softmax(-2).mT @ v[:, :1]
    same_block = block[:, None] == block
    near = F.scaled_dot_product_attention(q[:, 1:], k[:, 1:], v[:, 1:], attn_mask=same_block)
    out = torch.cat([far, near], dim=1).transpose(1, 2).flatten(2)
    v = v.transpose(1, 2).flatten(2).mT.unflatten(2, hw_shape)  # (B, C, H, W)
    v, own_v = v.tensor_split([12 // max(heads, 2)], dim=1)  # of the head that sees the map
    far, near = (part.conv for part in attention.lepe)
    inside = (block == block.unique()[:, None]).view(-1, 1, 1, *hw_shape)
    # In a convolution of a block, all other blocks are zeros.
    near = sum(near(own_v * own) * own for own in inside)
    local = torch.cat([far(v), near], dim=1).flatten(2).mT
    torch.testing.assert_close(attention(x, hw_shape), attention.proj(out + local), **CLOSE)


@pytest.mark.parametrize('prefix', [0, 1])
def test_choices_of_experts_are_those_of_their_landmarks(prefix):
    """Against a softmax over landmarks and all keys, of which each query sees its own."""
    options = dict(num_landmarks=4, topk=5, routes=2, num_prefix_tokens=prefix)
    attention = build('MiTAAttention', **options)
    q, k, v = doubles(3, 1, 2, prefix + 6 * 7, 8)
    maps = q[0, :, prefix:].mT.unflatten(2, (6, 7))
    landmarks = F.adaptive_avg_pool2d(maps, 2)[None].flatten(3).mT
    threshold = (landmarks @ k.mT).topk(5).values[..., -1:]
    gathered = (landmarks @ k.mT >= threshold).double()  # (1, heads, landmarks, N)
    visits = F.one_hot((q @ landmarks.mT).topk(2).indices, 4).sum(-2).double()
    counts = visits @ gathered  # how often a query meets a key, up to twice
    logits = torch.cat([q @ landmarks.mT / 8, q @ k.mT / 8**0.5 + counts.log()], dim=-1)
    outs = F.scaled_dot_product_attention(landmarks, k, v)
    expected = logits.softmax(-1) @ torch.cat([outs, v], dim=2)
    torch.testing.assert_close(attention.mix(q, k, v, (6, 7)), expected, **CLOSE)


def test_a_class_token_has_no_convolution_in_mita():
    attention, x = build('MiTAAttention', num_prefix_tokens=1, lepe_kernel=3), doubles(1, 21, 16)
    values = attention.project(x, (4, 5)).v
    out = attention(x, (4, 5))
    lepe, attention.lepe = attention.lepe, None
    mixed = attention(x, (4, 5))
    torch.testing.assert_close(out[:, :1], mixed[:, :1], **CLOSE)
    local = lepe(values[:, 1:], (4, 5)) @ attention.proj.weight.mT
    torch.testing.assert_close(out[:, 1:], mixed[:, 1:] + local, **CLOSE)


# ---- PolaFormer's attention, its deformable filters and its signed powers


@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(polarity=False),
        dict(gate=False),
        dict(gate_form='matrix'),
        dict(power=1),
        dict(power=2.5),
        dict(lepe_kernel=0),
    ],
    ids=str,
)
def test_the_linear_time_form_of_pola_equals_the_dense_formula(options):
    attention, x = build('PolaAttention', (6, 8), std=0.5, **options), doubles(2, 48, 16)
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
    torch.testing.assert_close(attention(x, (6, 8)), attention.proj(out), **CLOSE)


@pytest.mark.parametrize('hw_shape', [(3, 5), (1, 4)])
def test_a_deformable_convolution_equals_that_of_torchvision(hw_shape):
    ops = pytest.importorskip('torchvision.ops')
    conv = DeformableConv(6, 3, 2, 'head_channel').double()
    assert not any(parameter.any() for parameter in conv.offset.parameters())
    torch.nn.init.normal_(conv.offset.weight)  # far enough to leave the map
    x = doubles(2, hw_shape[0] * hw_shape[1], 6).requires_grad_()
    maps = x.mT.unflatten(2, hw_shape)
    weight, bias = conv.conv.filters(2)
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


def test_biases_for_fewer_agents_are_resized_over_the_grid_of_agents():
    attention = make_attention('AgentAttention', num_landmarks=16)
    heads = attention.num_heads
    of_two_rows = torch.tensor([0.0, 0.0, 1.0, 1.0])  # by agent, of a grid of 2 x 2
    for name in ('gather_map', 'gather_rows'):
        own = getattr(attention, name)
        stored = of_two_rows.view(1, 4, 1, 1).expand(heads, 4, *own.shape[2:])
        resized = attention.resize_weight(name, stored)
        assert resized.shape == own.shape
        # Bilinear: the centres of four rows lie at 1/8, 3/8, 5/8 and 7/8 of two.
        by_row = torch.tensor([0.0, 0.25, 0.75, 1.0]).repeat_interleave(4)
        torch.testing.assert_close(resized[:, :, 0, 0], by_row.expand(heads, 16).to(resized))


# Layers that compute a part of their input each.


def test_the_convolution_of_v_stays_inside_the_stripes_of_each_half():
    attention = MODELS.build(
        dict(
            type='CrossShapedAttention',
            embed_dims=8,
            num_heads=2,
            input_resolution=(4, 7),
            stripe_width=3,
        )
    ).double()
    v, conv = doubles(1, 28, 8), attention.lepe.conv
    expected = []
    # Three columns or rows a stripe, of a map with one more of zeros on both sides.
    for channels, pad, axis in ((slice(0, 4), (1, 1, 0, 0), 3), (slice(4, 8), (0, 0, 1, 1), 2)):
        stripes = F.pad(v.mT.unflatten(2, (4, 7))[:, channels], pad).split(3, axis)
        weights = conv.weight[channels], conv.bias[channels]
        parts = [F.conv2d(stripe, *weights, padding=1, groups=4) for stripe in stripes]
        whole = torch.cat(parts, axis)
        expected.append(whole.narrow(axis, 1, whole.shape[axis] - 2))
    expected = torch.cat(expected, 1).flatten(2).mT
    torch.testing.assert_close(attention.local_branch(v, v, (4, 7)), expected, **CLOSE)


def test_the_bias_of_keys_has_no_effect_and_no_gradient_in_scaled_cosines():
    attention = MODELS.build(
        dict(type='ScaledCosineAttention', embed_dims=8, num_heads=2, input_resolution=(3, 4))
    ).double()
    x, bias = doubles(2, 12, 8), attention.qkv.bias
    torch.nn.init.normal_(bias)
    out = attention(x, (3, 4))
    out.square().sum().backward()
    of_query, of_key, of_value = bias.grad.split(8)
    assert of_key.abs().max() < 1e-12 < of_query.abs().min() < of_value.abs().max()
    with torch.no_grad():
        bias[8:16] += 1
    torch.testing.assert_close(attention(x, (3, 4)), out, **CLOSE)
