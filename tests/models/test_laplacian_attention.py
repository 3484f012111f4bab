"""The linear-time whitening is the dense N x N formula."""

import pytest
import torch
from conftest import doubles, make_attention

from mmlaplace.models import LaplacianAttention
from mmlaplace.ops import gaussian_kernel, laplacian_kernel, use_backend

SOLVERS = ('newton_schulz', 'cholesky', 'conjugate_gradient')
# With 8 channels in a head.
KERNELS = {'laplacian': (laplacian_kernel, 4.0), 'gaussian': (gaussian_kernel, 8**0.25)}


def build(hw_shape=(5, 6), **options):
    return make_attention('LaplacianAttention', hw_shape, init=False, num_iters=40, **options)


def dense_mix(attention, q, k, v, hw_shape, kernel, whitening):
    """Z V with the N x N matrix written out."""
    q, k = (attention.rotary(x, hw_shape) for x in (q, k))
    marks = attention.landmarks(k, hw_shape)
    k_of, bandwidth = KERNELS[kernel]
    ridge = attention.ridge * torch.eye(marks.shape[2], dtype=q.dtype)
    inverse = torch.linalg.inv(k_of(marks, marks, bandwidth) + ridge)
    gram = k_of(q, marks, bandwidth) @ inverse @ k_of(marks, k, bandwidth)
    scale = 1.0
    if whitening != 'literal':
        scale = attention.gamma[None, :, None, None] / q.shape[-2]
    if whitening == 'none':
        return scale * gram @ v
    centered = gram - gram.mean(-2, keepdim=True)
    deviation = (gram.var(-2, correction=0, keepdim=True) + attention.whitening_eps).sqrt()
    return (scale * centered / deviation + 1 / q.shape[-2]) @ v


@pytest.mark.parametrize('qkv', ['qkv', 'shared_qk'])
@pytest.mark.parametrize('solver', SOLVERS)
@pytest.mark.parametrize('marks', [dict(num_landmarks=4), dict(pool_ratio=2), dict(pool_ratio=3)])
@pytest.mark.parametrize('whitening', ['normalized', 'literal', 'none'])
@pytest.mark.parametrize('kernel', KERNELS)
def test_linear_time_form_equals_the_dense_formula(kernel, whitening, marks, solver, qkv):
    options = dict(kernel=kernel, whitening=whitening, solver=solver, qkv=qkv)
    attention, hw_shape = build(**marks, **options), (5, 6)
    q, k, v = doubles(3, 2, 2, 30, 8)
    inputs = [q, q if qkv == 'shared_qk' else k, v]
    parameters = [p for p in (attention.gamma,) if p is not None]
    with use_backend('reference'):
        leaves = (x.requires_grad_() for x in inputs)
        dense = dense_mix(attention, *leaves, hw_shape, kernel, whitening)
    outs, weight = (attention.mix(*inputs, hw_shape), dense), torch.randn_like(v)
    # fp64 with the inverse's condition of a few hundred leaves far more than nine digits.
    torch.testing.assert_close(*outs, atol=1e-9, rtol=1e-9)
    grads = (torch.autograd.grad((out * weight).sum(), inputs + parameters) for out in outs)
    torch.testing.assert_close(*grads, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize('solver', SOLVERS)
def test_every_solver_adds_the_ridge_that_was_asked_for(solver):
    attention = build(num_landmarks=4, solver=solver, ridge=0.5)
    (inverse,) = attention.invert(torch.eye(4).double()[None])
    torch.testing.assert_close(inverse, torch.eye(4).double() / 1.5)


def test_gamma_starts_at_the_root_of_the_training_tokens():
    for whitening in ('normalized', 'none'):
        gamma = LaplacianAttention(64, 2, (12, 16), whitening=whitening).gamma
        torch.testing.assert_close(gamma.data, torch.full((2,), 192**0.5))
    assert LaplacianAttention(64, 2, (12, 16), whitening='literal').gamma is None


def dense_rows(attention, q, k, v, hw_shape, kernel):
    """Z V with the N x N matrix written out, whose rows add up to one."""
    q, k = (attention.rotary(x, hw_shape) for x in (q, k))
    marks = attention.landmarks(q if attention.landmarks_from == 'queries' else k, hw_shape)
    k_of, bandwidth = KERNELS[kernel]
    ridge = attention.ridge * torch.eye(marks.shape[2], dtype=q.dtype)
    inverse = torch.linalg.inv(k_of(marks, marks, bandwidth) + ridge)
    gram = k_of(q, marks, bandwidth) @ inverse @ k_of(marks, k, bandwidth)
    return gram / gram.sum(-1, keepdim=True) @ v


@pytest.mark.parametrize('landmarks_from', ['keys', 'queries'])
@pytest.mark.parametrize('marks', [dict(num_landmarks=4), dict(pool_ratio=2)])
@pytest.mark.parametrize('kernel', KERNELS)
def test_normalized_rows_are_those_of_the_dense_formula(kernel, marks, landmarks_from):
    options = dict(kernel=kernel, normalization='rows', landmarks_from=landmarks_from)
    attention, hw_shape = build(**marks, **options), (5, 6)
    assert attention.gamma is None
    inputs = [tensor.requires_grad_() for tensor in doubles(3, 2, 2, 30, 8)]
    with use_backend('reference'):
        dense = dense_rows(attention, *inputs, hw_shape, kernel)
    outs, weight = (attention.mix(*inputs, hw_shape), dense), torch.randn_like(inputs[2])
    # fp64 with the inverse's condition of a few hundred leaves far more than nine digits.
    torch.testing.assert_close(*outs, atol=1e-9, rtol=1e-9)
    grads = (torch.autograd.grad((out * weight).sum(), inputs) for out in outs)
    torch.testing.assert_close(*grads, atol=1e-8, rtol=1e-8)


def test_whitened_landmarks_of_queries_are_averages_of_the_queries():
    attention, hw_shape = build(num_landmarks=4, landmarks_from='queries'), (5, 6)
    q, k, v = doubles(3, 2, 2, 30, 8)
    swapped = build(num_landmarks=4)
    seen = []
    attention.landmarks.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    swapped.landmarks.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    out, other = (a.mix(q, k, v, hw_shape) for a in (attention, swapped))
    assert seen[0] is q and seen[1] is k
    assert not torch.allclose(out, other)


@pytest.mark.parametrize(
    ('options', 'said'),
    [
        (dict(normalization='columns'), "('whitened', 'rows', 'none'), got 'columns'"),
        (dict(landmarks_from='values'), "('keys', 'queries'), got 'values'"),
        (dict(normalization='rows', whitening='literal'), "whitening='literal' has no effect"),
        (dict(normalization='rows', whitening_eps=1e-3), 'whitening_eps=0.001 has no effect'),
        (dict(normalization='whitened', whitening='none'), "write normalization='none'"),
        (dict(whitening_eps=0.0), 'whitening_eps must be positive, got 0.0'),
    ],
)
def test_options_that_have_no_effect_are_refused(options, said):
    with pytest.raises(ValueError) as refused:
        build(**options)
    assert said in str(refused.value)


def test_whitening_none_is_normalization_none():
    torch.manual_seed(0)
    ours = build(num_landmarks=4, normalization='none')
    same = build(num_landmarks=4, whitening='none')
    same.load_state_dict(ours.state_dict())
    inputs = doubles(3, 2, 2, 30, 8)
    assert torch.equal(ours.mix(*inputs, (5, 6)), same.mix(*inputs, (5, 6)))
