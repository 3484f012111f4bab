"""What the authors' files do not show of focused linear, agent and cross-covariance attention."""

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def test_flatten_stays_finite_where_powers_underflow():
    attention = MODELS.build(
        dict(type='FLattenAttention', embed_dims=16, num_heads=2, input_resolution=(4, 4))
    )
    torch.nn.init.constant_(attention.scale, 50.0)  # the authors' code gives NaN from 40 on
    torch.nn.init.constant_(attention.qkv.bias, -5.0)  # every query is dead
    x = torch.randn(2, 16, 16, requires_grad=True)
    out = attention(x, (4, 4))
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()
    assert attention.scale.grad.isfinite().all()


@pytest.mark.parametrize('rope', [False, True])
def test_norms_of_flatten_are_over_all_heads(rope):
    """The formula with an N x N matrix, in fp64."""
    cfg = dict(type='FLattenAttention', embed_dims=16, num_heads=2, input_resolution=(3, 4))
    attention = MODELS.build(dict(cfg, rope=rope, lepe_kernel=0)).double()
    x = torch.randn(2, 12, 16, dtype=torch.float64)
    q, (k, v) = attention.qkv(x), attention.kv(x).chunk(2, -1)
    k = k + attention.key_positions.flatten(2).mT
    if rope:
        q, k = (attention.merge_heads(attention.rotary(heads(t, 2), (3, 4))) for t in (q, k))
    tau = torch.log(torch.tensor(2.0, dtype=torch.float64))
    q, k = ((t.relu() + 1e-6) / tau for t in (q, k))
    q, k = (t**3 * t.norm(dim=-1, keepdim=True) / (t**3).norm(dim=-1, keepdim=True) for t in (q, k))
    scores = heads(q, 2) @ heads(k, 2).mT
    weights = scores / (scores.sum(-1, keepdim=True) + 12e-6)
    expected = attention.proj((weights @ heads(v, 2)).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, (3, 4)), expected, atol=1e-10, rtol=1e-10)


def agent(**options):
    cfg = dict(type='AgentAttention', embed_dims=16, num_heads=2, input_resolution=(8, 6))
    return MODELS.build(dict(cfg, **options))


def test_agents_of_a_checkpoint_may_be_fewer():
    few, many = agent(num_landmarks=9), agent(num_landmarks=36)
    rows = torch.arange(3.0).repeat_interleave(3)[None, :, None, None]  # of the agents' square
    for name in ('gather_map', 'gather_rows', 'spread_columns'):
        own = getattr(many, name)
        ramp = rows.expand(2, -1, *getattr(few, name).shape[2:])
        larger = many.resize_weight(name, ramp)
        assert larger.shape == own.shape
        square = larger.unflatten(1, (6, 6))
        assert (square.diff(dim=1) >= 0).all() and square.diff(dim=1).max() > 0  # rows rise
        assert square.diff(dim=2).abs().max() < 1e-6  # columns are alike: rounding
    not_square = torch.zeros(2, 10, 7, 7)
    assert few.resize_weight('gather_map', not_square) is not_square  # for PyTorch to refuse


def test_agents_on_reduced_keys_equal_the_formula():
    attention = agent(num_landmarks=4, sr_ratio=2).double()
    sides = dict(gather=(4, 3), spread=(8, 6))
    shapes = {
        f'{name}_{part}': (2, 4, *size)
        for name, (height, width) in sides.items()
        for part, size in dict(map=(7, 7), rows=(height, 1), columns=(1, width)).items()
    }
    for name, shape in shapes.items():
        assert getattr(attention, name).shape == shape
        torch.nn.init.normal_(getattr(attention, name))
    x = torch.randn(2, 48, 16, dtype=torch.float64)
    reduced = attention.sr(x.mT.unflatten(2, (8, 6)))[0]
    q, (k, v) = heads(attention.qkv(x), 2), attention.kv(reduced).chunk(2, -1)
    agents = F.adaptive_avg_pool2d(attention.qkv(x).mT.unflatten(2, (8, 6)), 2).flatten(2).mT

    def bias(name, size):
        table = F.interpolate(getattr(attention, f'{name}_map'), size, mode='bilinear')
        return (table + getattr(attention, f'{name}_rows')
                + getattr(attention, f'{name}_columns')).flatten(2)  # fmt: skip

    agents, keys, values = heads(agents, 2), heads(k, 2), heads(v, 2)
    gathered = (agents @ keys.mT / 8**0.5 + bias('gather', (4, 3))).softmax(-1) @ values
    mixed = (q @ agents.mT / 8**0.5 + bias('spread', (8, 6)).mT).softmax(-1) @ gathered
    larger = F.interpolate(v.mT.unflatten(2, (4, 3)), (8, 6), mode='bilinear').flatten(2).mT
    out = mixed.transpose(1, 2).flatten(2) + attention.lepe(larger, (8, 6))
    torch.testing.assert_close(attention(x, (8, 6)), attention.proj(out), atol=1e-10, rtol=1e-10)


def test_channels_of_xca_mix_alike_in_every_token():
    attention = MODELS.build(
        dict(type='XCAttention', embed_dims=16, num_heads=2, input_resolution=(3, 4))
    ).double()
    x = torch.randn(1, 12, 16, dtype=torch.float64)
    order = torch.randperm(12)
    torch.testing.assert_close(
        attention(x, (3, 4))[:, order], attention(x[:, order], (3, 4)), atol=1e-12, rtol=0
    )
