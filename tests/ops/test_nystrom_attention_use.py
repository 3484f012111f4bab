"""How nystrom_attention is used: memory, transforms, meta and fake tensors, bad input."""

import functools

import pytest
import torch
from conftest import NO_GPU
from test_nystrom_attention import attend, case, problem, results_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, jacrev, vmap

from mmlaplace.analysis.measuring import tensor_memory
from mmlaplace.ops import nystrom_attention

DEVICES = ['cpu', pytest.param('cuda', marks=NO_GPU)]


@pytest.fixture(name='op')
def _op(computed_by):
    return computed_by(nystrom_attention)


def large(device, *sizes):
    tensors, options = problem(*sizes, 'laplacian', 1e-5, 'half')
    options['rotary'] = options['rotary'].to(device, torch.float32)
    return [t.to(device, torch.float32).requires_grad_() for t in tensors], options


@pytest.mark.parametrize('device', DEVICES)
def test_the_backward_keeps_inputs_and_small_matrices_alone(device):
    tensors, options = large(device, 1, 2, 1000, 1000, 49, 32)
    stored = []
    with torch.autograd.graph.saved_tensors_hooks(stored.append, lambda tensor: tensor):
        attend(nystrom_attention, tensors, options)
    inputs = {tensor.data_ptr() for tensor in (*tensors, options['rotary'])}
    others = [tuple(tensor.shape) for tensor in stored if tensor.data_ptr() not in inputs]
    small = {(1, 2, 49), (1, 2, 49, 49), (1, 2, 49, 32), (1, 2), (1, 2, 1, 1)}
    assert set(others) <= small
    assert {(1, 2, 49), (1, 2, 49, 49), (1, 2, 49, 32)} <= set(others)


# One head in parts, and many heads.
@pytest.mark.parametrize('sizes', [(1, 1, 16384, 16384, 64, 16), (2, 8, 2048, 2048, 64, 16)])
@pytest.mark.parametrize('device', DEVICES)
def test_nothing_of_tokens_times_landmarks_is_stored(sizes, device):
    tensors, options = large(device, *sizes)
    upstream = torch.randn_like(tensors[0])

    def forward(backend):
        with torch.no_grad():
            return (
                attend(functools.partial(nystrom_attention, backend=backend), tensors, options),
            )

    def both(backend):
        op = functools.partial(nystrom_attention, backend=backend)
        out = attend(op, tensors, options)
        return (out.detach(), *torch.autograd.grad(out, tensors, upstream))

    kernel = 4 * sizes[0] * sizes[1] * sizes[2] * sizes[4]  # bytes of one N x m matrix per head
    for job in (forward, both):
        job('native')
        assert tensor_memory(lambda: job('native'), tensors[0].device) < kernel / 4  # noqa: B023
        assert tensor_memory(lambda: job('reference'), tensors[0].device) > kernel  # noqa: B023


@pytest.mark.sampled(5)
@pytest.mark.parametrize('whitening_eps', [None, 1e-2])
@pytest.mark.parametrize('name', ['q', 'v', 'landmarks', 'inverse', 'scale'])
def test_func_transforms_give_what_loops_give(op, name, whitening_eps, device):
    tensors, options = problem(1, 2, 4, 4, 3, 4, 'laplacian', whitening_eps, 'half')
    options['rotary'] = options['rotary'].to(device)
    tensors = [tensor.to(device) for tensor in tensors]
    place = ('q', 'k', 'v', 'landmarks', 'inverse', 'scale').index(name)
    many = torch.stack([tensors[place], tensors[place] + 0.1, 2 * tensors[place]])

    def function(tensor):
        return attend(op, [*tensors[:place], tensor, *tensors[place + 1 :]], options)

    def loss(tensor):
        return function(tensor).square().sum()

    # Batches of products may be summed in another order.
    close = dict(rtol=1e-9, atol=1e-9)
    loops = torch.stack([function(each) for each in many])
    torch.testing.assert_close(vmap(function)(many), loops, **close)
    torch.testing.assert_close(vmap(function, in_dims=2)(many.movedim(0, 2)), loops, **close)
    grads = torch.stack([torch.autograd.functional.jacobian(loss, each) for each in many])
    torch.testing.assert_close(grad(loss)(many[0]), grads[0], **close)
    torch.testing.assert_close(vmap(grad(loss))(many), grads, **close)
    truth = torch.autograd.functional.jacobian(function, many[0])
    torch.testing.assert_close(jacrev(function)(many[0]), truth, **close)
    truth = torch.autograd.functional.hessian(loss, many[0])
    torch.testing.assert_close(jacrev(jacrev(loss))(many[0]), truth, **close)


