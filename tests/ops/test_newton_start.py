"""The Newton iteration from alpha P, as SOFT has it: the scale and singular matrices."""

import pytest
import torch

from mmlaplace.ops import newton_schulz_inverse
from mmlaplace.ops.newton_start_scale import newton_start_scale

# Of landmarks: apart, near, all but equal, and equal. The last two have singular matrices.
SPREADS = [0.5, 0.05, 1e-4, 0.0]


def gaussian_matrix(size, spread, *batch):
    points = spread * torch.randn(*batch, size, 8, dtype=torch.float64)
    return torch.exp(-torch.cdist(points, points).square() / 2)


def matrices(size=49):
    return torch.stack([gaussian_matrix(size, spread, 3) for spread in SPREADS])


@pytest.mark.parametrize('per_batch', [False, True])
@pytest.mark.parametrize(('factor', 'halve'), [(2.0, True), (1.8, False)])
@pytest.mark.parametrize('size', [1, 7, 49, 257])
def test_the_compiled_scale_is_that_of_ten_halvings(size, factor, halve, per_batch):
    mat, rule = matrices(size), dict(factor=factor, halve=halve, per_batch=per_batch)
    scale = newton_start_scale(mat, **rule, backend='native')
    assert scale.shape == (4, 3)
    # Sums in another order. A halving more or less would be a factor of two.
    truth = newton_start_scale(mat, **rule, backend='reference')
    torch.testing.assert_close(scale, truth, rtol=1e-12, atol=0)
    assert not newton_start_scale(mat.requires_grad_(), **rule).requires_grad
    halves = newton_start_scale(mat.bfloat16(), **rule, backend='native')
    assert halves.dtype == torch.float32


def near_identity(size):
    """Matrices for which a start at 2 / r^2 times W ends at 0, or between 0 and the inverse."""
    identity = torch.eye(size)
    some = torch.rand(size, size, dtype=torch.float64)
    some = (some + some.T).fill_diagonal_(0)
    found = [identity, *(identity + shift * some for shift in (1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3))]
    found += [(1 - shift) * identity + shift for shift in (1e-7, 1e-5, 1e-3)]  # of equal row sums
    return torch.stack(found).float()


@pytest.mark.parametrize('backend', ['native', 'reference'])
@pytest.mark.parametrize('per_batch', [False, True])
@pytest.mark.parametrize('size', [1, 2, 49, 257])
def test_matrices_near_the_identity_have_their_inverse(size, per_batch, backend):
    mat = near_identity(size)
    for mats in (mat, *mat[:, None]):  # also as batches of one
        scale = newton_start_scale(mats, 2.0, halve=True, per_batch=per_batch, backend=backend)
        inverse = newton_schulz_inverse(mats, start_scale=scale, ridge=0.0, backend=backend)
        truth = torch.linalg.inv(mats.double())
        # Rounding in fp32 of products of 257.
        torch.testing.assert_close(inverse.double(), truth, atol=1e-5, rtol=0)


@pytest.mark.parametrize('per_batch', [False, True])
def test_where_the_authors_start_works_it_is_kept(per_batch):
    mat = torch.stack([gaussian_matrix(49, spread, 3) for spread in (1.0, 0.8, *SPREADS)])

    def largest(values):
        return values.amax() if per_batch else values.amax(-1)[..., None, None]

    scale = 2.0 / largest(mat.sum(-1)).square()  # the authors' lines
    for _ in range(10):
        norm = largest((torch.eye(49) - scale * mat @ mat).abs().sum(-2))
        scale = torch.where(norm > 1.01, scale / 2, scale)
    # Not even a quarter of 1e-3 away from 2, where a step leads to 0.
    works = scale * torch.linalg.matrix_norm(mat, 2)[..., None, None].square() < 1.99
    found = newton_start_scale(mat, 2.0, halve=True, per_batch=per_batch)[..., None, None]
    assert works.all()
    torch.testing.assert_close(found, scale.expand_as(found), rtol=1e-12, atol=0)


@pytest.mark.parametrize('backend', ['native', 'reference'])
@pytest.mark.parametrize('per_batch', [False, True])
def test_a_nan_reaches_the_matrices_that_share_the_scale(per_batch, backend):
    mat = matrices(7)
    mat[1, 2, 3, 4] = float('nan')
    scale = newton_start_scale(mat, 2.0, halve=True, per_batch=per_batch, backend=backend)
    assert scale.isnan().sum() == (12 if per_batch else 1)
    assert scale[1, 2].isnan()


@pytest.mark.parametrize('per_batch', [False, True])
def test_the_scale_under_vmap_is_that_of_each(per_batch):
    mat = matrices(7)

    def scale(mat):
        return newton_start_scale(mat, 2.0, halve=True, per_batch=per_batch)

    each = torch.stack([scale(one) for one in mat])
    torch.testing.assert_close(torch.func.vmap(scale)(mat), each)
    torch.testing.assert_close(torch.func.vmap(scale, in_dims=3)(mat.movedim(0, 3)), each)


@pytest.mark.sampled(4)
@pytest.mark.parametrize('num_iters', [1, 3, 20])
@pytest.mark.parametrize('ridge', [0.0, 1e-2])
@pytest.mark.parametrize('size', [49, 257])
def test_early_stopping_changes_no_inverse_not_even_of_singular_matrices(size, ridge, num_iters):
    mat = matrices(size)
    scale = newton_start_scale(mat, 2.0, halve=True, per_batch=False)
    options = dict(start_scale=scale, check=False)
    inverse, exact = (  # of which the second makes all steps
        newton_schulz_inverse(mat, num_iters, ridge, backend=backend, **options)
        for backend in ('native', 'reference')
    )
    # Rounding doubles in each step in directions that are left out: 2^20 epsilon, and less here.
    assert ((inverse - exact).abs().amax((-2, -1)) / exact.abs().amax((-2, -1))).max() < 1e-9


def test_a_start_by_a_number_a_tensor_and_a_matrix_are_the_same():
    mat = gaussian_matrix(9, 0.5, 2, 3)
    by_matrix = newton_schulz_inverse(mat, 8, start=0.01 * (mat + 0.01 * torch.eye(9)))
    for scale in (0.01, torch.tensor(0.01), torch.full((3,), 0.01), torch.full((2, 1), 0.01)):
        out = newton_schulz_inverse(mat, 8, start_scale=scale)
        # The fp32 tensors round 0.01 by 2e-8.
        torch.testing.assert_close(out, by_matrix, rtol=1e-6, atol=1e-6)
