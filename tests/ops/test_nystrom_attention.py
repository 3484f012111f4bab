"""What nystrom_attention computes: the dense formula, gradients, precisions and NaN."""

import functools

import pytest
import torch
from conftest import NO_GPU
from op_results import assert_formula, results
from test_pooled_landmarks import table, turned

from mmlaplace.ops import cholesky_inverse, gaussian_kernel, laplacian_kernel, nystrom_attention

KERNELS = {'laplacian': laplacian_kernel, 'gaussian': gaussian_kernel}
NAMES = ('q', 'k', 'v', 'landmarks', 'inverse', 'scale')
# B, heads, N, n, m, d, kernel, whitening_eps, rotary form. On CPUs tiles have 128 tokens, vectors 4
# to 16 of them, and heads have several parts from 513 tokens on if there are few heads.
CASES = {
    'one-token': (2, 3, 1, 1, 3, 5, 'laplacian', 1e-5, None),
    'below-a-tile': (1, 2, 50, 50, 9, 20, 'gaussian', None, 'half'),
    'odd': (2, 2, 97, 97, 25, 18, 'laplacian', 1e-5, 'pairs'),
    'three-parts': (1, 1, 1100, 1100, 49, 32, 'laplacian', 1e-5, 'half'),
    'parts-of-queries-alone': (1, 1, 1300, 300, 64, 48, 'gaussian', 1e-3, None),
    'one-landmark': (2, 1, 33, 200, 1, 20, 'gaussian', 1e-5, None),
    'many-landmarks': (1, 2, 300, 300, 100, 64, 'laplacian', 1e-5, 'half'),
}


@pytest.fixture(name='op')
def _op(computed_by):
    return computed_by(nystrom_attention)


