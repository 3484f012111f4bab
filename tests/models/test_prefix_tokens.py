"""Class tokens and registers are tokens like the others to a mixing rule, and have no place."""

import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from conftest import make_attention, registered, split_heads
from mmengine.registry import MODELS
from test_attentions import assert_near, each, name_of

from mmlaplace.linearizing import keep_weights, linear_config, softmax_places
from mmlaplace.models import BaseAttention, DINOv2, DINOv3, QKVAttention, ViT

HW, PREFIX = (4, 6), 3
TAKES = [name for name in registered(BaseAttention) if not MODELS.get(name).no_prefix_tokens]
REFUSES = [name for name in registered(BaseAttention) if name not in TAKES]
CASES = [
    dict(options, type=name)
    for name in TAKES
    for options in ({}, *MODELS.get(name).tested_options)
    if not options.get('relative_bias')
]
# Each prefix token has biases of its own.
OWN_BIASES = ('AgentAttention',)
DINO = dict(embed_dims=[32], depths=[2], num_heads=[2], ffn_ratios=[2])


def build(kind, **options):
    """An attention with spread parameters, in fp64."""
    options = dict(dict(num_prefix_tokens=PREFIX), **options)
    attention = make_attention(kind, HW, **options)
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, mean=0.1, std=0.3)
    return attention


def tokens(images=2, dims=16, **options):
    options = {'dtype': torch.float64, **options}
    return torch.randn(images, PREFIX + HW[0] * HW[1], dims, **options)


# ---- the dense formulas, with a weight for each pair of tokens


def by_features(features, eps=1e-6):
    """Rows of products of features, divided by their sums."""

    def mix(attention, q, k, v, turn):
        weights = features(attention, q) @ features(attention, k).mT
        return weights @ v / (weights.sum(-1, keepdim=True) + eps)

    return mix


def elu(x):
    return F.elu(x) + 1


def mean_and_turned(query, key, v, turn, eps=1e-6):
    """Weights of rotated features, divided by the means of those that are not rotated."""
    below = query @ key.mT
    return turn(query) @ turn(key).mT @ v / (below.sum(-1, keepdim=True) + eps * key.shape[-2])


def focused(attention, x):
    u = (x.transpose(1, 2).flatten(2).relu() + 1e-6) / F.softplus(attention.scale)
    cubes = u**3
    return split_heads(cubes * u.norm(dim=-1, keepdim=True) / cubes.norm(dim=-1, keepdim=True))


def l2vit(attention, q, k, v, turn):
    weights = q.relu() @ k.relu().mT
    out = weights @ v / weights.sum(-1, keepdim=True).clamp(min=attention.least_sum)
    return attention.temperature * out


def mala(attention, q, k, v, turn):
    query, key = elu(q), elu(k)
    root = q.shape[-1] ** 0.5
    z = query @ key.mean(-2, keepdim=True).mT / root
    pairs = turn(query) @ turn(key).mT / (k.shape[-2] * root)
    return (pairs * (1 + 1 / (z + 1e-6)) - z / k.shape[-2]) @ v


def rala(attention, q, k, v, turn):
    query, key = elu(q), elu(k)
    scores = query.mean(-2, keepdim=True) @ key.mT / q.shape[-1] ** 0.5
    key = key * scores.softmax(-1).mT * k.shape[-2]
    return mean_and_turned(query, key, v, turn)


def nala(attention, q, k, v, turn):
    power = 3 * (0.5 + q.norm(dim=-1, keepdim=True).tanh())
    unit = q / q.norm(dim=-1, keepdim=True)
    query = [unit.relu() ** power, (-unit).relu() ** power]
    key = [k.relu() ** 3, (-k).relu() ** 3]
    both = torch.cat(query, -1) @ torch.cat(key, -1).mT
    pairs = sum(turn(a) @ turn(b).mT for a, b in zip(query, key))
    return pairs @ v / (both.sum(-1, keepdim=True) + 1e-6 * k.shape[-2])


def streams(query_of, key, v, turn):
    """Two halves of the channels, each with features of the queries."""
    half = v.shape[-1] // 2
    outs = [
        mean_and_turned(query_of(sign), key, part, turn)
        for sign, part in ((1, v[..., :half]), (-1, v[..., half:]))
    ]
    return torch.cat(outs, -1)