def test_gradients_of_a_batch_of_cotangents(op, device):
    tensors, options = case('odd', device=device)
    tensors[0].requires_grad_()
    out = attend(op, tensors, options)
    cotangents = torch.randn(3, *out.shape, dtype=out.dtype, device=device)
    of_q = functools.partial(torch.autograd.grad, out, tensors[0], retain_graph=True)
    batched = of_q(cotangents, is_grads_batched=True)[0]
    one_by_one = torch.stack([of_q(cotangent)[0] for cotangent in cotangents])
    torch.testing.assert_close(batched, one_by_one)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize('name', ['odd', 'below-a-tile'])
def test_meta_and_fake_tensors_have_the_shapes_of_real_ones(name, dtype):
    tensors, options = case(name, dtype)
    real = results_of(nystrom_attention, tensors, options, tensors[0])

    def layout(tensors):
        return [(tensor.shape, tensor.dtype, tensor.stride()) for tensor in tensors]

    def empty(make):
        found = dict(options, rotary=make(options['rotary']))
        inputs = [make(tensor) for tensor in tensors]
        return results_of(nystrom_attention, inputs, found, inputs[0])

    assert layout(empty(lambda tensor: tensor.to('meta'))) == layout(real)
    with FakeTensorMode() as mode:
        assert layout(empty(mode.from_tensor)) == layout(real)


Q, ONE = torch.randn(1, 2, 6, 4), torch.ones(1)
ARGUMENTS = dict(
    q=Q, k=Q, v=Q, landmarks=Q[:, :, :3], inverse=torch.ones(1, 2, 3, 3), bandwidth=4.0
)


