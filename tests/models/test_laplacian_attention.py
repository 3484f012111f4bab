"""The linear-time whitening is the dense N x N formula."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from conftest import doubles, make_attention

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
    options = dict(num_iters=40, **landmark_cfg, **kwargs)
    return make_attention('LaplacianAttention', hw_shape, init=False, **options)


def dense_mix(attention, q, k, v, hw_shape, kernel, whitening, landmark_cfg):
    """Z V with the N x N matrix written out, by the formulas alone."""
    dims, tokens, maps = q.shape[-1], q.shape[-2], k.flatten(0, 1).mT.unflatten(2, hw_shape)
    if 'pool_ratio' in landmark_cfg:
        marks = F.avg_pool2d(maps, landmark_cfg['pool_ratio'], ceil_mode=True)
    else:
        marks = F.adaptive_avg_pool2d(maps, int(landmark_cfg['num_landmarks'] ** 0.5))
    marks = marks.flatten(2).mT.unflatten(0, k.shape[:2])

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
    q, k, v = doubles(3, 2, 2, 30, 8)
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
    torch.testing.assert_close(*grads, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize('solver', OPTIONS['solver'])
def test_every_solver_adds_the_ridge_that_was_asked_for(solver):
    attention = build(dict(num_landmarks=4), solver=solver, ridge=0.5)
    (inverse,) = attention.invert(torch.eye(4).double()[None])
    torch.testing.assert_close(inverse, torch.eye(4).double() / 1.5)


def test_gamma_starts_at_the_root_of_the_training_tokens():
    for whitening in ('normalized', 'none'):
        gamma = LaplacianAttention(64, 2, (12, 16), whitening=whitening).gamma
        torch.testing.assert_close(gamma.data, torch.full((2,), 192**0.5))
    assert LaplacianAttention(64, 2, (12, 16), whitening='literal').gamma is None