def pola(attention, q, k, v, turn):
    scale = F.softplus(attention.scale).unflatten(0, (2, 1, -1))
    power = 1 + attention.alpha * attention.power.sigmoid()

    def features(x, sign=1):
        x = sign * x / scale
        return torch.cat([x.relu() ** power, (-x).relu() ** power], -1)

    return streams(lambda sign: features(q, sign), features(k), v, lambda x: x)


def pola_pp(attention, q, k, v, turn):
    sharp = {1: attention.same_temperature, -1: attention.opposite_temperature}

    def features(x, sharpness):
        return torch.expm1(torch.cat([x.relu(), (-x).relu()], -1) * sharpness)

    return streams(lambda sign: features(sign * q, sharp[sign].sigmoid()), features(k, 1), v, turn)


def inline(attention, q, k, v, turn):
    pairs = q @ k.mT - q @ k.mean(-2, keepdim=True).mT
    return (pairs / (k.shape[-2] * q.shape[-1] ** 0.5) + 1 / k.shape[-2]) @ v


def flow(attention, q, k, v, turn):
    query, key, eps = q.sigmoid(), k.sigmoid(), 1e-6
    received = 1 / ((query + eps) @ (key.sum(-2, keepdim=True) + eps).mT)
    sent = 1 / ((key + eps) @ (query.sum(-2, keepdim=True) + eps).mT)
    allocated = (query + eps) @ ((sent * key).sum(-2, keepdim=True) + eps).mT
    competing = (key + eps) @ ((received * query).sum(-2, keepdim=True) + eps).mT
    shares = competing.clamp(-1, 1).softmax(-2) * k.shape[-2]
    ratio = q.shape[-2] / k.shape[-2]
    return (ratio * allocated).sigmoid() * received * (query @ key.mT @ (shares * v))


def hedgehog(attention, q, k, v, turn):
    def features(x, of):
        return torch.cat([(x @ of.weight).softmax(-1), (-(x @ of.weight)).softmax(-1)], -1)

    weights = features(q, attention.query_map) @ features(k, attention.key_map).mT
    return weights @ v / weights.sum(-1, keepdim=True)


def angular(attention, q, k, v, turn):
    out = 0.5 * v + F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT @ v / math.pi
    return along_tokens(attention, F.normalize(out, dim=-1), v)


def along_tokens(attention, out, v):
    """The output, and the convolution of the values along the tokens of the map."""
    if attention.conv is None:
        return out
    return on_map(attention, out, lambda y: y + attention.conv(v[:, :, PREFIX:]))


def cells(x):
    """Means of the map in 2 x 2 cells, ``(B, heads, 4, d)``."""
    maps = x[:, :, PREFIX:].mT.unflatten(3, HW)
    return maps.unflatten(4, (2, -1)).unflatten(3, (2, -1)).mean((4, 6)).flatten(3).mT


def nystromformer(attention, q, k, v, turn):
    q, k = (x / q.shape[-1] ** 0.25 for x in (q, k))
    middle = attention.pseudo_invert((cells(q) @ cells(k).mT).softmax(-1))
    weights = (q @ cells(k).mT).softmax(-1) @ middle @ (cells(q) @ k.mT).softmax(-1)
    return along_tokens(attention, weights @ v, v)


def agent(attention, q, k, v, turn):
    agents, root = cells(q), q.shape[-1] ** 0.5
    gather, spread = (attention.bias(name, HW) for name in ('gather', 'spread'))
    assert torch.equal(gather[:, :, :PREFIX], attention.gather_prefix)
    weights = (q @ agents.mT / root + spread.mT).softmax(-1)
    return weights @ (agents @ k.mT / root + gather).softmax(-1) @ v


def taylor(attention, q, k, v, turn):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = 1 + scores + scores**2 / 2
    return weights @ v / weights.sum(-1, keepdim=True)