@pytest.mark.parametrize(
    ('change', 'error', 'message'),
    [
        (dict(kernel='cauchy'), ValueError, "'laplacian', 'gaussian'.*got 'cauchy'"),
        (dict(rotary_form='whole'), ValueError, "'half', 'pairs'.*got 'whole'"),
        (dict(backend='triton'), ValueError, "got 'triton'"),
        (dict(q=None), TypeError, 'q must be a tensor, got NoneType'),
        (dict(v=[1.0]), TypeError, 'v must be a tensor, got list'),
        (dict(q=Q.int(), k=Q.int(), v=Q.int()), TypeError, 'q must be float64.*got torch.int32'),
        (dict(q=Q[0]), ValueError, r'q must have the four axes.*\(2, 6, 4\)'),
        (dict(k=Q[..., :3]), ValueError, r'q \(1, 2, 6, 4\) and k \(1, 2, 6, 3\) must agree'),
        (dict(k=Q.to('meta')), ValueError, 'cpu.*meta.*share dtype and device'),
        (dict(v=Q[:, :, :5]), ValueError, r'v must be \(1, 2, 6, 4\) on cpu, got \(1, 2, 5, 4\)'),
        (dict(v=Q.to('meta')), ValueError, 'v must be .* on cpu, got .* on meta'),
        (dict(landmarks=None), TypeError, 'landmarks must be a tensor, got NoneType'),
        (dict(landmarks=ONE), ValueError, r"landmarks must be \(1, 2, 'm', 4\).*got \(1,\)"),
        (dict(landmarks=Q[..., :2]), ValueError, r'\(1, 2, 6, 4\) on cpu, got \(1, 2, 6, 2\)'),
        (dict(inverse=Q), ValueError, r'inverse must be \(1, 2, 3, 3\).*got \(1, 2, 6, 4\)'),
        (dict(inverse=Q.int()), TypeError, 'inverse must be float64.*got torch.int32'),
        (dict(scale=2.0), TypeError, 'scale must be a tensor, got float'),
        (dict(scale=torch.tensor(2)), TypeError, 'scale must be float64.*got torch.int64'),
        (dict(scale=torch.ones(3, 1, 1)), ValueError, r'\(1, 2, 1, 1\) on cpu, got \(3, 1, 1\)'),
        (dict(scale=Q), ValueError, r'scale must broadcast.*got \(1, 2, 6, 4\)'),
        (dict(scale=ONE.to('meta')), ValueError, r'on cpu, got \(1,\) on meta'),
        (dict(rotary=[1]), TypeError, 'rotary must be a tensor, got list'),
        (dict(rotary=torch.ones(2, 1, 6).int()), TypeError, 'rotary must be.*got torch.int32'),
        (dict(rotary=torch.ones(2, 1, 5)), ValueError, r'\(2, pairs, 6\) on cpu, got \(2, 1, 5\)'),
        (dict(rotary=torch.ones(2, 1, 6, device='meta')), ValueError, 'on cpu, got.* on meta'),
        (dict(rotary=torch.ones(2, 3, 6)), ValueError, '4 channels have no 3 pairs'),
        (
            dict(k=Q[:, :, :5], v=Q[:, :, :5], rotary=torch.ones(2, 1, 6)),
            ValueError, 'as many queries as keys, got 6 queries and 5 keys',
        ),
        (dict(bandwidth=ONE), TypeError, 'bandwidth must be a number, got a tensor'),
        (dict(bandwidth='4'), TypeError, "got '4' of type str"),
        (dict(bandwidth=-1.0), ValueError, 'positive and finite, got -1.0'),
        (dict(bandwidth=1e-39), ValueError, 'at least 4.24e-39.*got 1e-39'),
        (dict(whitening_eps=0.0), ValueError, 'whitening_eps must be positive and finite, got 0.0'),
        (dict(whitening_eps=float('nan')), ValueError, 'whitening_eps.*got nan'),
    ],
)  # fmt: skip
def test_bad_input_is_quoted(change, error, message):
    with pytest.raises(error, match=message):
        nystrom_attention(**dict(ARGUMENTS, **change))


def test_the_compiled_op_itself_quotes_bad_input():
    q, marks, inverse, scale = Q, Q[:, :, :3], torch.ones(1, 2, 3, 3), torch.ones(1, 2)
    for change, message in (
        (dict(q=Q[0]), r'must be \(B, heads, ., .\) on one device, got \[2, 6, 4\]'),
        (dict(v=Q[..., :3]), r'v \[1, 2, 6, 3\].*do not fit q \[1, 2, 6, 4\]'),
        (dict(k=Q.double()), 'must share their dtype, got Float, Double'),
        (dict(scale=ONE), r'scale must be \(B, heads\), got \[1\]'),
        (dict(rotary=torch.ones(2, 3, 6)), r'2 \* pairs <= 4 and N = 6.*\[2, 3, 6\]'),
        (dict(kernel='cauchy'), 'laplacian or gaussian, got cauchy'),
    ):
        arguments = dict(
            q=q, k=Q, v=Q, landmarks=marks, inverse=inverse, scale=scale, rotary=None,
            kernel='laplacian', bandwidth=4.0, whitening=-1.0, adjacent=False,
        )  # fmt: skip
        with pytest.raises(RuntimeError, match=message):
            torch.ops.mmlaplace.nystrom_attention(**dict(arguments, **change))
