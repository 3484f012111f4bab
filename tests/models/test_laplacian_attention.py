"""The linear-time whitening is the dense N x N formula."""

import pytest
import torch
from conftest import doubles, make_attention

from mmlaplace.models import KernelAttention, LaplacianAttention
from mmlaplace.ops import gaussian_kernel, laplacian_kernel, use_backend

SOLVERS = ('newton_schulz', 'cholesky', 'conjugate_gradient')
# With 8 channels in a head.
KERNELS = {'laplacian': (laplacian_kernel, 4.0), 'gaussian': (gaussian_kernel, 8**0.25)}


def build(hw_shape=(5, 6), **options):
    return make_attention('LaplacianAttention', hw_shape, init=False, num_iters=40, **options)


def dense_kernel(attention, q, k, hw_shape, kernel):
    """The N x N matrix of the kernel by landmarks, with every factor written out."""
    prefix = attention.num_prefix_tokens
    maps = [attention.rotary(x[:, :, prefix:], hw_shape) for x in (q, k)]
    q, k = (torch.cat([x[:, :, :prefix], turned], 2) for x, turned in zip((q, k), maps))
    k_of, bandwidth = KERNELS[kernel]
    of_queries, of_keys = (attention.landmarks(x, hw_shape) for x in maps)
    if attention.landmarks_from == 'queries':
        of_keys = of_queries
    elif attention.landmarks_from == 'keys':
        of_queries = of_keys
    mat = k_of(of_queries, of_keys, bandwidth)
    ridge = attention.ridge * torch.eye(mat.shape[-1], dtype=q.dtype)
    if attention.landmarks_from == 'both':
        inverse = torch.linalg.inv(mat.mT @ mat + ridge) @ mat.mT
    else:
        inverse = torch.linalg.inv(mat + ridge)
    return k_of(q, of_keys, bandwidth) @ inverse @ k_of(of_queries, k, bandwidth)


def dense_mix(attention, q, k, v, hw_shape, kernel, whitening, centred_over='queries'):
    """Z V with the N x N matrix written out."""
    gram = dense_kernel(attention, q, k, hw_shape, kernel)
    scale = 1.0
    if whitening != 'literal':
        scale = attention.gamma[None, :, None, None] / q.shape[-2]
    if whitening == 'none':
        return scale * gram @ v
    centered = gram
    if centred_over in ('queries', 'both'):
        centered = centered - centered.mean(-2, keepdim=True)
    if centred_over in ('keys', 'both'):
        centered = centered - centered.mean(-1, keepdim=True)
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


