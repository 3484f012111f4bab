"""Derivatives of any order, torch.func's transforms, and the gradient of a learned bandwidth."""

import functools

import pytest
import torch
from conftest import NO_GPU
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacrev, vmap

from mmlaplace.ops import (
    cholesky_inverse,
    gaussian_kernel,
    laplacian_kernel,
    newton_schulz_inverse,
)

DEVICES = [('cpu', ()), ('cuda', NO_GPU)]


KERNELS = {'laplacian': laplacian_kernel, 'gaussian': gaussian_kernel}
# Both kernels as functions of (q, k), the inverses as functions of one matrix.
FUNCTIONS = {
    f'{name}-{backend}': lambda q, k, op=op, backend=backend: op(q, k, 1.7, backend=backend)
    for name, op in KERNELS.items()
    for backend in ('native', 'reference')
}
INVERSES = {
    'newton_schulz-native': lambda m: newton_schulz_inverse(m, 30, 0.5, backend='native'),
    'newton_schulz-reference': lambda m: newton_schulz_inverse(m, 30, 0.5, backend='reference'),
    'newton_schulz-start': lambda m: newton_schulz_inverse(
        m, 40, 0.5, start=m / (m.norm(dim=(-2, -1), keepdim=True) + 2) ** 2
    ),
    'newton_schulz-scale': lambda m: newton_schulz_inverse(
        m, 40, 0.5, start_scale=(m.norm(dim=(-2, -1)) + 2) ** -2, backend='native'
    ),
    'cholesky-native': lambda m: cholesky_inverse(m, 0.5, backend='native'),
    'cholesky-reference': lambda m: cholesky_inverse(m, 0.5, backend='reference'),
}


@pytest.fixture(params=[pytest.param(device, marks=marks) for device, marks in DEVICES])
def device(request):
    return request.param


def tokens(device, batch=1):
    # Apart in every coordinate by far more than gradcheck's steps: no kink of the L1 distance.
    q = torch.randn(batch, 2, 3, 3, dtype=torch.float64, device=device)
    return q.requires_grad_(), (torch.rand_like(q[:, :, :2]) + 3).detach().requires_grad_()


def matrices(device, *batch):
    factor = torch.randn(*batch, 4, 4, dtype=torch.float64, device=device)
    return (factor @ factor.mT).requires_grad_()


@pytest.mark.parametrize('name', FUNCTIONS)
def test_second_and_third_derivatives_of_the_kernels(name, device):
    q, k = tokens(device)
    assert gradgradcheck(FUNCTIONS[name], (q, k))

    def first(q, k):
        (grad_q,) = torch.autograd.grad(FUNCTIONS[name](q, k).square().sum(), q, create_graph=True)
        return grad_q

    assert gradgradcheck(first, (q, k))


@pytest.mark.parametrize('name', INVERSES)
def test_second_and_third_derivatives_of_the_inverses(name, device):
    mat = matrices(device, 2)
    assert gradcheck(INVERSES[name], mat)
    assert gradgradcheck(INVERSES[name], mat)

    def first(mat):
        return torch.autograd.grad(INVERSES[name](mat).sum(), mat, create_graph=True)[0]

    assert gradgradcheck(first, matrices(device, 1))


@pytest.mark.parametrize('name', INVERSES)
def test_the_second_derivative_of_one_over_a_number(name, device):
    # f = 1 / (P + 0.5)^2 has f'' = 6 / (P + 0.5)^4.
    number = torch.ones(1, 1, dtype=torch.float64, device=device, requires_grad=True)
    (first,) = torch.autograd.grad(INVERSES[name](number).square().sum(), number, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), number)
    # The iteration has converged to the last digit.
    torch.testing.assert_close(second, torch.full_like(second, 6 / 1.5**4))


@pytest.mark.parametrize('name', FUNCTIONS)
def test_func_transforms_of_the_kernels_give_what_loops_give(name, device):
    function = FUNCTIONS[name]
    q, k = (t.detach() for t in tokens(device, batch=6))
    q, k = q.unflatten(0, (3, 2)), k.unflatten(0, (3, 2))

    def loss(q, k):
        return function(q, k).square().sum()

    loops = torch.stack([function(*pair) for pair in zip(q, k)])
    torch.testing.assert_close(vmap(function)(q, k), loops)
    shared = torch.stack([function(x, k[0]) for x in q])
    torch.testing.assert_close(vmap(function, in_dims=(0, None))(q, k[0]), shared)
    torch.testing.assert_close(vmap(function, in_dims=(2, None))(q.movedim(0, 2), k[0]), shared)

    grads = []
    for pair in zip(q, k):
        pair = [t.clone().requires_grad_() for t in pair]
        grads.append(torch.autograd.grad(loss(*pair), pair))
    for argument in (0, 1):
        truth = torch.stack([of[argument] for of in grads])
        torch.testing.assert_close(grad(loss, argument)(q[0], k[0]), truth[0])
        torch.testing.assert_close(vmap(grad(loss, argument))(q, k), truth)
    jacobian = torch.autograd.functional.jacobian(function, (q[0], k[0]))
    torch.testing.assert_close(jacrev(function, (0, 1))(q[0], k[0]), jacobian)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_func_gives_second_derivatives_of_the_kernels(name, device):
    q, k = (t.detach() for t in tokens(device))

    def loss(q):
        return FUNCTIONS[name](q, k).square().sum()

    truth = torch.autograd.functional.hessian(loss, q)
    torch.testing.assert_close(jacrev(jacrev(loss))(q), truth)
    torch.testing.assert_close(vmap(jacrev(grad(loss)))(q[None])[0], truth)


