"""Newton–Schulz and Cholesky inverses: truth, residual, conditioning, and SOFT's start."""

import functools

import pytest
import torch
from called_ops import Called
from conftest import ON_X86
from op_results import results

from mmlaplace.ops import (
    cholesky_inverse,
    inverse_residual,
    laplacian_kernel,
    newton_schulz_inverse,
)
from mmlaplace.ops._inverse import most_rows
from mmlaplace.ops.newton_start_scale import newton_start_scale


def kernel_matrix(size, batch=3, spread=1.0, dtype=torch.float64):
    points = spread * torch.randn(batch, 1, size, 32, dtype=torch.float64)
    return laplacian_kernel(points, points, 4.0)[:, 0].to(dtype)


def fitting(backend, mat):
    """``'auto'`` instead of ``'native'`` where matrices are too large for the compiled op."""
    return 'auto' if backend == 'native' and mat.shape[-1] > most_rows(mat) else backend


FUNCTIONS = {'newton_schulz': newton_schulz_inverse, 'cholesky': cholesky_inverse}
names = pytest.mark.parametrize('name', FUNCTIONS)
backends = pytest.mark.parametrize('backend', ['native', 'reference'])
both = pytest.mark.parametrize('per_batch', [False, True])


@pytest.fixture(params=FUNCTIONS)
def inverse(request, backend, device):
    """Inverts tensors of the CPU on a device, by steps until converged or at once."""
    steps = dict(num_iters=30) if request.param == 'newton_schulz' else {}

    def invert(mat, ridge, **options):
        mat, options = mat.to(device), dict(steps, **options)
        function = FUNCTIONS[request.param]
        return function(mat, ridge=ridge, backend=fitting(backend, mat), **options).cpu()

    return invert


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize('size', [1, 2, 7, 49, 97, 128, 200, 257])
def test_inverts(inverse, size, dtype):
    mat, ridge = kernel_matrix(size, dtype=dtype), 1e-2
    identity = torch.eye(size, dtype=torch.float64)
    eigenvalues, vectors = torch.linalg.eigh(mat.double() + ridge * identity)
    assert eigenvalues.min() > ridge / 2  # though halves have rounded it
    out = inverse(mat, ridge)
    assert out.dtype == dtype
    truth = vectors / eigenvalues.unsqueeze(-2) @ vectors.mT
    wide = torch.finfo(dtype if dtype == torch.float64 else torch.float32).eps
    # Two products in a row round, each as a sum of so many terms does.
    allowed = wide * (2 * size + eigenvalues.max() / eigenvalues.min())
    allowed += torch.finfo(dtype).eps if dtype.itemsize == 2 else 0
    assert (out.double() - truth).abs().max() <= allowed * truth.abs().max()


@ON_X86
@names
def test_inverses_of_far_landmarks_have_zeros_where_numbers_would_be_slow(name):
    identity = torch.eye(8)
    inverse = FUNCTIONS[name](identity + 1e-39, ridge=0.0, backend='native')
    torch.testing.assert_close(inverse, identity)
    assert not inverse[identity == 0].any()


def test_residual_shows_what_too_few_steps_leave_and_a_limit_of_it_names_the_fix():
    mat = kernel_matrix(49, spread=0.1)
    inverse, residual = newton_schulz_inverse(mat, num_iters=3, return_residual=True)
    assert residual.shape == (3,) and not residual.requires_grad
    torch.testing.assert_close(residual, inverse_residual(mat, inverse, 1e-2))
    assert residual.min() > 1e-3
    assert newton_schulz_inverse(mat, num_iters=25, return_residual=True)[1].max() < 1e-10
    mat = torch.stack([torch.eye(5), kernel_matrix(5, 1, 1e-6, torch.float32)[0]])
    residual = inverse_residual(mat, mat, 1e-2)
    with torch.autocast('cpu', dtype=torch.bfloat16):  # of products in fp32
        assert torch.equal(inverse_residual(mat, mat, 1e-2), residual)
    message = r'residual of 1 of 2 .* max_residual \(0.001\).* of matrix 1; raise num_iters'
    with pytest.raises(ValueError, match=message):
        newton_schulz_inverse(mat, 3, max_residual=1e-3)
    newton_schulz_inverse(mat, 20, max_residual=1e-3)
    mat[0, 0, 0] = float('nan')
    with pytest.raises(ValueError, match='residual of 1 of 2 .* largest nan of matrix 0'):
        newton_schulz_inverse(mat, 20, max_residual=1e-3, check=False)