# Formulas of the docstrings, where ``turn`` rotates features.
DENSE = {
    'LinearAttention': by_features(lambda attention, x: elu(x)),
    'SANAAttention': by_features(lambda attention, x: x.relu(), eps=1e-15),
    'SLABAttention': by_features(lambda attention, x: x.relu()),
    'FLattenAttention': lambda attention, q, k, v, turn: (
        mean_and_turned(focused(attention, q), focused(attention, k), v, turn)
    ),
    'HedgehogAttention': hedgehog,
    'L2ViTAttention': l2vit,
    'MALAAttention': mala,
    'RALAAttention': rala,
    'NaLaAttention': nala,
    'MLLAAttention': lambda attention, q, k, v, turn: mean_and_turned(elu(q), elu(k), v, turn),
    'PolaAttention': pola,
    'PolaPPAttention': pola_pp,
    'InLineAttention': inline,
    'FlowAttention': flow,
    'CastlingAttention': angular,
    'BasedAttention': taylor,
    'NystromformerAttention': nystromformer,
    'AgentAttention': agent,
    'EfficientLinearAttention': lambda attention, q, k, v, turn: (
        q.softmax(-1) @ k.softmax(-2).mT @ v
    ),
    'SoftmaxAttention': lambda attention, q, k, v, turn: (
        (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v
    ),
}


def on_map(attention, x, function):
    """A function of the tokens of the map, behind the prefix tokens as they are."""
    prefix = attention.num_prefix_tokens
    return torch.cat([x[..., :prefix, :], function(x[..., prefix:, :])], -2)


def expected(attention, x):
    """The attention step by step, with a weight for each pair of tokens."""
    frame, prefix, place = attention.frame, PREFIX, attention.key_positions
    source = x
    if attention.sr is not None:
        reduced = attention.sr(x[:, prefix:].mT.unflatten(2, HW))[0]
        source = torch.cat([x[:, :prefix], reduced], 1)
    parts = list(attention.qkv(x).split(16, -1))
    gate = parts.pop() if frame.gate else None
    if attention.kv is not None:
        parts += attention.kv(source).split(16, -1)
    q, k, v = (*parts, x) if frame.qkv == 'qk' else parts
    if place is not None:
        if attention.sr is not None:
            place = F.interpolate(place, attention.kv_shape(HW), mode='bilinear')
        k = on_map(attention, k, lambda y: y + place.flatten(2).mT)
    heads = [split_heads(y) for y in (q, k, v)]

    def turn(y):
        return on_map(attention, y, lambda z: attention.rotary(z, HW))

    if frame.rope and frame.rope_on == 'query_key':
        heads[:2] = map(turn, heads[:2])
    turn_features = turn if frame.rope and frame.rope_on == 'features' else lambda y: y
    out = DENSE[type(attention).__name__](attention, *heads, turn_features)
    out = out.transpose(1, 2).flatten(2)
    values = v[:, prefix:]
    if attention.lepe is not None and not isinstance(attention.lepe, torch.nn.Sequential):
        if attention.sr is not None:
            values = F.interpolate(values.mT, HW[0] * HW[1], mode='linear').mT
        out = on_map(attention, out, lambda y: y + attention.lepe(values, HW))
    if attention.second_lepe is not None:
        out = on_map(attention, out, lambda y: y + attention.second_lepe(v[:, prefix:], HW))
    if isinstance(attention, MODELS.get('NaLaAttention')):
        out = attention.norm(out) * F.silu(gate)
    elif gate is not None:
        out = out * gate
    if getattr(attention, 'gate_matrix', None) is not None:
        out = on_map(attention, out, lambda y: y * attention.gate_matrix.flatten(2).mT)
    return attention.proj(out)


WITH_LANDMARKS = ('NystromformerAttention', 'AgentAttention')
FORMS = [dict(type=name) for name in DENSE if name not in WITH_LANDMARKS]
FORMS += [
    dict(type='NystromformerAttention', num_landmarks=4),
    dict(type='NystromformerAttention', num_landmarks=4, conv_kernel_size=5),
    dict(type='AgentAttention', num_landmarks=4),
    dict(type='CastlingAttention', conv_kernel_size=5),
    dict(type='PolaAttention', gate_form='matrix'),
    dict(type='LinearAttention', rope=True, lepe_kernel=3, second_lepe_kernel=5),
    dict(type='LinearAttention', rope=True, rope_form='centred', gate=True),
    dict(type='SLABAttention', sr_ratio=2),
    dict(type='PolaAttention', sr_ratio=3),
    dict(type='PolaAttention', sr_ratio=2, key_positions=False, gate=False),
    dict(type='SoftmaxAttention', sr_ratio=2, lepe_kernel=3, key_positions=True),
    dict(type='SoftmaxAttention', rope=True, lepe_kernel=3),
    dict(type='MALAAttention', rope_on='query_key'),
    dict(type='RALAAttention', rope=False, key_positions=True),
    dict(type='MLLAAttention', qkv='qkv', proj=True, gate=True),
    dict(type='InLineAttention', lepe_kernel=0, key_positions=True, rope=True),
]


@each(FORMS)
def test_prefix_tokens_are_tokens_of_the_dense_formula(cfg):
    options = dict(cfg)
    kind = options.pop('type')
    if kind == 'InLineAttention':  # its filters are of each image
        options['lepe_kernel'] = 0
    attention, x = build(kind, **options), tokens().requires_grad_()
    outs = attention(x, HW), expected(attention, x)
    torch.testing.assert_close(*outs, rtol=1e-9, atol=1e-9)
    weight = torch.randn_like(x)
    grads = (torch.autograd.grad((out * weight).sum(), x) for out in outs)
    torch.testing.assert_close(*grads, rtol=1e-7, atol=1e-7)


# ---- all attentions that take prefix tokens


@pytest.mark.sampled(8, 2)
@each(CASES)
def test_prefix_tokens_change_places_with_their_outputs(cfg):
    options = dict(cfg)
    kind = options.pop('type')
    attention, x = build(kind, **options), tokens()
    order = torch.cat([torch.tensor([2, 0, 1]), torch.arange(PREFIX, x.shape[1])])
    out, other = attention(x, HW), attention(x[:, order], HW)
    same = torch.allclose(other, out[:, order], rtol=1e-8, atol=1e-8)
    assert same == (kind not in OWN_BIASES)
    # They are keys of the others, and queries.
    moved = x.clone()
    moved[:, 0] += torch.randn_like(moved[:, 0])
    change = (attention(moved, HW) - out).norm(dim=-1)[:, 1:]
    moved = x.clone()
    moved[:, -1] += torch.randn_like(moved[:, -1])
    back = (attention(moved, HW) - out).norm(dim=-1)[:, :PREFIX]
    assert change.mean() > 0 and back.mean() > 0


# Without landmarks, and without what needs a place, a rule knows no map.
NO_PLACES = dict(rope=False, lepe_kernel=0, key_positions=False, sr_ratio=1)
LANDMARKS = ('Agent', 'MiTA', 'SOFT', 'Laplacian', 'Nystromformer', 'Skyformer')


@pytest.mark.parametrize('name', [n for n in TAKES if n[: -len('Attention')] not in LANDMARKS])
def test_without_places_a_prefix_token_is_any_token(name):
    cls = MODELS.get(name)
    for each_options in ({}, *cls.tested_options):
        options = {k: v for k, v in NO_PLACES.items() if k in cls.known_options()}
        kept = ('rope_form', 'rope_on', 'window_size', 'lepe_deformable', 'gate_form')
        own = {k: v for k, v in each_options.items() if k not in (*NO_PLACES, *kept)}
        if own.get('relative_bias') or own.get('pool_size') or own.get('conv_kernel_size'):
            continue
        options.update((k, v) for k, v in own.items() if not k.startswith('lepe'))
        attention = build(name, **options)
        plain = build(name, **options, num_prefix_tokens=0)
        plain.load_state_dict(attention.state_dict())
        x = tokens()
        line = (x.shape[1], 1)
        if name == 'HydraAttention':  # whose scale is of the size of training
            plain.input_resolution = line
        torch.testing.assert_close(attention(x, HW), plain(x, line), rtol=1e-9, atol=1e-9)


@pytest.mark.sampled(11, 4)
@each(CASES)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_halves_round_the_outputs_of_prefix_tokens_too(cfg, dtype):
    if dtype == torch.float16 and not hasattr(torch.amp, 'is_autocast_available'):
        pytest.skip('before torch 2.4, CPUs compute and autocast little in float16')
    options = dict(cfg)
    kind = options.pop('type')
    attention = make_attention(kind, HW, num_prefix_tokens=PREFIX, **options).float()
    x = tokens(dtype=torch.float32)
    exact = attention(x, HW)
    with torch.autocast('cpu', dtype):
        out = attention(x, HW)
    assert_near(cfg, out, exact, dtype)


@pytest.mark.parametrize('name', TAKES)
def test_wrong_numbers_of_prefix_tokens_are_quoted(name):
    attention, x = build(name), tokens()
    with pytest.raises(ValueError, match=r'\(B, 3 \+ H\*W, C\) = \(B, 27, 16\).* \(2, 24, 16\)'):
        attention(x[:, PREFIX:], HW)
    for wrong in (-1, 1.0, True):
        with pytest.raises(ValueError, match=f'num_prefix_tokens must be .* got {wrong}'):
            build(name, num_prefix_tokens=wrong)
    if not attention.accepts_mask:
        with pytest.raises(ValueError, match=f'{name} takes no mask'):
            attention(x, HW, mask=torch.ones(27, 27, dtype=torch.bool))


def test_a_mask_hides_prefix_tokens():
    attention, x = build('SoftmaxAttention', lepe_kernel=3, rope=True), tokens()
    seen = torch.ones(1, 1, 1, 27, dtype=torch.bool)
    seen[..., 1] = False
    moved = x.clone()
    moved[:, 1] += 1
    out, other = (attention(y, HW, mask=seen) for y in (x, moved))
    others = [i for i in range(27) if i != 1]
    torch.testing.assert_close(out[:, others], other[:, others])
    assert not torch.allclose(attention(x, HW), out)


@pytest.mark.parametrize('name', REFUSES)
def test_attentions_of_a_map_alone_say_why(name):
    reason = MODELS.get(name).no_prefix_tokens
    with pytest.raises(TypeError, match="has no option 'num_prefix_tokens'"):
        make_attention(name, num_prefix_tokens=1)
    with pytest.raises(ValueError, match=f'{name}.* does not: {reason}; set with_cls_token=False'):
        ViT(DINO, attn_cfg=dict(type=name))


def test_an_attention_of_ones_own_declares_that_it_takes_them():
    class Mean(QKVAttention):
        def mix(self, q, k, v, hw_shape):
            return v.mean(2, keepdim=True).expand_as(q)

    class MeanOfAll(Mean):
        no_prefix_tokens = ''

    with pytest.raises(ValueError, match="does not: its class does not set no_prefix_tokens = ''"):
        ViT(DINO, attn_cfg=dict(type=Mean))
    backbone = ViT(DINO, attn_cfg=dict(type=MeanOfAll), out_type='cls_token')
    assert backbone(torch.randn(1, 3, 32, 48))[0].shape == (1, 32)


# ---- hosts


@pytest.mark.sampled(8, 3)
@pytest.mark.parametrize('name', TAKES)
@pytest.mark.parametrize('host', [ViT, DINOv2, DINOv3])
def test_hosts_with_a_class_token_and_registers_take_it(host, name):
    registers = dict(num_registers=4) if host is DINOv2 else {}
    lost = host is DINOv3 and 'rope_form' not in MODELS.get(name).known_options()
    with pytest.warns(UserWarning, match="'centred'") if lost else nullcontext():
        attn_cfg = dict(type=name)
        backbone = host(DINO, img_size=64, attn_cfg=attn_cfg, out_type='cls_token', **registers)
    stride = backbone.stage_strides[0]
    (out,) = backbone.eval()(torch.randn(2, 3, 3 * stride, 2 * stride))
    assert out.shape == (2, 32) and out.isfinite().all()
    prefix = {ViT: 1, DINOv2: 5, DINOv3: 5}[host]
    assert {block.attn.num_prefix_tokens for block in backbone.stages[0].blocks} == {prefix}


@pytest.mark.parametrize('name', ['FLattenAttention', 'LaplacianAttention', 'PolaAttention'])
def test_softmax_beside_registers_is_swapped(name):
    torch.manual_seed(0)
    cfg = dict(type='DINOv2', arch=DINO, img_size=56, num_registers=4)
    old = MODELS.build(cfg)
    new = MODELS.build(linear_config(cfg, old, name))
    kept = keep_weights(new, old, softmax_places(old))
    assert 0.7 < kept.share < 1
    torch.testing.assert_close(*(b.stages[0].position.registers for b in (old, new)))
    assert {name_of(type(b.attn).__name__) for b in new.stages[0].blocks} == {name}
    assert new.eval()(torch.randn(1, 3, 56, 42))[0].shape == (1, 32, 4, 3)
