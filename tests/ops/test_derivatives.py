"""Derivatives of any order, torch.func's transforms, and the gradient of a learned bandwidth."""

import functools

import pytest
import torch
from conftest import NO_GPU, doubles
from test_linear_attention import attend as linear
from test_linear_attention import case as linear_case
from test_nystrom_attention import problem
from test_pooled_landmarks import table
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacrev, vmap

from mmlaplace import ops
from mmlaplace.ops.table import OPS as TABLE

KERNELS = dict(laplacian=ops.laplacian_kernel, gaussian=ops.gaussian_kernel)
BACKENDS = ('native', 'reference')


@pytest.fixture(params=['cpu', pytest.param('cuda', marks=NO_GPU)])
def device(request):
    return request.param


def tokens(batch=1):
    # Apart in every coordinate by far more than gradcheck's steps: no kink of the L1 distance.
    q = doubles(batch, 2, 3, 3)
    return [q, torch.rand_like(q[:, :, :2]) + 3]


def with_bandwidths():
    # One key and two queries, as the second derivatives take time by the square of the values.
    return [*(tensor[:, :, 1:] for tensor in tokens()), 1 + torch.rand(2, 1, 1).double()]


def kernel(op):
    return lambda q, k, *bandwidth, backend: op(q, k, *(bandwidth or [1.7]), backend=backend)


def matrices():
    factor = doubles(2, 4, 4)
    return [factor @ factor.mT]


def newton_from(start, m, backend):
    scale = (m.norm(dim=(-2, -1)) + 2) ** -2
    given = dict(start_scale=scale, backend=backend)
    given = dict(start=m * scale[..., None, None]) if start == 'matrix' else given
    return ops.newton_schulz_inverse(m, 40, 0.5, **given)


def placed(options, like):
    """Options, of which those that are tensors are on the device of another."""
    return {k: v.to(like.device) if torch.is_tensor(v) else v for k, v in options.items()}


def attention(kernel, whitening_eps, form):
    sizes = (1, 2, 3, 3 if form else 2, 2, 4, kernel, whitening_eps, form)
    options = problem(*sizes)[1]

    def attend(*tensors, backend):
        given = placed(dict(options, scale=tensors[-1], backend=backend), tensors[0])
        return ops.nystrom_attention(*tensors[:-1], **given)

    return attend, lambda: problem(*sizes)[0]


def pool(form, **options):
    if form:
        options.update(rotary=table(6, 2), rotary_form=form)

    def pooled(k, backend):
        return ops.pooled_landmarks(k, (2, 3), backend=backend, **placed(options, k))

    return pooled, lambda: [doubles(1, 2, 6, 5)]


def linear_attention(name):
    attend = functools.partial(linear, **linear_case(name)[1])
    return attend, lambda: [tensor[:1, :2, :3, :4] for tensor in linear_case(name)[0]]


def of_table(name):
    """The call of an op in the table of ops."""
    row, op = TABLE[name], getattr(ops, name)

    def call(*tensors, backend):
        return op(*tensors, **row.options, backend=backend)

    return call, lambda: [tensor.double() for tensor in row.tensors().values()]


# Functions of tensors and a backend, and what makes the tensors, by cases of ops.
CASES = {
    'laplacian': (kernel(ops.laplacian_kernel), tokens),
    'laplacian, bandwidths': (kernel(ops.laplacian_kernel), with_bandwidths),
    'gaussian': (kernel(ops.gaussian_kernel), tokens),
    'gaussian, bandwidths': (kernel(ops.gaussian_kernel), with_bandwidths),
    'newton': (lambda m, backend: ops.newton_schulz_inverse(m, 30, 0.5, backend=backend), matrices),
    'newton, start': (functools.partial(newton_from, 'matrix'), matrices),
    'newton, scale': (functools.partial(newton_from, 'scale'), matrices),
    'cholesky': (lambda m, backend: ops.cholesky_inverse(m, 0.5, backend=backend), matrices),
    'attention, half': attention('laplacian', 0.1, 'half'),
    'attention, gaussian': attention('gaussian', 0.1, None),
    'attention, pairs': attention('laplacian', None, 'pairs'),
    'attention, linear': linear_attention('odd'),
    'attention, streams': linear_attention('all'),
    'pooled': pool(None, ratio=2),
    'pooled, half': pool('half', cells=(2, 2)),
    'pooled, pairs': pool('pairs', ratio=2),
}
SEVERAL = (
    'laplacian_kernel',
    'gaussian_kernel',
    'newton_schulz_inverse',
    'cholesky_inverse',
    'nystrom_attention',
    'linear_attention',
    'pooled_landmarks',
)
FROM_TABLE = [name for name in TABLE if name not in SEVERAL]  # newer ops, which have no case above
CASES.update({name: of_table(name) for name in FROM_TABLE})


