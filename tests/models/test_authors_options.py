"""Options of the authors' code beside its defaults: what their files of values do not show."""

import pytest
import torch
from conftest import quiet_init
from mmengine.registry import MODELS
from test_backbones import build as build_backbone

from mmlaplace.analysis.recording import Mixed, attention_matrix

DOUBLE = dict(atol=1e-10, rtol=1e-10)  # two orders of the same fp64 sums


def build(name, embed_dims=16, num_heads=2, input_resolution=(4, 4), **options):
    sizes = dict(embed_dims=embed_dims, num_heads=num_heads, input_resolution=input_resolution)
    attention = MODELS.build(dict(options, type=name, **sizes))
    quiet_init(attention)
    return attention.eval().double()


def tokens(*hw_shape, channels=16):
    return torch.randn(2, hw_shape[0] * hw_shape[1], channels, dtype=torch.float64)


@pytest.mark.parametrize(('name', 'options', 'out'), [
    ('LinformerAttention', dict(head_dims=6), 16),
    ('LinformerAttention', dict(head_dims=12, one_kv_head=True, share_kv=True), 16),
    ('EfficientLinearAttention', dict(value_dims=24), 16),
    ('EfficientLinearAttention', dict(key_dims=8, value_dims=24, sr_ratio=2, gate=True), 16),
    ('EfficientLinearAttention', dict(key_dims=8, qkv='q_kv', key_positions=True), 16),
    ('EfficientLinearAttention', dict(key_dims=24, value_dims=8, qkv='shared_qk'), 16),
    ('EfficientLinearAttention', dict(key_dims=8, qkv='qk', proj=False), 16),
    ('LiteMLA', dict(head_dims=4, num_heads=3), 16),
    ('LiteMLA', dict(out_dims=10, norm_cfg=dict(type=torch.nn.Identity)), 10),
    ('NystromformerAttention', dict(out_dims=24, num_landmarks=4, value_shortcut=True), 24),
    ('AdditiveAttention', dict(out_dims=10, expansion=3), 10),
])  # fmt: skip
def test_widths_of_its_own_run_on_any_map_with_gradients(name, options, out):
    attention = build(name, **options)
    for hw_shape in [(4, 4), (5, 3), (1, 1), (1, 7)]:
        x = tokens(*hw_shape).requires_grad_()
        y = attention(x, hw_shape)
        assert y.shape == (*x.shape[:2], out)
        assert attention(x[:0], hw_shape).shape == (0, *y.shape[1:])
        grads = torch.autograd.grad(y.square().sum(), [x, *attention.parameters()])
        assert all(grad.isfinite().all() for grad in grads)
    alone = torch.cat([attention(image[None], hw_shape) for image in x])
    torch.testing.assert_close(y, alone, **DOUBLE)


@pytest.mark.parametrize(('name', 'options', 'message'), [
    ('EfficientLinearAttention', dict(key_dims=9), r'key_dims \(9\).*num_heads \(2\)'),
    ('EfficientLinearAttention', dict(value_dims=0), r'value_dims \(0\) must be positive'),
    ('EfficientLinearAttention', dict(value_dims=8, qkv='qk'), "qkv='qk' .* 16 .* have 8"),
    ('EfficientLinearAttention', dict(value_dims=8, proj=False), 'proj=False .* 8 .* 16'),
    ('LinformerAttention', dict(one_kv_head=True, gate=True), 'one_kv_head=True.*gate=True'),
    ('LinformerAttention', dict(head_dims=0), r'key_dims \(0\) must be positive'),
    ('LiteMLA', dict(head_dims=0), 'head_dims must be .* at least 1, got 0'),
    ('LiteMLA', dict(head_dims=4, num_heads=0), 'num_heads must be .* at least 1, got 0'),
    ('LiteMLA', dict(out_dims=2.0), 'out_dims must be .* at least 1, got 2.0'),
    ('AdditiveAttention', dict(out_dims=0), 'out_dims must be .* at least 1, got 0'),
    ('NystromformerAttention', dict(out_dims=9), r'key_dims \(9\).*num_heads \(2\)'),
    ('SkyformerAttention', dict(accumulation=0), 'accumulation must be .* got 0'),
    ('SkyformerAttention', dict(accumulation=2), "landmark_method='random' or accumulation=1"),
    ('AgentAttention', dict(agent_shape=(4, 0)), r'two positive integers.*got \(4, 0\)'),
    ('AgentAttention', dict(agent_shape=5), 'agent_shape must be two .* got 5'),
])  # fmt: skip
def test_what_cannot_be_is_quoted(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, **options)


def test_a_backbone_refuses_outputs_that_its_shortcuts_cannot_take():
    with pytest.raises(ValueError, match='attn_cfg has out_dims=8, which the backbone sets itself'):
        build_backbone('PVT', attn_cfg=dict(type='NystromformerAttention', out_dims=8))


