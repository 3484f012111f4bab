"""What kernel_attention computes: the dense formula, gradients, far tokens, memory."""

import pytest
import torch
from op_results import assert_formula
from test_pooled_landmarks import table, turned

from mmlaplace.analysis.measuring import tensor_memory
from mmlaplace.ops import kernel_attention, laplacian_kernel

# B, heads, N, n, d, kernel, rotary form. On CPUs tiles have 128 queries by 128 keys, vectors 4 to
# 16 queries, and the keys of a head several parts from 513 on if there are few heads.
CASES = {
    'one-token': (2, 3, 1, 1, 5, 'laplacian', None),
    'below-a-tile': (1, 2, 50, 50, 20, 'gaussian', 'half'),
    'odd': (2, 2, 197, 197, 18, 'laplacian', 'pairs'),
    'three-parts': (1, 1, 1040, 1040, 6, 'laplacian', 'half'),
    'parts-of-keys-alone': (1, 1, 33, 1300, 32, 'gaussian', None),
    'many-queries': (1, 1, 700, 3, 7, 'laplacian', None),
}
HALVES = (torch.float32, torch.float16, torch.bfloat16)
# Sums of up to 1,300 products in fp64. Otherwise one rounding of the result, which the gradients
# take up, and some hundred roundings of fp32 before.
BOUNDS = {torch.float64: 1e-11}
BOUNDS |= {dtype: torch.finfo(dtype).eps + 1e-5 for dtype in HALVES}


@pytest.fixture(name='op')
def _op(computed_by):
    return computed_by(kernel_attention)


def case(name, dtype=torch.float64, device='cpu'):
    batch, heads, queries, keys, dims, kernel, form = CASES[name]
    q, k, v = (
        torch.randn(batch, heads, tokens, dims, dtype=torch.float64).to(device, dtype)
        for tokens in (queries, keys, keys)
    )
    options = dict(bandwidth=dims**0.5 if kernel == 'laplacian' else 2.0, kernel=kernel)
    if form is not None:
        options.update(rotary=table(queries, 2 * (dims // 4)).to(device), rotary_form=form)
    return [q, k, v], options


def dense(q, k, v, bandwidth, kernel, rotary=None, rotary_form='half'):
    """With the N x n matrix of differences written out."""
    q, k = (turned(tokens, rotary, rotary_form) for tokens in (q, k))
    difference = q.unsqueeze(-2) - k.unsqueeze(-3)
    if kernel == 'laplacian':
        weights = torch.exp(-difference.abs().sum(-1) / bandwidth)
    else:
        weights = torch.exp(-difference.square().sum(-1) / (2 * bandwidth**2))
    return weights @ v / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ('name', 'dtype'),
    [
        *((name, torch.float64) for name in CASES),
        *((name, dtype) for name in ('odd', 'three-parts') for dtype in HALVES),
    ],
)
def test_values_and_gradients_are_those_of_the_dense_formula(op, name, dtype, device):
    tensors, options = case(name, dtype, device)
    op_of, dense_of = (lambda *t, of=of: of(*t, **options) for of in (op, dense))
    assert_formula(op_of, dense_of, tensors, BOUNDS)


@pytest.mark.parametrize('nearest', ['first', 'last'])
def test_queries_far_from_all_keys_have_the_values_of_the_nearest(op, nearest):
    """Their kernels are below the smallest fp32 number; the nearest keys come early or late."""
    q, (k, v) = torch.randn(1, 2, 20, 8), torch.randn(2, 1, 2, 300, 8)
    k[..., 0] = torch.linspace(-1e4, 1e4, 300)
    if nearest == 'first':
        k, v = k.flip(2), v.flip(2)
    q[..., 0] = 2e4
    assert laplacian_kernel(q, k, 4.0).max() == 0
    wide = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    # A factor of all kernels of a query cancels. Distances, 3e4, are rounded to 2e-3.
    distances = (wide[0].unsqueeze(-2) - wide[1].unsqueeze(-3)).abs().sum(-1)
    wanted = (-(distances - distances.detach().amin(-1, keepdim=True)) / 4).softmax(-1) @ wide[2]
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    out = op(*leaves, 4.0)
    torch.testing.assert_close(out.double(), wanted, atol=1e-2, rtol=1e-2)
    found = torch.autograd.grad(out.square().sum(), leaves)
    expected = torch.autograd.grad(wanted.square().sum(), wide)
    for got, right in zip(found, expected):
        torch.testing.assert_close(got.double(), right, atol=1e-2, rtol=1e-2)


def test_values_that_are_the_same_come_out_the_same_and_no_keys_give_zero(op):
    q, k = torch.randn(1, 2, 20, 8), torch.randn(1, 2, 300, 8)
    v = torch.full_like(k, 3.0)
    # Sums of 300 weights in fp32.
    torch.testing.assert_close(op(q, k, v, 4.0), torch.full_like(q, 3.0), atol=1e-5, rtol=1e-5)
    leaves = [tensor.requires_grad_() for tensor in (q, k[:, :, :0], v[:, :, :0])]
    out = op(*leaves, 4.0)
    assert out.shape == q.shape and not out.any()
    assert not torch.autograd.grad(out.sum(), leaves)[0].any()


def test_equal_channels_have_no_gradient(op):
    q, k, v = torch.randn(3, 1, 1, 30, 4).double()
    q[..., 0], k[..., 0] = 0.0, -0.0
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    for grad in torch.autograd.grad(op(*leaves, 4.0).square().sum(), leaves[:2]):
        assert not grad[..., 0].any() and grad[..., 1:].any()


def test_a_nan_of_one_query_stays_there(op):
    q, k, v = torch.randn(3, 1, 2, 150, 8)
    q[0, 0, 3, 2] = torch.nan
    out = op(q, k, v, 4.0)
    assert out[0, 0, 3].isnan().all()
    out[0, 0, 3] = 0
    assert out.isfinite().all()


def test_no_matrix_of_pairs_is_stored():
    """Forward and backward of 3,000 tokens take far less than one matrix of their pairs."""
    q, k, v = (tensor.requires_grad_() for tensor in torch.randn(3, 1, 2, 3000, 16))

    def step():
        out = kernel_attention(q, k, v, 4.0, backend='native')
        return out, *torch.autograd.grad(out.square().sum(), (q, k, v))

    step()
    matrix = 2 * 3000 * 3000 * 4
    memory = tensor_memory(step, q.device)
    assert memory is not None and memory < matrix / 10


def test_a_bandwidth_that_is_a_tensor_is_refused_with_the_fix():
    q = torch.randn(1, 1, 3, 4)
    with pytest.raises(TypeError, match='kernel_attention: .* got a tensor; divide q and k$'):
        kernel_attention(q, q, q, torch.tensor(4.0))


def test_derivatives_of_any_order(op):
    q, k, v = torch.randn(3, 1, 1, 5, 2).double()
    leaves = [tensor.requires_grad_() for tensor in (q, k[:, :, :3], v[:, :, :3])]
    assert torch.autograd.gradcheck(lambda *t: op(*t, 4.0), leaves)
    assert torch.autograd.gradgradcheck(lambda *t: op(*t, 4.0), leaves)