def problem(batch, heads, queries, keys, marks, dims, kernel, whitening_eps, form):
    """Tensors in fp64, and options. Distances are such that the kernel is neither 0 nor 1."""

    def normal(*shape):
        return torch.randn(batch, heads, *shape, dtype=torch.float64)

    base = normal(1, dims)
    q, k, landmarks = (base + 2 * normal(n, dims) / dims**0.5 for n in (queries, keys, marks))
    bandwidth = dims**0.5 if kernel == 'laplacian' else 1.0
    # With a little that is not symmetric, so that P and its transpose are not the same.
    inverse = cholesky_inverse(KERNELS[kernel](landmarks, landmarks, bandwidth), 0.1)
    inverse = inverse + 0.1 * normal(marks, marks)
    tensors = (q, k, normal(keys, dims), landmarks, inverse, (1 + normal(1, 1)) / keys**0.5)
    options = dict(bandwidth=bandwidth, kernel=kernel, whitening_eps=whitening_eps)
    if form is not None:
        options.update(rotary=table(queries, 2 * (dims // 4)), rotary_form=form)
    return tensors, options


def case(name, dtype=torch.float64, device='cpu'):
    tensors, options = problem(*CASES[name])
    if 'rotary' in options:
        options['rotary'] = options['rotary'].to(device)
    return [tensor.to(device, dtype) for tensor in tensors], options


def formula(
    q,
    k,
    v,
    landmarks,
    inverse,
    scale,
    bandwidth,
    kernel,
    whitening_eps=None,
    rotary=None,
    rotary_form='half',
):
    """With the N x n matrix written out, its columns whitened by their own mean and variance."""

    def k_of(x, y):
        difference = x.unsqueeze(-2) - y.unsqueeze(-3)
        if kernel == 'laplacian':
            return torch.exp(-difference.abs().sum(-1) / bandwidth)
        return torch.exp(-difference.square().sum(-1) / (2 * bandwidth**2))

    q, k = (turned(tokens, rotary, rotary_form) for tokens in (q, k))
    matrix = k_of(q, landmarks) @ inverse @ k_of(landmarks, k)
    if whitening_eps is None:
        return scale * matrix @ v
    deviation = (matrix.var(-2, correction=0, keepdim=True) + whitening_eps).sqrt()
    return (scale * (matrix - matrix.mean(-2, keepdim=True)) / deviation + 1 / k.shape[-2]) @ v


def attend(op, tensors, options):
    *inputs, scale = tensors
    return op(*inputs, scale=scale, **options)


def results_of(op, tensors, options, upstream):
    return results(lambda *tensors: attend(op, tensors, options), tensors, upstream)


# Sums of up to 1,300 products of numbers of order 1 to 100 (the inverse) in fp64. Otherwise one
# rounding of the result, and some hundred roundings of fp32 before.
BOUNDS = {torch.float64: 1e-11}
HALVES = (torch.float32, torch.float16, torch.bfloat16)
BOUNDS |= {dtype: torch.finfo(dtype).eps + 1e-4 for dtype in HALVES}


@pytest.mark.parametrize(
    ('name', 'dtype'),
    [
        *((name, torch.float64) for name in CASES),
        *((name, dtype) for name in ('odd', 'three-parts', 'one-landmark') for dtype in HALVES),
    ],
)
def test_values_and_gradients_are_those_of_the_dense_formula(op, name, dtype, device):
    """Halves are read as such, and summed in fp32."""
    tensors, options = case(name, device=device)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    tensors = [t.to(dtype if index < 3 else wide) for index, t in enumerate(tensors)]
    assert_formula(
        lambda *tensors: attend(op, tensors, options),
        lambda *tensors: formula(*tensors, **options),
        tensors,
        BOUNDS,
    )


# The last of six parts is empty; the kernel of a head is more than is kept between passes.
@pytest.mark.parametrize('sizes', [(1, 3, 3080, 3080, 3, 5), (1, 16, 5100, 200, 100, 3)])
@pytest.mark.slow
def test_a_thousand_tokens_and_more_are_those_of_the_reference(sizes):
    tensors, options = problem(*sizes, 'laplacian', 1e-5, None)
    upstream = torch.randn_like(tensors[0])
    found, expected = (
        results_of(functools.partial(nystrom_attention, backend=b), tensors, options, upstream)
        for b in ('native', 'reference')
    )
    # In fp64; scale's gradient is a sum of all tokens and landmarks.
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


def test_mixed_dtypes_are_promoted(op, device):
    (q, k, v, *rest), options = case('odd', torch.float32, device)
    out = attend(op, (q.bfloat16(), k, v.half(), *rest), options)
    rounded = (q.bfloat16().float(), k, v.half().float(), *rest)
    assert torch.equal(out, attend(op, rounded, options))


@pytest.mark.parametrize('tokens', [97, 1100])  # with heads as a whole, and in parts
@pytest.mark.parametrize('spoilt', [*NAMES, 'upstream'])
def test_nan_stays_in_its_head(op, spoilt, tokens, device):
    tensors, options = problem(2, 2, tokens, tokens, 9, 18, 'laplacian', 1e-5, 'half')
    options['rotary'] = options['rotary'].to(device)
    values = dict(zip(NAMES, tensors), upstream=torch.ones(2, 2, tokens, 18))
    values = {name: value.to(device, torch.float32) for name, value in values.items()}

    def compute():
        *tensors, upstream = values.values()
        return zip(('out', *NAMES), results_of(op, tensors, options, upstream))

    clean = dict(compute())
    values[spoilt] = values[spoilt].clone()
    values[spoilt][0, 1, -1, -1] = float('nan')
    for name, result in compute():
        if name == 'q' or (name == 'out' and spoilt != 'upstream'):
            assert result[0, 1].isnan().any()
        result[0, 1] = clean[name][0, 1]
        # In the reference, products of all heads are summed in an order of their own.
        torch.testing.assert_close(result, clean[name])


@NO_GPU
@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize('name', CASES)
def test_tensor_cores_on_cuda_are_as_accurate(name, dtype, monkeypatch):
    tensors, options = case(name, dtype, 'cuda')
    wanted = formula(*(tensor.double() for tensor in tensors), **options)
    errors = []
    for use in '01':
        monkeypatch.setenv('MMLAPLACE_TENSOR_CORES', use)
        out = attend(nystrom_attention, tensors, {**options, 'backend': 'native'})
        errors.append((out - wanted).norm() / wanted.norm())
    assert errors[1] <= 2 * errors[0] + torch.finfo(torch.float32).eps


def test_rounding_brings_no_variance_below_zero(op, device):
    """The weights are across the difference of two queries, so that no column has a variance."""
    q, k, v, landmarks = (torch.randn(1, 8, n, 4, device=device) for n in (2, 64, 64, 9))
    change = laplacian_kernel(q, landmarks, 4.0).diff(dim=-2)  # (1, heads, 1, m)
    across = torch.eye(9, device=device) - change.mT @ change / change.square().sum(-1, True)
    inverse = 1e3 * across @ torch.randn(1, 8, 9, 9, device=device)
    tensors = (q, k, v, landmarks, inverse)
    out, *grads = results(
        functools.partial(op, bandwidth=4.0, whitening_eps=1e-5), tensors, v[:, :, :2]
    )
    assert out.isfinite().all() and all(grad.isfinite().all() for grad in grads)