def test_a_matrix_without_an_inverse_is_named(inverse):
    bad = torch.diag(torch.tensor([1.0, -1.0, 2.0]))
    message = r'(?s)1 of 2 matrices .*\(2, 3, 3\) .* matrix 1 is -0.99, .*positive definite'
    with pytest.raises(ValueError, match=message):
        inverse(torch.stack([torch.eye(3), bad]), 1e-2)
    mat = kernel_matrix(4)
    mat[1, 2, 3] = float('nan')
    with pytest.raises(ValueError, match=r'nan at \[1, 2, 3\] of shape \(3, 4, 4\)'):
        inverse(mat, 1e-2)


@pytest.mark.parametrize('check', [True, False])
def test_a_right_batch_costs_one_read_with_the_check_and_none_without(inverse, check):
    with Called() as called:
        inverse(kernel_matrix(9), 1e-2, check=check)
    assert len(called.reads) == int(check)


# A NaN or an infinity in either triangle or on the diagonal.
@pytest.mark.parametrize('value', [float('nan'), -float('inf')])
@pytest.mark.parametrize('place', [(1, 3), (3, 1), (6, 6)])
def test_without_the_check_a_bad_value_spoils_its_matrix_alone(inverse, place, value):
    mat = kernel_matrix(7, dtype=torch.float32)
    clean = inverse(mat, 1e-2)
    mat[1][place] = value
    out = inverse(mat, 1e-2, check=False)
    assert out[1].isnan().all()
    # No batch's product depends on another's values, but reciprocals of one may round otherwise.
    torch.testing.assert_close(out[[0, 2]], clean[[0, 2]])


@backends
@pytest.mark.parametrize('size', [2, 40])
def test_cholesky_gives_nan_where_it_fails_and_no_plausible_number(size, backend):
    negative, identity = torch.tensor([1.0, -1e-3]).repeat(size // 2).diag(), torch.eye(size)
    mats = torch.stack([identity, negative, torch.ones(size, size), 2 * identity])
    out = cholesky_inverse(mats, 0.0, check=False, backend=backend)
    assert out[1:3].isnan().all() and torch.equal(out[0], identity)
    # A root of two, squared.
    torch.testing.assert_close(out[3], identity / 2)


@backends
def test_cholesky_inverts_the_mean_of_both_triangles(backend):
    mat = kernel_matrix(9)
    skewed = mat + 0.1 * torch.randn(9, 9, dtype=torch.float64).triu(1)
    mean = (skewed + skewed.mT) / 2
    upstream = torch.randn_like(mat)
    found, expected = (
        results(functools.partial(cholesky_inverse, backend=backend), [mat], upstream)
        for mat in (skewed, mean)
    )
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found[1], found[1].mT)  # both triangles count
    # Newton-Schulz inverts the matrix as it is.
    truth = torch.linalg.inv(skewed + 1e-2 * torch.eye(9))
    torch.testing.assert_close(newton_schulz_inverse(skewed, 40), truth)


# Of landmarks: apart, near, all but equal, and equal. The last two have singular matrices.
SPREADS = [0.5, 0.05, 1e-4, 0.0]


def gaussian_matrix(size, spread, *batch):
    points = spread * torch.randn(*batch, size, 8, dtype=torch.float64)
    return torch.exp(-torch.cdist(points, points).square() / 2)