def test_heads_of_linformer_share_keys_values_and_what_is_learned_of_them():
    one, own = (build('LinformerAttention', one_kv_head=flag) for flag in (True, False))
    query, *of_one = one.qkv.weight.split([16, 8, 8])
    state = dict(one.state_dict())
    state['qkv.weight'] = torch.cat([query, *(part.repeat(2, 1) for part in of_one)])
    bias = one.qkv.bias.split([16, 8, 8])
    state['qkv.bias'] = torch.cat([bias[0], *(part.repeat(2) for part in bias[1:])])
    own.load_state_dict(state)
    x = tokens(3, 5)
    torch.testing.assert_close(one(x, (3, 5)), own(x, (3, 5)), **DOUBLE)
    # A map of the weights can be drawn of every head.
    q, k, v = one.heads(one.project(x, (3, 5)), (3, 5))
    mixed = Mixed(0, 0, one, q, k, v, (3, 5), {}, (3, 5), one)
    weights = attention_matrix(mixed)
    torch.testing.assert_close(weights @ v[0], one.mix(q, k, v, (3, 5))[0], **DOUBLE)


@pytest.mark.parametrize(
    ('count', 'bucket_size', 'num_hashes'),
    [(30, 4, 3), (32, 4, 2), (33, 16, 1), (24, 4, 1), (9, 1, 2), (40, 64, 2)],
)
def test_both_forms_of_reformer_without_duplicates_are_one_function(count, bucket_size, num_hashes):
    sizes = dict(bucket_size=bucket_size, num_hashes=num_hashes, duplicates=False)
    chunks, pairs = (build('ReformerAttention', form=form, **sizes) for form in ('chunks', 'pairs'))
    q, v, grad = torch.randn(3, 2, 2, count, 8, dtype=torch.float64)
    inputs = [q.requires_grad_(), v.requires_grad_()]
    outs = [attention.mix(q, q, v, (1, count)) for attention in (chunks, pairs)]
    # Differences of logits are about 20, which costs a digit.
    torch.testing.assert_close(*outs, atol=1e-9, rtol=1e-9)
    grads = [torch.autograd.grad(out, inputs, grad) for out in outs]
    torch.testing.assert_close(*grads, atol=1e-9, rtol=1e-9)


def test_a_pair_that_meets_in_every_round_counts_once():
    """Where each round puts all tokens side by side, it is full attention."""
    options = dict(bucket_size=6, num_hashes=1)
    once, often = (build('ReformerAttention', duplicates=d, **options) for d in (False, True))
    q, v = torch.randn(2, 1, 2, 12, 8, dtype=torch.float64)
    torch.testing.assert_close(once.mix(q, q, v, (3, 4)), often.mix(q, q, v, (3, 4)), **DOUBLE)
    some = dict(bucket_size=2, num_hashes=4)
    once, often = (build('ReformerAttention', duplicates=d, **some) for d in (False, True))
    assert (once.mix(q, q, v, (3, 4)) - often.mix(q, q, v, (3, 4))).abs().max() > 0.01


def test_sets_of_skyformers_landmarks_that_are_the_same_are_one_with_larger_kernels():
    options = dict(num_landmarks=3, landmark_method='random', num_iters=60)
    one = build('SkyformerAttention', ridge=0.1, **options)
    two = build('SkyformerAttention', ridge=0.4, accumulation=2, **options)
    index = one.draw(2, 12, 12)
    one.draw = lambda *sizes: index
    two.draw = lambda *sizes: index.repeat(1, 2)
    q, k, v = torch.randn(3, 2, 2, 12, 8, dtype=torch.float64)
    # Both kernels of the queries and the keys double, and W is four times as large.
    torch.testing.assert_close(two.mix(q, k, v, (3, 4)), one.mix(q, k, v, (3, 4)), **DOUBLE)


def test_landmarks_of_all_sets_are_of_the_queries_first():
    attention = build('SkyformerAttention', 16, 2, landmark_method='random', num_landmarks=3,
                      accumulation=2)  # fmt: skip
    index = attention.draw(2, 12, 5)
    assert index.shape == (2, 12)
    assert index[:, :6].max() < 12 <= index[:, 6:].min() and index.max() < 17


def test_a_grid_of_agents_is_a_square_one_where_it_is_square():
    square = build('AgentAttention', num_landmarks=9)
    grid = build('AgentAttention', num_landmarks=9, agent_shape=(3, 3))
    grid.load_state_dict(square.state_dict())
    x = tokens(5, 6)
    torch.testing.assert_close(grid(x, (5, 6)), square(x, (5, 6)), **DOUBLE)
    q = torch.randn(1, 2, 30, 8, dtype=torch.float64)
    wide = build('AgentAttention', num_landmarks=9, agent_shape=(2, 3))
    cells = q.unflatten(2, (5, 6)).unflatten(3, (3, 2))[:, :, :3].mean((2, 4))  # rows 0 to 2
    torch.testing.assert_close(wide.landmarks(q, (5, 6))[:, :, :3], cells, **DOUBLE)
    assert wide.landmarks(q, (1, 30)).shape[2] == wide.landmarks(q, (30, 1)).shape[2] == 6