def assert_equal_with_gradients(outs, inputs, tolerance):
    """Two outputs, and the gradients of the inputs by each of them, are the same."""
    torch.testing.assert_close(*outs, atol=1e-9, rtol=1e-9)
    weight = torch.randn_like(outs[0])
    grads = (torch.autograd.grad((out * weight).sum(), inputs) for out in outs)
    torch.testing.assert_close(*grads, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize('landmarks_from', ['keys', 'queries', 'both'])
@pytest.mark.parametrize('marks', [dict(num_landmarks=4), dict(pool_ratio=2)])
@pytest.mark.parametrize('kernel', KERNELS)
def test_normalized_rows_are_those_of_the_dense_formula(kernel, marks, landmarks_from):
    options = dict(kernel=kernel, normalization='rows', landmarks_from=landmarks_from)
    attention, hw_shape = build(**marks, **options), (5, 6)
    assert attention.gamma is None
    inputs = [tensor.requires_grad_() for tensor in doubles(3, 2, 2, 30, 8)]
    with use_backend('reference'):
        gram = dense_kernel(attention, *inputs[:2], hw_shape, kernel)
        dense = gram / gram.sum(-1, keepdim=True) @ inputs[2]
    # fp64 with the inverse's condition of a few hundred leaves far more than eight digits. With
    # landmarks of both it is that of a square, and sums come close to zero.
    tolerance = 1e-6 if landmarks_from == 'both' else 1e-8
    assert_equal_with_gradients((attention.mix(*inputs, hw_shape), dense), inputs, tolerance)


@pytest.mark.parametrize('solver', SOLVERS)
@pytest.mark.parametrize('whitening', ['normalized', 'literal'])
@pytest.mark.parametrize('centred_over', ['queries', 'keys', 'both'])
@pytest.mark.parametrize('landmarks_from', ['keys', 'queries', 'both'])
def test_every_reading_of_the_whitening_is_its_dense_formula(
    landmarks_from, centred_over, whitening, solver
):
    options = dict(landmarks_from=landmarks_from, centred_over=centred_over, solver=solver)
    attention, hw_shape = build(num_landmarks=4, whitening=whitening, **options), (5, 6)
    inputs = [tensor.requires_grad_() for tensor in doubles(3, 2, 2, 30, 8)]
    parameters = [p for p in (attention.gamma,) if p is not None]
    with use_backend('reference'):
        dense = dense_mix(attention, *inputs, hw_shape, 'laplacian', whitening, centred_over)
    outs = attention.mix(*inputs, hw_shape), dense
    # As above.
    assert_equal_with_gradients(outs, inputs + parameters, 1e-8)


@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(whitening='literal', solver='newton_schulz'),
        dict(whitening='none', kernel='gaussian'),
        dict(centred_over='keys'),
        dict(centred_over='both', landmarks_from='both'),
        dict(normalization='rows'),
        dict(normalization='rows', landmarks_from='queries', rope_form='centred'),
        dict(normalization='rows', landmarks_from='both'),
    ],
    ids=str,
)
def test_prefix_tokens_are_in_the_dense_formula_and_in_no_landmark(options):
    attention, hw_shape = build(num_landmarks=4, num_prefix_tokens=3, **options), (5, 6)
    inputs = [tensor.requires_grad_() for tensor in doubles(3, 2, 2, 33, 8)]
    kernel = options.get('kernel', 'laplacian')
    with use_backend('reference'):
        if options.get('normalization') == 'rows':
            gram = dense_kernel(attention, *inputs[:2], hw_shape, kernel)
            dense = gram / gram.sum(-1, keepdim=True) @ inputs[2]
        else:
            forms = attention.whitening or 'none', attention.centred_over
            dense = dense_mix(attention, *inputs, hw_shape, kernel, *forms)
    outs = attention.mix(*inputs, hw_shape), dense
    # As above. Sums of rows come close to zero with landmarks of both.
    assert_equal_with_gradients(outs, inputs, 1e-6)


def test_prefix_tokens_count_where_gamma_starts():
    options = dict(normalization='whitened', num_prefix_tokens=4)
    for cls in (LaplacianAttention, KernelAttention):
        gamma = cls(64, 2, (12, 16), **options).gamma
        torch.testing.assert_close(gamma.data, torch.full((2,), 14.0))


def test_newtons_start_as_printed_does_not_converge():
    """It is 2 W^T / |W|, which needs a norm below 1. A kernel's diagonal alone makes it larger."""
    landmarks = torch.randn(1, 1, 9, 8, dtype=torch.float64)
    mat = laplacian_kernel(landmarks, landmarks, 4.0)
    norm = torch.linalg.matrix_norm(mat, 2)
    assert norm > 1
    found, eye = 2 * mat / norm, torch.eye(9, dtype=torch.float64)
    first = torch.linalg.matrix_norm(eye - mat @ found, 2)
    for _ in range(6):
        found = found @ (2 * eye - mat @ found)
    assert torch.linalg.matrix_norm(eye - mat @ found, 2) > first > 1
    # The same start over the square of the norm, and below it, converges.
    found = 1.9 * mat / norm**2
    for _ in range(20):
        found = found @ (2 * eye - mat @ found)
    torch.testing.assert_close(mat @ found, eye.expand_as(mat))


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
        (dict(landmarks_from='values'), "('keys', 'queries', 'both'), got 'values'"),
        (dict(centred_over='rows'), "('queries', 'keys', 'both'), got 'rows'"),
        (dict(normalization='rows', centred_over='keys'), "centred_over='keys' has no effect"),
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
