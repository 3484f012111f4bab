"""Newton–Schulz and Cholesky inverses: truth, residual, gradients, conditioning, bad input."""

import pytest
import torch
from conftest import NO_GPU

from mmlaplace.ops import (
    cholesky_inverse,
    inverse_residual,
    laplacian_kernel,
    newton_schulz_inverse,
)


def kernel_matrix(size, batch=3, spread=1.0, dtype=torch.float64):
    points = spread * torch.randn(batch, 1, size, 32, dtype=torch.float64)
    return laplacian_kernel(points, points, 4.0)[:, 0].to(dtype)


def newton_schulz(backend):
    return lambda mat, ridge: newton_schulz_inverse(mat, 30, ridge, backend=backend)


# As functions of (mat, ridge) that run until converged, and where.
INVERSES = [
    pytest.param((function, device), id=f'{name}-{device}', marks=marks)
    for device, marks in (('cpu', ()), ('cuda', NO_GPU))
    for name, function in (
        ('newton_schulz-native', newton_schulz('native')),
        ('newton_schulz-reference', newton_schulz('reference')),
        ('cholesky', cholesky_inverse),
    )
]


@pytest.fixture(params=INVERSES, name='inverse')
def _inverse(request):
    """Takes tensors of the CPU, computes on the device in question, and returns to the CPU."""
    function, device = request.param

    def invert(mat, ridge):
        if isinstance(mat, torch.Tensor) and not mat.is_meta:
            return function(mat.to(device), ridge).cpu()
        return function(mat, ridge)

    return invert


@pytest.mark.parametrize('size', [1, 2, 7, 49, 97, 128, 200, 257])
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
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    with torch.autocast('cpu', dtype=torch.bfloat16), torch.autocast(device, dtype=torch.bfloat16):
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


def test_a_residual_above_the_limit_raises_and_names_the_fix():
    mat = torch.stack([torch.eye(5), kernel_matrix(5, 1, 1e-6, torch.float32)[0]])
    message = r'residual of 1 of 2 .* max_residual \(0.001\).* of matrix 1; raise num_iters'
    with pytest.raises(ValueError, match=message):
        newton_schulz_inverse(mat, 3, max_residual=1e-3)
    newton_schulz_inverse(mat, 20, max_residual=1e-3)


def ill_conditioned(size, count, condition, generator):
    """Matrices (count, size, size) of fp32 and a ridge, together of about that condition number.

    Of three kinds: a random basis with eigenvalues down to 1 / condition, and kernel matrices of
    landmarks that all but coincide, in a few places or in one.
    """
    kind = torch.randint(3, (), generator=generator).item()
    if kind == 0:
        basis, _ = torch.linalg.qr(
            torch.randn(count, size, size, dtype=torch.float64, generator=generator)
        )
        eigenvalues = condition ** -torch.linspace(0, 1, size, dtype=torch.float64)
        mat, ridge = (basis * eigenvalues) @ basis.mT, 0.0
    else:
        places = max(1, size // 7) if kind == 1 else 1
        points = torch.randn(count, 1, places, 32, dtype=torch.float64, generator=generator)
        points = points.repeat(1, 1, -(-size // places), 1)[:, :, :size]
        points = points + 1e-6 * torch.randn(points.shape, dtype=torch.float64, generator=generator)
        mat, ridge = laplacian_kernel(points, points, 4.0)[:, 0], size / places / condition
    return ((mat + mat.mT) / 2).float(), ridge


@pytest.mark.slow
def test_ten_thousand_ill_conditioned_matrices_keep_the_promise():
    generator = torch.Generator().manual_seed(0)
    tested, refused, sizes = 0, 0, set()
    while tested < 10_000:
        # Sizes from 1 to 300, most of them small.
        size = 300 if tested == 0 else round(300 ** torch.rand((), generator=generator).item())
        condition = 10 ** (6 * torch.rand((), generator=generator).item())
        mat, ridge = ill_conditioned(size, 40, condition, generator)
        tested += len(mat)
        sizes.add(size)
        try:
            inverse, residual = newton_schulz_inverse(
                mat, 30, ridge, return_residual=True, max_residual=0.1, backend='native'
            )
        except ValueError as error:  # clear, and rare
            assert 'raise num_iters or ridge' in str(error) or 'positive definite' in str(error)
            refused += len(mat)
            continue
        ridged = mat.double() + ridge * torch.eye(size, dtype=torch.float64)
        eigenvalues = torch.linalg.eigvalsh(ridged)
        bound = torch.finfo(torch.float32).eps * (size + eigenvalues[:, -1] / eigenvalues[:, 0])
        true_residual = (
            (torch.eye(size, dtype=torch.float64) - ridged @ inverse.double()).abs().amax((-2, -1))
        )
        assert inverse.isfinite().all()
        assert (true_residual <= bound).all(), (size, condition, (true_residual / bound).max())
        assert (residual <= bound).all()
    assert min(sizes) == 1 and max(sizes) == 300
    assert refused <= 0.01 * tested