@pytest.mark.parametrize('name', INVERSES)
def test_func_transforms_of_the_inverses_give_what_loops_give(name, device):
    function = INVERSES[name]
    mats = matrices(device, 3, 2).detach()

    def loss(mat):
        return function(mat).square().sum()

    # Batches of products may be summed in another order; the inverses' entries are up to 2.
    close = dict(rtol=1e-9, atol=1e-9)
    loops = torch.stack([function(mat) for mat in mats])
    torch.testing.assert_close(vmap(function)(mats), loops, **close)
    torch.testing.assert_close(vmap(function, in_dims=2)(mats.movedim(0, 2)), loops, **close)
    grads = torch.stack([torch.autograd.functional.jacobian(loss, mat) for mat in mats])
    torch.testing.assert_close(grad(loss)(mats[0]), grads[0], **close)
    torch.testing.assert_close(vmap(grad(loss))(mats), grads, **close)
    truth = torch.autograd.functional.jacobian(function, mats[0])
    torch.testing.assert_close(jacrev(function)(mats[0]), truth, **close)
    truth = torch.autograd.functional.hessian(loss, mats[0])
    torch.testing.assert_close(jacrev(jacrev(loss))(mats[0]), truth, **close)


def test_a_gradient_taken_after_its_transform_ended(device):
    q, k = (t.detach() for t in tokens(device))
    out, pull_back = torch.func.vjp(lambda q: laplacian_kernel(q, k, 1.7), q)
    truth = grad(lambda q: laplacian_kernel(q, k, 1.7).sum())(q)
    torch.testing.assert_close(pull_back(torch.ones_like(out))[0], truth)


@pytest.mark.parametrize('name', FUNCTIONS)
def test_gradients_of_a_batch_of_cotangents(name, device):
    q, k = tokens(device)
    out = FUNCTIONS[name](q, k)
    cotangents = torch.randn(3, *out.shape, dtype=out.dtype, device=device)
    batched = torch.autograd.grad(out, q, cotangents, is_grads_batched=True, retain_graph=True)[0]
    one_by_one = [torch.autograd.grad(out, q, c, retain_graph=True)[0] for c in cotangents]
    torch.testing.assert_close(batched, torch.stack(one_by_one))


@pytest.mark.sampled(5)
@pytest.mark.parametrize('backend', ['native', 'reference'])
@pytest.mark.parametrize('name', KERNELS)
@pytest.mark.parametrize('shape', [(), (1,), (2, 1, 1), (1, 2, 1, 1), (3, 1, 1, 1), (3, 2, 1, 1)])
def test_a_bandwidth_that_is_a_tensor_gets_its_gradient(name, backend, shape, device):
    op = KERNELS[name]
    # One key and two queries, as the second derivatives take time by the square of the values.
    q, k = (t[:, :, 1:].detach().requires_grad_() for t in tokens(device, batch=3))
    bandwidth = (1 + torch.rand(shape, dtype=torch.float64, device=device)).requires_grad_()
    function = functools.partial(op, backend=backend)
    assert gradcheck(function, (q, k, bandwidth))
    assert gradgradcheck(function, (q, k, bandwidth))
    out = function(q, k, bandwidth)
    each = bandwidth.expand(3, 2, 1, 1)
    for b in range(3):
        for h in range(2):
            number = op(q[b : b + 1, h : h + 1], k[b : b + 1, h : h + 1], each[b, h].item())
            torch.testing.assert_close(out[b : b + 1, h : h + 1], number)


@pytest.mark.parametrize('name', KERNELS)
def test_a_bandwidth_that_is_a_tensor_under_vmap_and_in_halves(name, device):
    op = KERNELS[name]
    q, k = (t.detach() for t in tokens(device))
    bandwidths = torch.tensor([1.0, 2.0, 3.0], device=device, dtype=torch.float64)
    truth = torch.stack([op(q, k, bandwidth.item()) for bandwidth in bandwidths])
    torch.testing.assert_close(vmap(lambda bandwidth: op(q, k, bandwidth))(bandwidths), truth)
    half = op(q.half(), k.half(), torch.tensor(2.0, device=device))
    assert half.dtype == torch.float16
    # Of the same halves: both round once, from sums in fp32.
    torch.testing.assert_close(half, op(q.half(), k.half(), 2.0))


@pytest.mark.parametrize('name', KERNELS)
@pytest.mark.parametrize(
    ('bandwidth', 'error', 'message'),
    [
        ('4', TypeError, "number or a floating tensor, got '4' of type str"),
        (True, TypeError, 'got True of type bool'),
        (None, TypeError, 'got None of type NoneType'),
        (4 + 0j, TypeError, r'got \(4\+0j\) of type complex'),
        ([4.0], TypeError, r'got \[4.0\] of type list'),
        (torch.tensor(4), TypeError, 'bandwidth must be float64.*got torch.int64'),
        (torch.tensor(True), TypeError, 'got torch.bool'),
        (torch.tensor(4j), TypeError, 'got torch.complex64'),
        (torch.ones(3), ValueError, r'broadcast to .* \(1, 2, 1, 1\), got shape \(3,\)'),
        (torch.ones(5, 1), ValueError, r'got shape \(5, 1\)'),
        (torch.ones(1, 1, 1, 1, 1), ValueError, r'got shape \(1, 1, 1, 1, 1\)'),
        (float('inf'), ValueError, 'got inf'),
    ],
)
def test_a_bandwidth_of_another_kind_is_quoted(name, bandwidth, error, message):
    q = torch.randn(1, 2, 4, 3)
    with pytest.raises(error, match=message):
        KERNELS[name](q, q, bandwidth)
