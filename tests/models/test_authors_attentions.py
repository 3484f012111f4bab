"""Attentions give the authors' outputs and gradients, from the authors' own weights."""

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS
from test_golden import GOLDEN, assert_close

# Two orders of the same fp32 sums.
FORWARD, GRADIENT = 1e-5, 1e-4


def table(value):
    """Positions ``(1, N, C)`` of a map 7 x 10 or 5 x 6 as ``(1, C, H, W)``."""
    size = {70: (7, 10), 30: (5, 6)}[value.shape[1]]
    return value.mT.unflatten(2, size)


def rows(value):
    """``(1, heads, H, 1, a) -> (heads, a, H, 1)``, and the same for columns."""
    return value[0].permute(0, 3, 1, 2)


# For each class: what theirs is called here, and how its shape changes where it does.
FLATTEN = {
    'q.': 'qkv.', 'kv.': 'kv.', 'proj.': 'proj.', 'dwc.': 'lepe.conv.',
    'scale': ('scale', torch.flatten), 'positional_encoding': ('key_positions', table),
}  # fmt: skip
AGENT = {
    'q.': 'qkv.', 'kv.': 'kv.', 'proj.': 'proj.', 'dwc.': 'lepe.conv.',
    'an_bias': 'gather_map', 'na_bias': 'spread_map',
    'ah_bias': ('gather_rows', lambda v: v[0]), 'aw_bias': ('gather_columns', lambda v: v[0]),
    'ha_bias': ('spread_rows', rows), 'wa_bias': ('spread_columns', rows),
}  # fmt: skip
XCA = {'qkv.': 'qkv.', 'proj.': 'proj.', 'temperature': 'temperature'}
CASES = {
    'flatten': (dict(type='FLattenAttention'), FLATTEN),
    'flatten_eps': (dict(type='FLattenAttention'), FLATTEN),
    'agent': (dict(type='AgentAttention', num_landmarks=16), AGENT),
    # Weights for maps of 8 x 8 on one of 7 x 10.
    'agent_anysize': (
        dict(type='AgentAttention', num_landmarks=16, input_resolution=(8, 8)), AGENT,
    ),
    'xca': (dict(type='XCAttention'), XCA),
}  # fmt: skip


def converted(weights, names):
    state = {}
    for theirs, value in weights.items():
        start = max((name for name in names if theirs.startswith(name)), key=len)
        ours, change = names[start], None
        if isinstance(ours, tuple):
            ours, change = ours
        state[ours + theirs[len(start) :]] = change(value) if change else value
    return state


@pytest.mark.parametrize('name', CASES)
def test_attention_gives_the_authors_output_and_gradient(name):
    cfg, names = CASES[name]
    with np.load(GOLDEN / 'attentions' / f'{name}.npz') as content:
        golden = {key: torch.from_numpy(np.asarray(content[key])) for key in content.files}
    hw_shape = (int(golden['in:H']), int(golden['in:W']))
    x = golden['in:x'].requires_grad_()
    sizes = dict(embed_dims=x.shape[2], num_heads=int(golden['in:num_heads']))
    attention = MODELS.build(dict(dict(input_resolution=hw_shape), **cfg, **sizes))
    weights = {k[len('param:') :]: v for k, v in golden.items() if k.startswith('param:')}
    attention.load_state_dict(converted(weights, names))
    out = attention(x, hw_shape)
    out.backward(golden['in:grad_y'])
    assert_close(out, golden['out:y'], FORWARD)
    assert_close(x.grad, golden['out:grad_x'], GRADIENT)


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


def test_agents_of_a_checkpoint_may_be_fewer():
    few, many = (
        MODELS.build(
            dict(type='AgentAttention', embed_dims=16, num_heads=2, input_resolution=(8, 8),
                 num_landmarks=count)
        )
        for count in (9, 36)
    )  # fmt: skip
    for table_name in ('gather_map', 'gather_rows', 'spread_columns'):
        value = getattr(few, table_name)
        larger = many.resize_weight(table_name, value)
        assert larger.shape == getattr(many, table_name).shape
        # An average over the square of agents is hardly changed by more of them.
        torch.testing.assert_close(larger.mean(1), value.mean(1), atol=0.02, rtol=0)
        back = few.resize_weight(table_name, larger)
        torch.testing.assert_close(back, value, atol=0.05, rtol=0)


def test_channels_of_xca_mix_alike_in_every_token():
    attention = MODELS.build(
        dict(type='XCAttention', embed_dims=16, num_heads=2, input_resolution=(3, 4))
    ).double()
    x = torch.randn(1, 12, 16, dtype=torch.float64)
    order = torch.randperm(12)
    torch.testing.assert_close(
        attention(x, (3, 4))[:, order], attention(x[:, order], (3, 4)), atol=1e-12, rtol=0
    )