def prepared(name, backend, device):
    function, make = CASES[name]
    return functools.partial(function, backend=backend), [t.to(device) for t in make()]


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('name', CASES)
def test_derivatives_of_every_order(name, backend, device):
    function, tensors = prepared(name, backend, device)
    tensors = [tensor.requires_grad_() for tensor in tensors]
    # The fast mode compares projections of the derivatives on random directions.
    assert gradcheck(function, tensors, fast_mode=name in FROM_TABLE)
    fast = name.startswith('attention') or name in FROM_TABLE
    assert gradgradcheck(function, tensors, fast_mode=fast)


CHOSEN = dict(all=slice(None), first=slice(1), last=slice(-1, None))


@pytest.mark.sampled(4, 4)
@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('chosen', CHOSEN)
@pytest.mark.parametrize('name', CASES)
def test_func_transforms_give_what_loops_give(name, chosen, backend, device):
    function, tensors = prepared(name, backend, device)
    places = range(len(tensors))[CHOSEN[chosen]]
    many = [torch.stack([tensors[i], tensors[i] + 0.1, 2 * tensors[i]]) for i in places]
    first, argnums = [each[0] for each in many], tuple(range(len(places)))
    # Batches of products may be summed in another order; the inverses' entries are up to 2.
    close = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-9)

    def of(*chosen):
        return function(*({**dict(enumerate(tensors)), **dict(zip(places, chosen))}.values()))

    def loss(*chosen):
        return of(*chosen).square().sum()

    loops = torch.stack([of(*each) for each in zip(*many)])
    close(vmap(of)(*many), loops)
    close(vmap(of, in_dims=2)(*(each.movedim(0, 2) for each in many)), loops)
    for scalar in (loss, lambda *chosen: of(*chosen).sum()):  # whose cotangents have no batch
        loops = [torch.autograd.functional.jacobian(scalar, each) for each in zip(*many)]
        close(vmap(grad(scalar, argnums))(*many), tuple(map(torch.stack, zip(*loops))))
    jacobian = torch.autograd.functional.jacobian(of, tuple(first))
    close(jacrev(of, argnums)(*first), jacobian)
    hessian = torch.autograd.functional.hessian(lambda one: loss(one, *first[1:]), first[0])
    close(vmap(jacrev(grad(loss)))(*many)[0], hessian)


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.parametrize('name', KERNELS)
@pytest.mark.parametrize('shape', [(), (2, 1, 1), (3, 1, 1, 1), (3, 2, 1, 1)])
def test_each_head_has_its_bandwidth_of_a_tensor(name, backend, shape, device):
    op = functools.partial(KERNELS[name], backend=backend)
    q, k = (tensor.to(device).requires_grad_() for tensor in tokens(batch=3))
    bandwidth = (1 + torch.rand(shape, dtype=torch.float64, device=device)).requires_grad_()
    each = bandwidth.expand(3, 2, 1, 1)
    numbers = [op(q, k, each[b, h].item())[b, h] for b in range(3) for h in range(2)]
    torch.testing.assert_close(op(q, k, bandwidth).flatten(0, 1), torch.stack(numbers))
    assert op(q.half(), k.half(), bandwidth.float()).dtype == torch.float16
