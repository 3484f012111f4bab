"""The two kernels: agreement with independent truths, gradients, precisions, shapes, bad input."""

import pytest
import torch
from sklearn.metrics.pairwise import laplacian_kernel as sklearn_laplacian
from sklearn.metrics.pairwise import rbf_kernel as sklearn_rbf

from mmlaplace.ops import gaussian_kernel, laplacian_kernel

# Each op with scikit-learn's function of (x, y, scale) as the independent truth.
OPS = {
    'laplacian_kernel': (laplacian_kernel, lambda x, y, s: sklearn_laplacian(x, y, gamma=1 / s)),
    'gaussian_kernel': (gaussian_kernel, lambda x, y, s: sklearn_rbf(x, y, gamma=0.5 / s**2)),
}
# N, M, d: one query, fewer queries than keys, sizes around and off powers of two.
SHAPES = [(1, 4, 8), (3, 49, 17), (49, 49, 32), (97, 10, 59), (1025, 49, 64), (5, 7, 111)]


@pytest.fixture(params=OPS, name='op')
def _op(request):
    return OPS[request.param][0]


def tokens(num_queries, num_keys, dims, dtype=torch.float64, batch=2, heads=3):
    # Divided by sqrt(d), so that the kernel is neither 0 nor 1 at any d.
    scale = dims**-0.5
    q = torch.randn(batch, heads, num_queries, dims, dtype=torch.float64) * scale
    k = torch.randn(batch, heads, num_keys, dims, dtype=torch.float64) * scale
    return q.to(dtype), k.to(dtype)


@pytest.mark.parametrize('name', OPS)
@pytest.mark.parametrize('shape', SHAPES)
def test_agrees_with_scikit_learn(name, shape):
    op, truth = OPS[name]
    q, k = tokens(*shape)
    out = op(q, k, 1.7)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            expected = torch.from_numpy(truth(q[b, h].numpy(), k[b, h].numpy(), 1.7))
            # scikit-learn expands the Gaussian's square, which costs it some digits of fp64.
            torch.testing.assert_close(out[b, h], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precisions_accumulate_in_fp32(op, dtype):
    q, k = tokens(97, 49, 64, dtype)
    out = op(q, k, 1.7)
    assert out.dtype == dtype
    exact = op(q.double(), k.double(), 1.7)
    # Values in (0, 1]: one rounding of the result; fp32 also rounds the sums over d.
    tolerance = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    assert (out.double() - exact).abs().max() <= tolerance


def test_gradients(op):
    q, k = tokens(5, 4, 3)
    q.requires_grad_()
    k.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: op(q, k, 1.7), (q, k))


def test_gradient_at_coinciding_points_is_zero(op):
    q = torch.randn(1, 1, 4, 8, dtype=torch.float64, requires_grad=True)
    op(q, q.detach(), 2.0).diagonal(dim1=-2, dim2=-1).sum().backward()
    assert torch.equal(q.grad, torch.zeros_like(q))


def test_non_contiguous_inputs(op):
    q, k = tokens(12, 6, 16)
    strided = q.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    assert not strided.is_contiguous()
    torch.testing.assert_close(op(strided, k, 2.0), op(q, k, 2.0))


@pytest.mark.parametrize('shape', [(0, 2, 5, 4), (2, 2, 0, 4)])
def test_empty_inputs(op, shape):
    q = torch.randn(*shape, requires_grad=True)
    k = torch.randn(shape[0], shape[1], 3, shape[3])
    out = op(q, k, 1.0)
    assert out.shape == (*shape[:3], 3)
    out.sum().backward()
    assert q.grad.shape == q.shape


def test_autocast_gives_fp32(op):
    q, k = tokens(20, 5, 16, torch.bfloat16)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        out = op(q, k, 1.7)
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, op(q.float(), k.float(), 1.7))


def test_meta_tensors_have_the_shape(op):
    q, k = torch.empty(2, 3, 20, 8, device='meta'), torch.empty(2, 3, 5, 8, device='meta')
    assert op(q, k, 1.0).shape == (2, 3, 20, 5)


def test_native_without_library_says_why(op):
    q, k = tokens(4, 4, 4)
    with pytest.raises(RuntimeError, match="no compiled library.*backend='auto'"):
        op(q, k, 1.0, backend='native')


@pytest.mark.parametrize(
    ('q', 'k', 'scale', 'error', 'message'),
    [
        (torch.ones(3, 4, 8), torch.ones(1, 3, 4, 8), 1.0, ValueError, r'\(3, 4, 8\)'),
        (torch.ones(1, 2, 4, 8), torch.ones(1, 3, 4, 8), 1.0, ValueError, r'\(1, 3, 4, 8\)'),
        (torch.ones(1, 3, 4, 8), torch.ones(1, 3, 4, 7), 1.0, ValueError, r'\(1, 3, 4, 7\)'),
        (torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8).double(), 1.0, ValueError, 'float64'),
        (torch.ones(1, 1, 2, 8).int(), torch.ones(1, 1, 2, 8).int(), 1.0, TypeError, 'int32'),
        ([1.0], torch.ones(1, 1, 2, 8), 1.0, TypeError, 'list'),
        (torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8), 0.0, ValueError, 'got 0.0'),
        (torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8), -4, ValueError, 'got -4'),
        (torch.ones(1, 1, 2, 8), torch.ones(1, 1, 2, 8), float('nan'), ValueError, 'nan'),
    ],
)
def test_bad_input_is_quoted(op, q, k, scale, error, message):
    with pytest.raises(error, match=message):
        op(q, k, scale)


def test_unknown_backend(op):
    q, k = tokens(2, 2, 2)
    with pytest.raises(ValueError, match="'triton'"):
        op(q, k, 1.0, backend='triton')
