"""What the authors' files do not show of the classic attentions."""

import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS

from mmlaplace.models.layers import elu_plus_one
from mmlaplace.models.layers.taylor import taylor_features, taylor_width

CLASSIC = {
    'LinearAttention': {},
    'EfficientLinearAttention': {},
    'PerformerAttention': {},
    'LinformerAttention': dict(num_landmarks=16),
    'NystromformerAttention': dict(num_landmarks=16),
    'CosformerAttention': {},
    'HydraAttention': {},
    'SkyformerAttention': dict(num_landmarks=16),
    'HedgehogAttention': {},
    'CastlingAttention': {},
    'TaylorShiftAttention': {},
    'BasedAttention': {},
    'SLABAttention': {},
    'FlowAttention': {},
    'ReformerAttention': dict(bucket_size=8, num_hashes=2),
    'KernelAttention': dict(normalization='rows'),
}


def build(name, embed_dims=16, num_heads=2, input_resolution=(4, 4), **options):
    sizes = dict(embed_dims=embed_dims, num_heads=num_heads, input_resolution=input_resolution)
    return MODELS.build(dict(options, type=name, **sizes)).eval()


@pytest.mark.parametrize('name', CLASSIC)
def test_tokens_of_zeros_have_finite_outputs_and_gradients(name):
    attention = build(name, **CLASSIC[name])
    q, k, v = (torch.zeros(1, 2, 30, 8, requires_grad=True) for _ in range(3))
    out = attention.mix(q, q if name == 'ReformerAttention' else k, v, (5, 6))
    out.sum().backward()
    assert (out == 0).all()
    for value in (q, k, v):
        assert value.grad is None or value.grad.isfinite().all()


@pytest.mark.parametrize('name', CLASSIC)
def test_halves_of_a_large_map_are_summed_in_fp32(name):
    """Sums over 4096 tokens of 64 channels overflow fp16 in most of them."""
    if name == 'LinformerAttention' and not hasattr(torch.amp, 'is_autocast_available'):
        pytest.skip('before torch 2.4, CPUs multiply no matrices of float16')
    attention = build(name, 64, 1, (64, 64), **CLASSIC[name])
    q, k, v = (torch.randn(1, 1, 4096, 64).half() for _ in range(3))
    k = q if name == 'ReformerAttention' else k
    with torch.no_grad():
        out = attention.mix(q, k, v, (64, 64))
        exact = attention.mix(q.float(), k.float(), v.float(), (64, 64))
    assert out.dtype == torch.float16
    # One rounding of the output; Linformer's sums and softmax are of halves, a few roundings.
    allowed = 8 if name == 'LinformerAttention' else 1
    error = (out.float() - exact).abs().max()
    assert error <= allowed * torch.finfo(torch.float16).eps * exact.abs().max()


def heads(*shape, scale=1.0):
    return [scale * torch.randn(*shape, dtype=torch.float64) for _ in range(3)]


def check(actual, expected):
    # fp64: two orders of the same sums.
    torch.testing.assert_close(actual, expected, atol=1e-9, rtol=1e-9)


def test_elu_features_do_not_vanish():
    features = elu_plus_one(torch.tensor([-60.0, -20.0, -1.0, 0.0, 2.0]))
    assert (features > 0).all()
    # elu(x) + 1 rounds twice near 1.
    torch.testing.assert_close(features[2:], F.elu(torch.tensor([-1.0, 0.0, 2.0])) + 1)


