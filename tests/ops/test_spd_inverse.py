"""Newton–Schulz and Cholesky inverses: truth, residual, gradients, conditioning, bad input."""

import pytest
import torch

from mmlaplace.ops import (
    cholesky_inverse,
    inverse_residual,
    laplacian_kernel,
    newton_schulz_inverse,
)


def kernel_matrix(size, batch=3, spread=1.0, dtype=torch.float64):
    points = spread * torch.randn(batch, 1, size, 32, dtype=torch.float64)
    return laplacian_kernel(points, points, 4.0)[:, 0].to(dtype)


# Both as functions of (mat, ridge) that run until converged.
INVERSES = {
    'newton_schulz': lambda mat, ridge: newton_schulz_inverse(mat, 30, ridge),
    'cholesky': cholesky_inverse,
}


@pytest.fixture(params=INVERSES, name='inverse')
def _inverse(request):
    return INVERSES[request.param]


@pytest.mark.parametrize('size', [1, 2, 49, 97, 200])
def test_inverts(inverse, size):
    mat = kernel_matrix(size)
    identity = torch.eye(size, dtype=torch.float64)
    product = inverse(mat, 1e-2) @ (mat + 1e-2 * identity)
    torch.testing.assert_close(product, identity.expand_as(product), atol=1e-10, rtol=0)


def test_gradient_is_that_of_the_inverse(inverse):
    factor = torch.randn(2, 6, 6, dtype=torch.float64)
    mat = (factor @ factor.mT).requires_grad_()
    assert torch.autograd.gradcheck(lambda m: inverse(m, 0.1), mat)


@pytest.mark.parametrize('shape', [(6, 6), (0, 6, 6), (2, 3, 6, 6)])
def test_any_leading_axes(inverse, shape):
    mat = torch.eye(6).expand(shape).clone().requires_grad_()
    out = inverse(mat, 1.0)
    assert out.shape == mat.shape
    out.sum().backward()
    torch.testing.assert_close(out, torch.eye(6).expand(shape) / 2)


def test_twenty_steps_are_enough_for_near_duplicate_landmarks():
    # Condition (100 + 0.01) / 0.01 = 10,000: a hundred landmarks that all but coincide.
    mat = kernel_matrix(100, spread=1e-6, dtype=torch.float32)
    _, residual = newton_schulz_inverse(mat, return_residual=True)
    # fp32 at this condition: eps * condition = 1.2e-3 bounds what any inverse can promise.
    assert residual.max() < 1.2e-3
    exact = cholesky_inverse(mat.double())
    error = (newton_schulz_inverse(mat).double() - exact).abs().max() / exact.abs().max()
    assert error < 1.2e-3


def test_residual_shows_what_too_few_steps_leave():
    mat = kernel_matrix(49, spread=0.1)
    inverse, residual = newton_schulz_inverse(mat, num_iters=3, return_residual=True)
    assert residual.shape == (3,)
    assert not residual.requires_grad
    torch.testing.assert_close(residual, inverse_residual(mat, inverse, 1e-2))
    assert residual.min() > 1e-3
    assert newton_schulz_inverse(mat, num_iters=25, return_residual=True)[1].max() < 1e-10


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_halves_compute_in_fp32(inverse, dtype):
    mat = kernel_matrix(49).to(dtype)
    out = inverse(mat, 1e-2)
    assert out.dtype == dtype
    exact = inverse(mat.double(), 1e-2)
    # One rounding to the half, on entries up to 1 / ridge.
    error = (out.double() - exact).abs().max() / exact.abs().max()
    assert error <= torch.finfo(dtype).eps


def test_autocast_gives_fp32(inverse):
    with torch.autocast('cpu', dtype=torch.bfloat16):
        out = inverse(kernel_matrix(9).bfloat16(), 1e-2)
    assert out.dtype == torch.float32


def test_meta_tensors_have_the_shape(inverse):
    assert inverse(torch.empty(2, 5, 5, device='meta'), 1e-2).shape == (2, 5, 5)


def test_nan_is_quoted_with_its_place(inverse):
    mat = kernel_matrix(4)
    mat[1, 2, 3] = float('nan')
    with pytest.raises(ValueError, match=r'nan at \[1, 2, 3\] of shape \(3, 4, 4\)'):
        inverse(mat, 1e-2)


def test_not_positive_definite(inverse):
    with pytest.raises(ValueError, match='positive definite'):
        inverse(torch.diag(torch.tensor([1.0, -1.0, 2.0])), 1e-2)


@pytest.mark.parametrize(
    ('mat', 'ridge', 'error', 'message'),
    [
        (torch.ones(2, 3, 4), 1e-2, ValueError, r'\(2, 3, 4\)'),
        (torch.ones(3), 1e-2, ValueError, r'\(3,\)'),
        (torch.ones(3, 3).int(), 1e-2, TypeError, 'int32'),
        (None, 1e-2, TypeError, 'NoneType'),
        (torch.eye(3), -0.5, ValueError, 'got -0.5'),
    ],
)
def test_bad_input_is_quoted(inverse, mat, ridge, error, message):
    with pytest.raises(error, match=message):
        inverse(mat, ridge)


def test_num_iters_must_be_positive():
    with pytest.raises(ValueError, match='num_iters.*got 0'):
        newton_schulz_inverse(torch.eye(2), num_iters=0)


def test_native_without_library_says_why():
    with pytest.raises(RuntimeError, match='no compiled library'):
        newton_schulz_inverse(torch.eye(2), backend='native')
