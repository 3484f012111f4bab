"""What the authors' files do not show of the classic attentions."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import OnMap, doubles, make_attention

from mmlaplace.models.layers import elu_plus_one, pairs
from mmlaplace.ops import kernel_attention, use_backend
from mmlaplace.ops._native import computes

CLOSE = dict(atol=1e-9, rtol=1e-9)  # fp64: two orders of the same sums


def build(name, hw_shape=(4, 4), **options):
    return make_attention(name, hw_shape, init=False, **options)


def check(actual, expected, **tolerance):
    torch.testing.assert_close(actual, expected, **{**CLOSE, **tolerance})


def test_elu_plus_one_keeps_what_is_small():
    x = torch.tensor([-60.0, -30.0, -12.0, -0.5, 0.0, 3.0], requires_grad=True)
    exact = torch.where(x > 0, x.double() + 1, x.double().clamp(max=0).exp())
    out = elu_plus_one(x)
    torch.testing.assert_close(out.double(), exact, atol=0, rtol=1e-6)  # roundings of fp32
    (slope,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(slope, torch.where(x > 0, 1.0, x.exp()).detach())


def test_cosformer_on_a_map_equals_its_formula():
    q, k, v = doubles(3, 1, 2, 12, 8)
    row, column = (t / size for t, size in ((torch.arange(12) // 4, 3), (torch.arange(12) % 4, 4)))
    near = ((t[:, None] - t).double().mul(torch.pi / 2).cos() for t in (row, column))
    weights = q.relu() @ k.relu().mT * next(near) * next(near)
    expected = weights @ v / weights.sum(-1, keepdim=True).clamp(min=1e-6)
    # Angles of the formula are fp32.
    check(build('CosformerAttention').mix(q, k, v, (3, 4)), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('TaylorShiftAttention', dict(output_normalized=True)),
        ('BasedAttention', dict(eps=1.0)),  # large enough to show
    ],
)
def test_both_forms_of_a_taylor_attention_are_one_function(name, options):
    q, k, v = doubles(3, 2, 2, 30, 4)
    direct, linear, auto = (
        build(name, embed_dims=8, form=form, **options) for form in ('direct', 'linear', 'auto')
    )
    out = linear.mix(q, k, v, (5, 6))
    check(out, direct.mix(q, k, v, (5, 6)))
    assert torch.equal(auto.mix(q, k, v, (5, 6)), out)  # 30 > 17 features
    few = [x[:, :, :16] for x in (q, k, v)]
    assert torch.equal(auto.mix(*few, (4, 4)), direct.mix(*few, (4, 4)))
    if name == 'TaylorShiftAttention':  # larger by the root of tokens over channels of a head
        check(out, build(name, embed_dims=8).mix(q, k, v, (5, 6)) * (30 / 4) ** 0.5)


@pytest.mark.parametrize('sr_ratio', [1, 2, 3])
def test_hydra_is_the_papers_at_the_size_of_training(sr_ratio):
    scaled, papers = (build('HydraAttention', sr_ratio=sr_ratio, scaled=s) for s in (True, False))
    papers.load_state_dict(scaled.state_dict())
    x = doubles(2, 16, 16)
    assert torch.equal(scaled(x, (4, 4)), papers(x, (4, 4)))


def test_weights_of_a_kernel_are_normalised_as_asked():
    q, k, v = doubles(3, 1, 2, 12, 8)
    kernel = torch.exp(-(q[..., :, None, :] - k[..., None, :, :]).square().sum(-1) / 2 / 8**0.5)
    rows, columns = kernel.sum(-1, keepdim=True), kernel.sum(-2, keepdim=True)
    for name, weights in (
        ('none', kernel),
        ('rows', kernel / rows),
        ('symmetric', kernel / (rows * columns).sqrt()),
    ):
        check(build('KernelAttention', normalization=name).mix(q, k, v, (3, 4)), weights @ v)


@pytest.mark.parametrize('kernel', ['gaussian', 'laplacian'])
def test_rows_of_a_kernel_are_one_op_with_its_bandwidth(kernel):
    q, k, v = doubles(3, 1, 2, 12, 8)
    attention = build('KernelAttention', kernel=kernel, bandwidth=1.5, normalization='rows')
    check(attention.mix(q, k, v, (3, 4)), kernel_attention(q, k, v, 1.5, kernel=kernel))
    # With a dropout of weights, these are written out, and far tokens have weights too.
    attention.attn_drop.p = 1e-9
    attention.attn_drop.train()
    check(attention.mix(1e4 + q, k, v, (3, 4)), kernel_attention(1e4 + q, k, v, 1.5, kernel=kernel))


def test_rows_of_a_kernel_need_no_memory_for_pairs_where_the_op_is(monkeypatch):
    monkeypatch.setattr(pairs, 'MOST_BYTES', 1e3)
    q, k, v = doubles(3, 1, 2, 12, 8)
    attention = build('KernelAttention', kernel='laplacian', normalization='rows')
    if computes('kernel_attention', 'cpu'):
        attention.mix(q, k, v, (3, 4))
    with use_backend('reference'), pytest.raises(ValueError, match='a weight for each pair'):
        attention.mix(q, k, v, (3, 4))
    attention.attn_drop.p = 0.5
    attention.attn_drop.train()
    with pytest.raises(ValueError, match='a weight for each pair'):
        attention.mix(q, k, v, (3, 4))


def test_the_exact_kernel_in_windows_is_that_of_each_window():
    options = dict(type='KernelAttention', kernel='laplacian', normalization='rows')
    windows = build('WindowAttention', window_size=2, attn_cfg=options)
    x = doubles(1, 16, 16)
    out = windows(x, (4, 4)).view(4, 4, -1)
    corner = x.view(4, 4, -1)[2:, :2].reshape(1, 4, -1)
    check(out[2:, :2].reshape(1, 4, -1), windows.attn(corner, (2, 2)))


def test_with_a_landmark_for_each_token_it_is_the_exact_kernel():
    q, k, v = doubles(3, 1, 2, 12, 8)
    exact = build('KernelAttention', kernel='laplacian', normalization='whitened')
    options = dict(rope=False, lepe_kernel=0, ridge=0.0, solver='cholesky', num_landmarks=16)
    found = build('LaplacianAttention', **options).mix(q, k, v, (3, 4))
    check(found, exact.mix(q, k, v, (3, 4)), atol=1e-6, rtol=1e-6)  # of an inverse


def kernel_of(kernel, x, y, bandwidth):
    if kernel == 'laplacian':
        return torch.exp(-torch.cdist(x, y, p=1) / bandwidth)
    return torch.exp(-torch.cdist(x, y, p=2).square() / 2 / bandwidth**2)


@pytest.mark.parametrize(
    ('options', 'bandwidth'),
    [
        (dict(kernel='laplacian'), 4.0),
        (dict(kernel='laplacian', bandwidth=1.5), 1.5),
        (dict(), 8**0.25),
    ],
    ids=['laplacian', 'laplacian-1.5', 'gaussian'],
)
def test_skyformer_equals_its_formula(options, bandwidth):
    attention = build('SkyformerAttention', num_landmarks=4, num_iters=30, **options)
    q, k, v = doubles(3, 2, 2, 16, 8)
    maps = torch.cat([q, k], 1).mT.reshape(2, -1, 4, 4)  # channels of all heads, then (4, 4)
    pooled = F.avg_pool2d(maps, 2).reshape(2, 4, 8, 4).mT
    marks = torch.cat(pooled.chunk(2, dim=1), dim=2)  # (2, 2, 8, 8)
    kernel = partial(kernel_of, options.get('kernel', 'gaussian'), bandwidth=bandwidth)
    ridged = kernel(marks, marks) + 0.1 * torch.eye(8).double()
    # The inverse of the normalised matrix, between the roots of its sums, is that of the matrix.
    expected = kernel(q, marks) @ torch.linalg.inv(ridged) @ kernel(marks, k) @ v
    check(attention.mix(q, k, v, (4, 4)), expected)


def test_random_landmarks_of_skyformer_differ_by_image_in_training_alone():
    attention = build('SkyformerAttention', landmark_method='random', num_landmarks=8)
    q, k = torch.randn(3, 1, 50, 8), torch.randn(3, 1, 40, 8)
    drawn = attention.draw(q, k)
    assert torch.equal(drawn, attention.draw(q, k)) and (drawn[0] == drawn[1]).all()
    drawn = attention.train().draw(q, k)
    assert not torch.equal(drawn[0], drawn[1])
    assert (drawn[:, :8] < 50).all() and (drawn[:, 8:] >= 50).all() and (drawn < 90).all()


@pytest.mark.parametrize(
    'options',
    [
        dict(type='SkyformerAttention', num_landmarks=8),
        dict(type='SOFTAttention', num_landmarks=9),
    ],
    ids=lambda options: options['type'],
)
def test_graphs_have_the_random_landmarks_of_eval_mode(options):
    attention = build(options.pop('type'), landmark_method='random', **options).eval()
    model, x = OnMap(attention), doubles(2, 16, 6, 6)
    with torch.no_grad():
        check(torch.jit.trace(model, x, check_trace=False)(x), model(x))
        if hasattr(torch.export, 'export'):
            check(torch.export.export(model, (x,)).module()(x), model(x))
        check(torch.vmap(lambda one: model(one[None])[0])(x), model(x))


def test_nystromformer_with_all_landmarks_is_softmax_attention():
    q, k, v = doubles(3, 1, 2, 12, 8)
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
    for sums in (attention.key_sums, attention.value_sums):
        torch.nn.init.constant_(sums, 0.25)
    q, k, v = doubles(3, 1, 2, 16, 8)
    large = [x.repeat_interleave(4, 2) for x in (q, k, v)]
    check(attention.mix(*large, (8, 8))[:, :, ::4], attention.mix(q, k, v, (4, 4)))


def test_keys_that_are_values_have_positions_in_linformer():
    attention = build('LinformerAttention', num_landmarks=3, share_kv=True, key_positions=True)
    assert attention(doubles(2, 16, 16), (4, 4)).shape == (2, 16, 16)


def test_features_of_performer_estimate_softmax():
    attention = build('PerformerAttention', num_features=8192, eps=1e-9)
    q, k, v = 0.5 * doubles(3, 1, 2, 12, 8)
    expected = F.scaled_dot_product_attention(q, k, v)
    # 4 to 7 % in four draws; the mean of the values, which an attention without weights gives, is
    # 20 to 30 % off.
    assert (attention.mix(q, k, v, (3, 4)) - expected).norm() < 0.1 * expected.norm()
    before = attention.projection_matrix.clone()
    attention.redraw()
    assert not torch.allclose(before, attention.projection_matrix)
    attention = build('PerformerAttention', num_features=12, equal_norms=True)
    for block in attention.projection_matrix.split(8):  # orthogonal rows of the norm 8^(1/2)
        eye = torch.eye(len(block), dtype=block.dtype)
        torch.testing.assert_close(block @ block.mT, 8 * eye, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('SoftmaxAttention', {}),
        ('SoftmaxAttention', dict(relative_bias=True)),
        ('KernelAttention', {}),
        ('KernelAttention', dict(normalization='whitened')),
    ],
)
def test_dropout_of_weights_zeroes_some_and_scales_the_others(name, options):
    attention = build(name, attn_drop=0.25, **options)
    q, k = doubles(2, 1, 2, 30, 8)
    v = torch.eye(30).double().expand(1, 2, 30, 30)  # mixed, it is the weights
    exact = attention.mix(q, k, v, (5, 6))
    attention.attn_drop.train()  # alone, as for Monte Carlo dropout
    dropped, again = (attention.mix(q, k, v, (5, 6)) for _ in range(2))
    kept = dropped != 0
    check(dropped[kept], exact[kept] / 0.75, atol=1e-6)
    # Of 1,800 weights, so the share has a standard deviation of 0.01.
    assert kept.float().mean().item() == pytest.approx(0.75, abs=0.05)
    assert not torch.equal(dropped, again)


@pytest.mark.parametrize('duplicates', [True, False])
@pytest.mark.parametrize(
    ('tokens', 'bucket_size', 'num_hashes'), [(30, 4, 3), (33, 16, 1), (9, 1, 2), (40, 64, 2)]
)
def test_both_forms_of_reformer_are_one_function(tokens, bucket_size, num_hashes, duplicates):
    options = dict(bucket_size=bucket_size, num_hashes=num_hashes, duplicates=duplicates)
    chunks, pairs, auto = (
        build('ReformerAttention', embed_dims=8, form=form, **options)
        for form in ('chunks', 'pairs', 'auto')
    )
    q, grad, v = doubles(3, 2, 2, tokens, 4)
    inputs = [q.requires_grad_(), v.requires_grad_()]
    outs = [attention.mix(q, q, v, (1, tokens)) for attention in (pairs, chunks)]
    check(*outs)
    check(*(torch.autograd.grad(out, inputs, grad) for out in outs))
    cheaper = outs[tokens > 2 * bucket_size * num_hashes]
    assert torch.equal(auto.mix(q, q, v, (1, tokens)), cheaper)


@pytest.mark.parametrize(('features', 'floor'), [('softmax', 1e-4), ('relu', 1e-3)])
def test_the_floor_of_performers_features_is_that_of_the_authors(features, floor):
    assert build('PerformerAttention', features=features).eps == floor
