"""What normalized_nystrom_attention computes: the dense formula, gradients, limits of the sums."""

import pytest
import torch
from op_results import assert_formula
from test_nystrom_attention import CASES, case, formula

from mmlaplace.ops import (
    cholesky_inverse,
    laplacian_kernel,
    normalized_nystrom_attention,
    use_backend,
)
from mmlaplace.ops.normalized_nystrom_attention import normalized_nystrom_attention_reference

HALVES = (torch.float32, torch.float16, torch.bfloat16)
# Sums of up to 1,300 products in fp64. Otherwise one rounding of the result, and some hundred
# roundings of fp32 before.
BOUNDS = {torch.float64: 1e-11}
BOUNDS |= {dtype: torch.finfo(dtype).eps + 1e-4 for dtype in HALVES}


@pytest.fixture(name='op')
def _op(computed_by):
    return computed_by(normalized_nystrom_attention)


def normalized_case(name, dtype=torch.float64, device='cpu'):
    """A case of nystrom_attention with an inverse whose sums are far from zero."""
    (*tensors, inverse, _), options = case(name, dtype, device)
    del options['whitening_eps']
    return [*tensors, inverse.abs() + torch.eye(inverse.shape[-1]).to(inverse)], options


def dense(q, k, v, landmarks, inverse, **options):
    """With the N x n matrix written out, each row over its sum."""
    ones = torch.ones_like(v)
    return formula(q, k, v, landmarks, inverse, 1.0, **options) / formula(
        q, k, ones, landmarks, inverse, 1.0, **options
    )


def trained(marks=9, tokens=60, dims=8):
    """Tokens, landmarks of queries and their inverse, as an attention has them."""
    q, k, v = torch.randn(3, 1, 2, tokens, dims)
    landmarks = q[:, :, : marks * 3].unflatten(2, (marks, 3)).mean(3)
    inverse = cholesky_inverse(laplacian_kernel(landmarks, landmarks, 4.0), ridge=1e-2)
    return q, k, v, landmarks, inverse


@pytest.mark.parametrize(
    ('name', 'dtype'),
    [
        *((name, torch.float64) for name in CASES),
        *((name, dtype) for name in ('odd', 'three-parts') for dtype in HALVES),
    ],
)
def test_values_and_gradients_are_those_of_the_dense_formula(op, name, dtype, device):
    tensors, options = normalized_case(name, dtype, device)
    op_of, dense_of = (lambda *t, of=of: of(*t, **options) for of in (op, dense))
    assert_formula(op_of, dense_of, tensors, BOUNDS)


def test_values_that_are_the_same_come_out_the_same(op):
    q, k, _, landmarks, inverse = trained()
    v = torch.full_like(q, 3.0)
    torch.testing.assert_close(op(q, k, v, landmarks, inverse, 4.0), v, atol=1e-4, rtol=1e-4)


def test_a_factor_of_all_kernels_of_a_query_cancels(op):
    """A query whose kernels are all below the smallest fp32 number has its share of the values."""
    q, k, v, landmarks, inverse = trained()
    # Above all landmarks in one channel: every distance grows by about the same.
    q, far = q.clone(), q.clone()
    q[..., 0], far[..., 0] = 100.0, 600.0
    near, out = (op(x, k, v, landmarks, inverse, 4.0) for x in (q, far))
    assert laplacian_kernel(far, landmarks, 4.0).max() == 0
    # The distances, 600, are rounded to 3e-5, and P has entries of some hundred.
    torch.testing.assert_close(out, near, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize('kind', ['keys far from all landmarks', 'equal tokens', 'one token'])
def test_far_and_equal_tokens_give_numbers_and_gradients(op, kind):
    q, k, v, landmarks, inverse = trained()
    if kind == 'keys far from all landmarks':
        k = k + 1e4
    elif kind == 'equal tokens':
        q, k = torch.zeros_like(q), torch.zeros_like(k)
        landmarks = landmarks * 0
        ones = torch.ones(1, 2, 9, 9)
        inverse = cholesky_inverse(ones, ridge=1e-2)
    else:
        q, k, v, landmarks = (tensor[:, :, :1] for tensor in (q, k, v, landmarks))
        inverse = inverse[:, :, :1, :1]
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v, landmarks, inverse)]
    out = op(*leaves, 4.0)
    gradients = torch.autograd.grad(out.square().sum(), leaves)
    assert all(tensor.isfinite().all() for tensor in (out, *gradients))
    if kind == 'keys far from all landmarks':
        assert not out.any()
    elif kind == 'equal tokens':  # all weights are alike
        mean = v.mean(2, keepdim=True).expand_as(v)
        torch.testing.assert_close(out, mean, atol=1e-4, rtol=1e-4)
    else:
        torch.testing.assert_close(out, v)


def test_sums_below_the_floor_count_as_it_and_nothing_goes_through_them(op):
    q, k, v, landmarks, inverse = (x.double() for x in trained())
    floor = 0.5
    leaves = [x.clone().requires_grad_() for x in (q, k, v, landmarks, -inverse)]
    out = op(*leaves, 4.0, floor=floor)
    of_query = laplacian_kernel(q, landmarks, 4.0)
    of_query = of_query / of_query.amax(-1, keepdim=True)
    of_key = laplacian_kernel(k, landmarks, 4.0).transpose(-2, -1)
    weights = -inverse @ of_key.sum(-1, keepdim=True)
    sums = of_query @ weights
    smallest = floor * weights.abs().mean(2, keepdim=True)
    low = sums < smallest
    assert low.any()
    expected = of_query @ (-inverse @ (of_key @ v)) / sums.maximum(smallest)
    torch.testing.assert_close(out, expected)
    with use_backend('reference'):
        wanted = torch.autograd.grad(
            normalized_nystrom_attention_reference(
                *leaves, None, 'laplacian', 4.0, floor, 'half'
            ).sum(),
            leaves,
        )
    torch.testing.assert_close(torch.autograd.grad(out.sum(), leaves), wanted)


def test_many_tokens_are_as_few(op):
    """The sums of 65,536 keys are those of 64 keys that each stand for 1,024."""
    q, k, v, landmarks, inverse = trained(tokens=64)
    many = op(q, k.repeat(1, 1, 1024, 1), v.repeat(1, 1, 1024, 1), landmarks, inverse, 4.0)
    # Sums of 65,536 numbers in fp32, and P has entries of some hundred.
    torch.testing.assert_close(many, op(q, k, v, landmarks, inverse, 4.0), atol=1e-3, rtol=1e-3)


def test_a_nan_of_one_query_stays_there(op):
    q, k, v, landmarks, inverse = trained()
    q = q.clone()
    q[0, 0, 3, 2] = torch.nan
    out = op(q, k, v, landmarks, inverse, 4.0)
    assert out[0, 0, 3].isnan().all()
    out[0, 0, 3] = 0
    assert out.isfinite().all()


def test_no_landmarks_are_refused():
    q, k, v, landmarks, inverse = trained()
    with pytest.raises(ValueError, match=r'must be a landmark, got landmarks \(1, 2, 0, 8\)'):
        normalized_nystrom_attention(q, k, v, landmarks[:, :, :0], inverse[:, :, :0, :0], 4.0)


def test_derivatives_of_any_order(op):
    tensors = [x.double()[:, :, :4].requires_grad_() for x in trained(4, 12, 3)]
    tensors[-1] = tensors[-1].detach()[..., :4].requires_grad_()
    assert torch.autograd.gradgradcheck(lambda *t: op(*t, 4.0), tensors)