# A scale for the matrices of SOFT.
of_soft = functools.partial(newton_start_scale, factor=2.0, halve=True)


def matrices(size=49):
    return torch.stack([gaussian_matrix(size, spread, 3) for spread in SPREADS])


@both
@pytest.mark.parametrize(('factor', 'halve'), [(2.0, True), (1.8, False)])
@pytest.mark.parametrize('size', [1, 7, 49, 257])
def test_the_compiled_scale_is_that_of_ten_halvings_under_vmap_too(size, factor, halve, per_batch):
    mat, rule = matrices(size), dict(factor=factor, halve=halve, per_batch=per_batch)
    native = fitting('native', mat)
    scale = newton_start_scale(mat, **rule, backend=native)
    # Sums in another order. A halving more or less would be a factor of two.
    truth = newton_start_scale(mat, **rule, backend='reference')
    torch.testing.assert_close(scale, truth, rtol=1e-12, atol=0)
    own = functools.partial(newton_start_scale, **rule)
    each = torch.stack([own(one) for one in mat])
    torch.testing.assert_close(torch.func.vmap(own, in_dims=3)(mat.movedim(0, 3)), each)
    assert not own(mat.requires_grad_()).requires_grad
    halves = newton_start_scale(mat.bfloat16(), **rule, backend=native)
    assert halves.dtype == torch.float32


def near_identity(size):
    """Matrices for which a start at 2 / r^2 times W ends at 0, or between 0 and the inverse."""
    identity = torch.eye(size)
    some = torch.rand(size, size, dtype=torch.float64)
    for off in (some + some.T, torch.ones(size, size)):  # the latter of equal row sums
        off = off.clone().fill_diagonal_(0)
        yield from (identity + shift * off for shift in (0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3))


@backends
@both
@pytest.mark.parametrize('size', [1, 2, 49, 257])
def test_matrices_near_the_identity_have_their_inverse(size, per_batch, backend):
    mat = torch.stack([*near_identity(size)]).float()
    backend = fitting(backend, mat)
    for mats in (mat, *mat[:, None]):  # also as batches of one
        scale = of_soft(mats, per_batch=per_batch, backend=backend)
        inverse = newton_schulz_inverse(mats, start_scale=scale, ridge=0.0, backend=backend)
        truth = torch.linalg.inv(mats.double())
        # Rounding in fp32 of products of 257.
        torch.testing.assert_close(inverse.double(), truth, atol=1e-5, rtol=0)


@backends
@both
def test_a_nan_reaches_the_matrices_that_share_the_scale(per_batch, backend):
    mat = matrices(7)
    mat[1, 2, 3, 4] = float('nan')
    scale = of_soft(mat, per_batch=per_batch, backend=backend)
    assert scale.isnan().sum() == (12 if per_batch else 1) and scale[1, 2].isnan()
    mat = 0.97 * torch.eye(300).expand(1, 300, 300)  # in bf16, 1 / 1.999 is a half
    backend = fitting(backend, mat)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        scale = of_soft(mat, per_batch=per_batch, backend=backend)
    torch.testing.assert_close(scale, torch.full((1,), 1 / 0.97**2))
    assert of_soft(mat[:0], per_batch=per_batch, backend=backend).shape == (0,)


@pytest.mark.sampled(4)
@pytest.mark.parametrize('num_iters', [1, 3, 20])
@pytest.mark.parametrize('ridge', [0.0, 1e-2])
@pytest.mark.parametrize('size', [49, 257])
def test_early_stopping_changes_no_inverse_not_even_of_singular_matrices(size, ridge, num_iters):
    mat = matrices(size)
    options = dict(start_scale=of_soft(mat, per_batch=False), check=False)
    inverse, exact = (  # of which the second makes all steps
        newton_schulz_inverse(mat, num_iters, ridge, backend=backend, **options)
        for backend in (fitting('native', mat), 'reference')
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
