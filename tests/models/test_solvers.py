"""The inverses that papers compare with the Newton iteration."""

import pytest
import torch

from mmlaplace.models.layers.solvers import conjugate_gradient_inverse, svd_inverse

BOTH = pytest.mark.parametrize('inverse', [svd_inverse, conjugate_gradient_inverse])


def positive(*shape, condition=100.0):
    """Symmetric matrices ``(*shape[:-1], m, m)`` with eigenvalues from 1 down to 1 / condition."""
    m = shape[-1]
    basis = torch.linalg.qr(torch.randn(*shape, m, dtype=torch.float64))[0]
    values = torch.logspace(0, -torch.tensor(condition).log10().item(), m, dtype=torch.float64)
    return (basis * values) @ basis.mT


@BOTH
@pytest.mark.parametrize('ridge', [0.0, 0.5])
def test_an_inverse_and_its_gradient_are_those_of_linear_algebra(inverse, ridge):
    mat = positive(2, 3, 12).requires_grad_()
    options = dict(num_iters=24) if inverse is conjugate_gradient_inverse else {}
    ours = inverse(mat, ridge=ridge, **options)
    exact = torch.linalg.inv(mat + ridge * torch.eye(12, dtype=torch.float64))
    # A condition of 100 leaves 14 digits of 16. Steps beyond the m-th clean up what rounding left.
    torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(exact)
    # The pseudo-inverse of a symmetric matrix is told the symmetric part of a change alone.
    gradients = [torch.autograd.grad((out * weight).sum(), mat)[0] for out in (ours, exact)]
    one, other = ((gradient + gradient.mT) / 2 for gradient in gradients)
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)  # two inverses in a product


@BOTH
def test_a_nan_spoils_its_matrix_alone_and_an_empty_batch_stays_empty(inverse):
    mat = positive(3, 5).float()
    clean = inverse(mat)
    mat[1, 2, 3] = float('nan')
    out = inverse(mat)
    assert out[1].isnan().all()
    torch.testing.assert_close(out[[0, 2]], clean[[0, 2]])
    assert inverse(mat[:0]).shape == (0, 5, 5)


@BOTH
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_halves_are_inverted_in_fp32(inverse, dtype):
    mat = positive(2, 6, condition=10.0).to(dtype)
    expected = inverse(mat.float())
    # One rounding, of the result or of none.
    torch.testing.assert_close(inverse(mat).float(), expected, rtol=torch.finfo(dtype).eps, atol=0)


@BOTH
def test_what_is_no_square_or_no_ridge_is_quoted(inverse):
    with pytest.raises(ValueError, match=r'\(2, 3\)'):
        inverse(torch.ones(2, 3))
    with pytest.raises(ValueError, match='ridge must be finite and not negative, got -1.0'):
        inverse(torch.eye(2), ridge=-1.0)


def test_directions_of_a_singular_matrix_stay_out_of_the_svd():
    factor = torch.randn(4, 8, 3, dtype=torch.float64)
    mat = factor @ factor.mT  # of rank 3
    # A condition below 1e3 on the three directions leaves more than 12 digits.
    torch.testing.assert_close(svd_inverse(mat), torch.linalg.pinv(mat), rtol=1e-9, atol=1e-9)


def test_columns_that_have_converged_stay_as_they_are():
    # One step solves the first matrix, and the second needs all five.
    mat = torch.stack([torch.eye(5, dtype=torch.float64) * 2, positive(5, condition=10.0)])
    for num_iters in (1, 5, 50, 500):
        out = conjugate_gradient_inverse(mat, num_iters, ridge=0.0)
        assert torch.equal(out[0], torch.eye(5, dtype=torch.float64) / 2)
    torch.testing.assert_close(out[1], torch.linalg.inv(mat[1]), rtol=1e-12, atol=1e-12)


def test_few_steps_of_conjugate_gradients_are_an_approximation_that_gets_better():
    mat = positive(4, 40, condition=1000.0)
    exact = torch.linalg.inv(mat)
    errors = [
        (conjugate_gradient_inverse(mat, steps, ridge=0.0) - exact).norm().item()
        for steps in (5, 10, 20, 40, 80)
    ]
    assert errors == sorted(errors, reverse=True)
    assert (
        errors[-1] < 1e-8 * exact.norm()
    )  # converged: rounding times the condition, 1e-13, is left
    assert errors[2] > 1e-3 * exact.norm()  # 20 steps are too few for a condition of 1000
    with pytest.raises(ValueError, match='num_iters must be at least 1, got 0'):
        conjugate_gradient_inverse(mat, 0)