def test_cosformer_on_a_map_equals_its_formula():
    attention = build('CosformerAttention').double()
    q, k, v = heads(1, 2, 12, 8)
    row, column = (t / size for t, size in ((torch.arange(12) // 4, 3), (torch.arange(12) % 4, 4)))
    near = ((t[:, None] - t).double().mul(torch.pi / 2).cos() for t in (row, column))
    weights = q.relu() @ k.relu().mT * next(near) * next(near)
    expected = weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    # Angles of the formula are fp32.
    torch.testing.assert_close(attention.mix(q, k, v, (3, 4)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(('name', 'options'), [
    ('TaylorShiftAttention', {}),
    ('TaylorShiftAttention', dict(output_normalized=True)),
    ('BasedAttention', {}),
    ('BasedAttention', dict(eps=1.0)),
])  # fmt: skip
def test_both_forms_of_a_taylor_attention_are_one_function(name, options):
    q, k, v = heads(2, 2, 30, 4)
    direct, linear, auto = (
        build(name, 8, form=form, **options).double() for form in ('direct', 'linear', 'auto')
    )
    expected = direct.mix(q, k, v, (5, 6))
    check(linear.mix(q, k, v, (5, 6)), expected)
    assert torch.equal(auto.mix(q, k, v, (5, 6)), linear.mix(q, k, v, (5, 6)))  # 30 > 17 features
    few = [x[:, :, :16] for x in (q, k, v)]
    assert torch.equal(auto.mix(*few, (4, 4)), direct.mix(*few, (4, 4)))


def test_a_normalised_taylor_output_is_larger_by_the_root_of_tokens_over_channels_of_a_head():
    q, k, v = heads(2, 2, 12, 8)
    plain, larger = (build('TaylorShiftAttention', output_normalized=on) for on in (False, True))
    check(larger.mix(q, k, v, (3, 4)), plain.mix(q, k, v, (3, 4)) * (12 / 8) ** 0.5)


@pytest.mark.parametrize('channels', [1, 2, 7, 16])
def test_products_of_taylor_features_are_the_series(channels):
    x, y = torch.randn(2, 3, channels).double(), torch.randn(2, 5, channels).double()
    features = taylor_features(x)
    scores = x @ y.mT
    check(features @ taylor_features(y).mT, 1 + scores + scores.square() / 2)
    assert features.shape == (2, 3, taylor_width(channels))
    assert taylor_width(channels) <= 1 + 2 * channels + channels**2 / 2


def test_hydra_gives_the_same_on_a_map_of_repeated_tokens():
    x = torch.randn(1, 16, 16)
    scaled, papers = build('HydraAttention'), build('HydraAttention', scaled=False)
    papers.load_state_dict(scaled.state_dict())
    repeated = x.repeat_interleave(4, 1)
    small, large = (f.mix(*[f.split_heads(t)] * 3, size) for f, t, size in (
        (scaled, x, (4, 4)), (scaled, repeated, (8, 8))
    ))  # fmt: skip
    # Sums of four times the terms, in fp32.
    torch.testing.assert_close(large[:, :, ::4], small, atol=1e-5, rtol=1e-5)
    grown = papers.mix(*[papers.split_heads(repeated)] * 3, (8, 8))
    torch.testing.assert_close(grown[:, :, ::4], 4 * small, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('sr_ratio', [1, 2, 3])
def test_hydra_is_the_papers_at_the_size_of_training(sr_ratio):
    scaled, papers = (build('HydraAttention', sr_ratio=sr_ratio, scaled=s) for s in (True, False))
    papers.load_state_dict(scaled.state_dict())
    x = torch.randn(2, 16, 16)
    assert torch.equal(scaled(x, (4, 4)), papers(x, (4, 4)))


def test_weights_of_a_kernel_are_normalised_as_asked():
    q, k, v = heads(1, 2, 12, 8)
    kernel = torch.exp(-(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) / 2 / 8**0.5)
    rows, columns = kernel.sum(-1, keepdim=True), kernel.sum(-2, keepdim=True)
    for name, weights in (
        ('none', kernel), ('rows', kernel / rows), ('symmetric', kernel / (rows * columns).sqrt()),
    ):  # fmt: skip
        attention = build('KernelAttention', normalization=name).double()
        check(attention.mix(q, k, v, (3, 4)), weights @ v)


def test_whitened_kernel_is_what_laplacian_attention_approximates():
    options = dict(rope=False, lepe_kernel=0, ridge=0.0, solver='cholesky', num_landmarks=16)
    nystrom = build('LaplacianAttention', **options).double()  # each token is a landmark
    exact = build('KernelAttention', kernel='laplacian', normalization='whitened').double()
    q, k, v = heads(1, 2, 12, 8)
    # The inverse of the kernel of the keys, in fp64.
    torch.testing.assert_close(
        exact.mix(q, k, v, (3, 4)), nystrom.mix(q, k, v, (3, 4)), atol=1e-7, rtol=1e-7
    )


def test_skyformer_with_all_landmarks_is_the_exact_kernel():
    options = dict(num_landmarks=16, ridge=1e-9, num_iters=60)
    nystrom, exact = build('SkyformerAttention', **options), build('KernelAttention')
    q, k, v = heads(1, 2, 12, 8)
    # The ridge.
    torch.testing.assert_close(
        nystrom.mix(q, k, v, (3, 4)), exact.mix(q, k, v, (3, 4)), atol=1e-6, rtol=1e-6
    )


def test_random_landmarks_of_skyformer_differ_by_image_in_training_alone():
    attention = build('SkyformerAttention', landmark_method='random', num_landmarks=8)
    drawn = attention.draw(3, 50, 40)
    assert torch.equal(drawn, attention.draw(3, 50, 40)) and (drawn[0] == drawn[1]).all()
    drawn = attention.train().draw(3, 50, 40)
    assert not torch.equal(drawn[0], drawn[1])
    assert (drawn[:, :8] < 50).all() and (drawn[:, 8:] >= 50).all() and (drawn < 90).all()


def test_nystromformer_with_all_landmarks_is_softmax_attention():
    q, k, v = heads(1, 2, 12, 8)
    expected = F.scaled_dot_product_attention(q, k, v)
    for options in (dict(num_landmarks=16), dict(num_landmarks=12, landmark_method='runs')):
        check(build('NystromformerAttention', **options).mix(q, k, v, (3, 4)), expected)
    # Nine landmarks do not stand for all tokens, however good the inverse.
    mixed = build('NystromformerAttention', num_landmarks=9, num_iters=40)
    assert not torch.allclose(mixed.mix(q, k, v, (3, 4)), expected)


def test_runs_of_tokens_are_longer_at_the_end():
    attention = build('NystromformerAttention', num_landmarks=4, landmark_method='runs')
    x = torch.arange(11.0).view(1, 1, 11, 1)
    assert attention.landmarks(x, (1, 11)).flatten().tolist() == [0.5, 3.0, 6.0, 9.0]


def test_sums_of_linformer_are_alike_in_a_larger_map():
    attention = build('LinformerAttention', num_landmarks=3)
    torch.nn.init.constant_(attention.key_sums, 0.25)
    torch.nn.init.constant_(attention.value_sums, 0.5)
    q, k, v = (torch.randn(1, 2, 16, 8) for _ in range(3))
    large = [x.repeat_interleave(4, 2) for x in (q, k, v)]
    # Sums of four times the terms, in fp32.
    torch.testing.assert_close(
        attention.mix(*large, (8, 8))[:, :, ::4], attention.mix(q, k, v, (4, 4)),
        atol=1e-4, rtol=1e-4,
    )  # fmt: skip
    table = torch.full((1, 3, 8, 8), 0.25)
    torch.testing.assert_close(attention.resize_weight('key_sums', table), 4 * table[..., ::2, ::2])


def test_linformer_takes_the_first_rows_as_its_authors_do():
    attention = build('LinformerAttention', num_landmarks=3, resize=False).double()
    q, k, v = heads(1, 2, 10, 8)
    keys, values = (t[0].flatten(1)[:, :10] for t in (attention.key_sums, attention.value_sums))
    expected = (q @ (keys @ k).mT / 8**0.5).softmax(-1) @ (values @ v)
    check(attention.mix(q, k, v, (2, 5)), expected)
    with pytest.raises(ValueError, match=r'16 tokens at most.*got 20 of a map \(4, 5\)'):
        attention.mix(*heads(1, 2, 20, 8), (4, 5))


def test_values_of_linformer_may_be_its_keys():
    attention = build('LinformerAttention', num_landmarks=3, share_kv=True)
    x = torch.randn(1, 16, 16)
    parts = attention.project(x, (4, 4))
    assert attention.value_sums is None and torch.equal(parts.k, parts.v)
    assert attention.qkv.out_features == 32


def test_features_of_performer_estimate_softmax():
    attention = build('PerformerAttention', num_features=8192, eps=1e-9).double()
    q, k, v = heads(1, 2, 12, 8, scale=0.5)
    expected = F.scaled_dot_product_attention(q, k, v)
    # 4 to 7 % in four draws; the mean of the values, which an attention without weights gives, is
    # 20 to 30 % off.
    assert (attention.mix(q, k, v, (3, 4)) - expected).norm() < 0.1 * expected.norm()
    before = attention.projection_matrix.clone()
    attention.redraw()
    assert not torch.allclose(before, attention.projection_matrix)


def test_rows_of_performer_are_orthogonal_in_blocks():
    attention = build('PerformerAttention', num_features=12, equal_norms=True)
    for block in attention.projection_matrix.split(8):
        # Products of fp32 rows of norm 8^(1/2).
        torch.testing.assert_close(block @ block.mT, 8 * torch.eye(len(block)), atol=1e-5, rtol=0)
    norms = build('PerformerAttention').projection_matrix.norm(dim=1)
    assert norms.std() > 0.1


@pytest.mark.parametrize(('name', 'options'), [
    ('SoftmaxAttention', {}),
    ('SoftmaxAttention', dict(relative_bias=True)),
    ('KernelAttention', {}),
    ('KernelAttention', dict(normalization='whitened')),
])  # fmt: skip
def test_dropout_of_weights_zeroes_some_and_scales_the_others(name, options):
    dropping = build(name, attn_drop=0.25, **options)
    q, k = torch.randn(2, 1, 2, 30, 8)
    v = torch.eye(30).expand(1, 2, 30, 30)  # mixed, it is the weights
    exact = dropping.mix(q, k, v, (5, 6))
    plain = build(name, **options)
    plain.load_state_dict(dropping.state_dict())
    torch.testing.assert_close(exact, plain.train().mix(q, k, v, (5, 6)))
    dropping.attn_drop.train()  # alone, as for Monte Carlo dropout
    dropped = dropping.mix(q, k, v, (5, 6))
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], exact[kept] / 0.75)
    # Of 1,800 weights, so the share has a standard deviation of 0.01.
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.05)
    assert not torch.equal(dropped, dropping.mix(q, k, v, (5, 6)))


def test_performers_features_are_drawn_under_any_default_dtype():
    torch.set_default_dtype(torch.bfloat16)
    try:
        attention = build('PerformerAttention', num_features=8, equal_norms=True)
    finally:
        torch.set_default_dtype(torch.float32)
    matrix = attention.projection_matrix
    assert matrix.dtype == torch.bfloat16
    # Orthogonal rows of norm sqrt(8), of which each element is rounded by 2^-9 of itself.
    torch.testing.assert_close(
        matrix.float() @ matrix.float().T, 8 * torch.eye(8), atol=0.1, rtol=0
    )


def full(q, v):
    """Attention of Reformer among all tokens."""
    scores = q @ F.normalize(q, dim=-1).mT / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.eye(q.shape[2], dtype=bool), -5e4)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize(('tokens', 'bucket_size'), [(13, 13), (13, 7), (13, 12), (14, 7)])
def test_reformer_is_full_attention_where_two_chunks_hold_all_tokens(tokens, bucket_size):
    attention = build('ReformerAttention', bucket_size=bucket_size, num_hashes=1).double()
    q, grad, v = heads(2, 2, tokens, 8)
    inputs = [q.requires_grad_(), v.requires_grad_()]
    out, expected = attention.mix(q, q, v, (1, tokens)), full(q, v)
    check(out, expected)
    for one, other in zip(*(torch.autograd.grad(y, inputs, grad) for y in (out, expected))):
        check(one, other)


@pytest.mark.parametrize(
    ('tokens', 'bucket_size', 'num_hashes'),
    [(30, 4, 3), (32, 4, 2), (33, 16, 1), (9, 1, 2), (40, 64, 2)],
)
def test_both_forms_of_reformer_are_one_function(tokens, bucket_size, num_hashes):
    sizes = dict(bucket_size=bucket_size, num_hashes=num_hashes)
    chunks, pairs, auto = (
        build('ReformerAttention', 8, form=form, **sizes).double()
        for form in ('chunks', 'pairs', 'auto')
    )
    q, grad, v = heads(2, 2, tokens, 4)
    inputs = [q.requires_grad_(), v.requires_grad_()]
    out, expected = (attention.mix(q, q, v, (1, tokens)) for attention in (pairs, chunks))
    check(out, expected)
    for one, other in zip(*(torch.autograd.grad(y, inputs, grad) for y in (out, expected))):
        check(one, other)
    cheaper = out if tokens <= 2 * bucket_size * num_hashes else expected
    assert torch.equal(auto.mix(q, q, v, (1, tokens)), cheaper)


def test_tokens_of_reformer_are_mixed_by_weights_that_sum_to_one():
    attention = build('ReformerAttention', bucket_size=4, num_hashes=3).double()
    q, _, v = heads(3, 2, 30, 8)
    check(attention.mix(q, q, torch.ones_like(v), (5, 6)), torch.ones_like(v))
    alone = torch.cat([attention.mix(a[None], a[None], b[None], (5, 6)) for a, b in zip(q, v)])
    check(attention.mix(q, q, v, (5, 6)), alone)
    attention.train()
    assert not torch.allclose(attention.mix(q, q, v, (5, 6)), attention.mix(q, q, v, (5, 6)))


@pytest.mark.parametrize(('name', 'options', 'said'), [
    ('PerformerAttention', dict(features='elu'), r"\('softmax', 'relu'\), got 'elu'"),
    ('PerformerAttention', dict(num_features=0), r'num_features \(0\)'),
    ('PerformerAttention', dict(eps=0.0), r'eps \(0.0\)'),
    ('LinformerAttention', dict(num_landmarks=0), 'num_landmarks .* got 0'),
    ('LinformerAttention', dict(share_kv=True, gate=True), 'gate=True'),
    ('LinformerAttention', dict(share_kv=True, qkv='q_kv'), "qkv='q_kv'"),
    ('NystromformerAttention', dict(landmark_method='conv'), r"\('pool', 'runs'\), got 'conv'"),
    ('NystromformerAttention', dict(num_landmarks=0), 'num_landmarks .* got 0'),
    ('NystromformerAttention', dict(num_iters=0), 'num_iters .* got 0'),
    ('NystromformerAttention', dict(conv_kernel_size=4), 'conv_kernel_size .* got 4'),
    ('NystromformerAttention', dict(newton_start_per='image'), "'batch'.*got 'image'"),
    ('SkyformerAttention', dict(landmark_method='runs'), r"\('pool', 'random'\), got 'runs'"),
    ('SkyformerAttention', dict(bandwidth=0.0), r'bandwidth \(0.0\)'),
    ('SkyformerAttention', dict(num_landmarks=0), 'num_landmarks .* got 0'),
    ('CastlingAttention', dict(conv_kernel_size=-3), 'conv_kernel_size .* got -3'),
    ('CosformerAttention', dict(positions='rows'), r"\('map', 'flattened'\), got 'rows'"),
    ('HedgehogAttention', dict(form='exp'), r"\('per_sign', 'joint'\), got 'exp'"),
    ('HedgehogAttention', dict(feature_dims=4, skip_connection=True), '8 channels, got 4'),
    ('HedgehogAttention', dict(feature_dims=0), 'feature_dims .* got 0'),
    ('HedgehogAttention', dict(form='joint', skip_connection=True), "got form='joint'"),
    ('TaylorShiftAttention', dict(form='exact'), "'direct'.*, got 'exact'"),
    ('BasedAttention', dict(form='exact'), "'direct'.*, got 'exact'"),
    ('KernelAttention', dict(kernel='cauchy'), r"\('gaussian', 'laplacian'\), got 'cauchy'"),
    ('KernelAttention', dict(normalization='columns'), "'whitened'.*, got 'columns'"),
    ('KernelAttention', dict(bandwidth=-1.0), r'bandwidth \(-1.0\)'),
    ('ReformerAttention', dict(bucket_size=0), 'bucket_size .* got 0'),
    ('ReformerAttention', dict(num_hashes=1.5), 'num_hashes .* got 1.5'),
    ('ReformerAttention', dict(form='direct'), "'pairs'.*, got 'direct'"),
])  # fmt: skip
def test_options_out_of_range_are_quoted(name, options, said):
    with pytest.raises(ValueError, match=said):
        build(name, **options)
