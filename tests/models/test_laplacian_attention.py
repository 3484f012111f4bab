"""The linear-time whitening is the dense N x N formula; options and bad input."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from mmlaplace.models import LaplacianAttention

OPTIONS = dict(
    kernel=('laplacian', 'gaussian'),
    whitening=('normalized', 'literal', 'none'),
    landmark_cfg=(dict(num_landmarks=4), dict(pool_ratio=2), dict(pool_ratio=3)),
    solver=('newton_schulz', 'cholesky', 'conjugate_gradient'),
    qkv=('qkv', 'shared_qk'),
)
COMBINATIONS = [dict(zip(OPTIONS, values)) for values in itertools.product(*OPTIONS.values())]


def build(landmark_cfg, hw_shape=(5, 6), **kwargs):
    attention = LaplacianAttention(
        16, 2, input_resolution=hw_shape, num_iters=40, **landmark_cfg, **kwargs
    )
    return attention.double()


def cells(hw_shape, landmark_cfg):
    """For each landmark the tokens it averages, by the definition of the two poolings."""
    per_axis = []
    for side in hw_shape:
        if 'pool_ratio' in landmark_cfg:
            ratio = landmark_cfg['pool_ratio']
            per_axis.append([(i, min(i + ratio, side)) for i in range(0, side, ratio)])
        else:
            count = min(int(landmark_cfg['num_landmarks'] ** 0.5), side)
            per_axis.append(
                [(i * side // count, -(-(i + 1) * side // count)) for i in range(count)]
            )
    rows, columns = per_axis
    return [
        [y * hw_shape[1] + x for y in range(*row) for x in range(*column)]
        for row in rows
        for column in columns
    ]


def dense_mix(attention, q, k, v, hw_shape, kernel, whitening, landmark_cfg):
    """Z V with the N x N matrix written out, by the formulas alone."""
    marks = torch.stack([k[:, :, cell].mean(2) for cell in cells(hw_shape, landmark_cfg)], dim=2)
    dims, tokens = q.shape[-1], q.shape[-2]

    def k_of(x, y):
        difference = x[..., :, None, :] - y[..., None, :, :]
        if kernel == 'laplacian':
            return torch.exp(-difference.abs().sum(-1) / 4)
        return torch.exp(-difference.square().sum(-1) / (2 * dims**0.5))

    ridge = attention.ridge * torch.eye(marks.shape[2], dtype=q.dtype)
    gram = k_of(q, marks) @ torch.linalg.inv(k_of(marks, marks) + ridge) @ k_of(marks, k)
    if whitening == 'none':
        return attention.gamma[None, :, None, None] / tokens * gram @ v
    centered = gram - gram.mean(-2, keepdim=True)
    deviation = (gram.var(-2, correction=0, keepdim=True) + attention.whitening_eps).sqrt()
    scale = 1.0
    if whitening == 'normalized':
        scale = attention.gamma[None, :, None, None] / tokens
    return (scale * centered / deviation + 1 / tokens) @ v


@pytest.mark.parametrize('options', COMBINATIONS, ids=lambda o: '-'.join(map(str, o.values())))
def test_linear_time_form_equals_the_dense_formula(options):
    hw_shape = (5, 6)
    attention = build(**options)
    q, k, v = (torch.randn(2, 2, 30, 8, dtype=torch.float64) for _ in range(3))
    if options['qkv'] == 'shared_qk':
        k = q
    inputs = [q.requires_grad_(), k.requires_grad_(), v.requires_grad_()]
    weight = torch.randn_like(v)
    parameters = [p for p in (attention.gamma,) if p is not None]

    outs, grads = [], []
    for mixed in (
        attention.mix(*inputs, hw_shape),
        dense_mix(
            attention, *(attention.rotary(t, hw_shape) for t in (q, k)), v, hw_shape,
            *(options[name] for name in ('kernel', 'whitening', 'landmark_cfg')),
        ),
    ):  # fmt: skip
        outs.append(mixed)
        grads.append(torch.autograd.grad((mixed * weight).sum(), inputs + parameters))
    # fp64 with the inverse's condition of a few hundred leaves far more than nine digits.
    torch.testing.assert_close(outs[0], outs[1], atol=1e-9, rtol=1e-9)
    for ours, dense in zip(*grads):
        torch.testing.assert_close(ours, dense, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize('solver', OPTIONS['solver'])
def test_every_solver_adds_the_ridge_that_was_asked_for(solver):
    attention = build(dict(num_landmarks=4), solver=solver, ridge=0.5)
    (inverse,) = attention.invert(torch.eye(4, dtype=torch.float64)[None])
    torch.testing.assert_close(inverse, torch.eye(4, dtype=torch.float64) / 1.5)


@pytest.mark.parametrize('whitening', OPTIONS['whitening'])
@pytest.mark.parametrize('qkv', ['qkv', 'shared_qk'])
@pytest.mark.parametrize('rope', [False, True])
def test_whole_module_adds_positions_local_branch_and_projection(whitening, qkv, rope):
    attention = build(dict(num_landmarks=4), qkv=qkv, rope=rope, whitening=whitening)
    x = torch.randn(2, 30, 16, dtype=torch.float64)
    *qk, v = F.linear(x, attention.qkv.weight, attention.qkv.bias).split(16, -1)
    q, k, values = (t.reshape(2, 30, 2, 8).transpose(1, 2) for t in (qk[0], qk[-1], v))
    if rope:
        q, k = attention.rotary(q, (5, 6)), attention.rotary(k, (5, 6))
    mixed = dense_mix(
        attention, q, k, values, (5, 6), 'laplacian', whitening, dict(num_landmarks=4)
    )
    local = F.conv2d(
        v.transpose(1, 2).reshape(2, 16, 5, 6),
        attention.lepe.conv.weight,
        attention.lepe.conv.bias,
        padding=1,
        groups=16,
    )
    out = mixed.transpose(1, 2).reshape(2, 30, 16) + local.flatten(2).transpose(1, 2)
    expected = F.linear(out, attention.proj.weight, attention.proj.bias)
    torch.testing.assert_close(attention(x, (5, 6)), expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(('whitening', 'growth'), [('literal', 4), ('normalized', 1)])
def test_only_the_literal_form_grows_with_the_image(whitening, growth):
    attention = LaplacianAttention(32, 1, (8, 8), num_landmarks=1, whitening=whitening, rope=False)
    q, k, v = (torch.randn(1, 1, 64, 32) for _ in range(3))
    # The image four times over: the same statistics and, averaged over all, the same landmark.
    large = attention.mix(*(t.repeat(1, 1, 4, 1) for t in (q, k, v)), (32, 8))[:, :, :64]
    mean = v.mean(-2, keepdim=True)
    small = attention.mix(q, k, v, (8, 8))
    torch.testing.assert_close(large - mean, growth * (small - mean), rtol=1e-3, atol=1e-4)


def test_gamma_starts_at_the_root_of_the_training_tokens():
    attention = LaplacianAttention(64, 2, input_resolution=(12, 16))
    torch.testing.assert_close(attention.gamma.data, torch.full((2,), 192**0.5))
    assert LaplacianAttention(64, 2, (12, 16), whitening='literal').gamma is None


def test_fixed_landmarks_equal_pool_ratio_at_the_training_size():
    x = torch.randn(1, 56 * 56, 32)
    fixed, pooled = (LaplacianAttention(32, 1, (56, 56), **o) for o in (
        dict(num_landmarks=49), dict(pool_ratio=8)
    ))  # fmt: skip
    pooled.load_state_dict(fixed.state_dict())
    torch.testing.assert_close(fixed(x, (56, 56)), pooled(x, (56, 56)))


@pytest.mark.parametrize(
    ('hw_shape', 'expected'), [((56, 56), 49), ((200, 334), 49), ((3, 100), 21), ((1, 1), 1)]
)
def test_fixed_landmarks_do_not_grow_with_the_image(hw_shape, expected):
    attention = LaplacianAttention(32, 1, (56, 56), num_landmarks=49)
    marks = attention.landmarks(torch.randn(1, 1, hw_shape[0] * hw_shape[1], 32), hw_shape)
    assert marks.shape == (1, 1, expected, 32)


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        (dict(bandwidth=0.0), 'bandwidth must be positive and finite, got 0.0'),
        (dict(bandwidth=-4), 'bandwidth must be positive and finite, got -4'),
        (dict(num_iters=0), 'num_iters must be at least 1, got 0'),
        (dict(ridge=-1.0), r'ridge \(-1.0\)'),
        (dict(whitening_eps=0.0), r'whitening_eps \(0.0\)'),
        (dict(kernel='cauchy'), "'cauchy'"),
        (dict(solver='lu'), "'lu'"),
        (dict(whitening='off'), "'off'"),
        (dict(num_landmarks=50), 'square.*got 50'),
        (dict(num_landmarks=0), 'at least 1, got 0'),
        (dict(num_landmarks=49, pool_ratio=8), r'num_landmarks \(49\) or pool_ratio \(8\)'),
        (dict(pool_ratio=0), 'pool_ratio must be an integer of at least 1, got 0'),
        (dict(lepe_kernel=4), 'lepe_kernel must be odd, or 0 for none, got 4'),
    ],
)
def test_bad_options_are_quoted(kwargs, message):
    with pytest.raises(ValueError, match=message):
        LaplacianAttention(32, 1, (7, 7), **kwargs)
