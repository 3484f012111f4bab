"""Promises of every op: threads, empty inputs, autocast, memory and references."""

import functools

import pytest
import torch
from conftest import NO_GPU, by_threads
from op_results import results
from test_linear_attention import NAMES as LINEAR_NAMES
from test_linear_attention import case as linear_case
from test_nystrom_attention import NAMES, problem
from test_nystrom_attention import case as attention_case
from test_pooled_landmarks import case as pooled_case
from test_pooled_landmarks import table

from mmlaplace import ops
from mmlaplace.analysis.measuring import tensor_memory
from mmlaplace.ops.table import OPS as TABLE

KERNELS = ('laplacian_kernel', 'gaussian_kernel')
INVERSES = ('newton_schulz_inverse', 'cholesky_inverse')
READS_HALVES = [name for name, row in TABLE.items() if row.reads_halves]
OPS = {name: getattr(ops, name) for name in TABLE}


def with_numerator(q, k, v, top_q, top_k, **options):
    return ops.linear_attention(q, k, v, numerator=(top_q, top_k), **options)


OPS['linear_attention'] = with_numerator
names = pytest.mark.parametrize('name', OPS)


def example(name, dtype=torch.float64, device='cpu', size=30):
    """Tensors of an op by their names, and its other arguments."""
    if name == 'nystrom_attention':
        tensors, options = attention_case('odd' if size == 30 else 'three-parts', dtype, device)
        return dict(zip(NAMES, tensors)), options
    if name == 'linear_attention':
        tensors, options = linear_case('numerator' if size == 30 else 'three-parts', dtype, device)
        return dict(zip(LINEAR_NAMES, tensors)), options
    if name == 'pooled_landmarks':
        k, options = pooled_case('uneven-cells' if size == 30 else 'wide-rows', dtype, device)
        return dict(k=k), options
    if name not in (*KERNELS, *INVERSES):  # a newer op
        tensors = TABLE[name].tensors().items()
        return {k: v.to(device, dtype) for k, v in tensors}, dict(TABLE[name].options)
    q, k = (torch.randn(2, 3, count, 16, dtype=torch.float64) for count in (size, 9))
    if name in INVERSES:
        return dict(mat=ops.laplacian_kernel(k, k, 16.0).to(device, dtype)), dict(ridge=0.1)
    return dict(q=q.to(device, dtype), k=k.to(device, dtype)), dict(bandwidth=4.0)


@names
@pytest.mark.parametrize('size', [30, 3000])
def test_results_are_the_same_run_to_run_and_for_any_number_of_threads(name, size, device, backend):
    if backend == 'reference' and name not in KERNELS:
        pytest.skip('torch’s products are summed as it likes')
    tensors, options = example(name, torch.float32, device, size)
    function = functools.partial(OPS[name], backend=backend, **options)
    upstream = torch.randn_like(function(**tensors))
    first, *others = by_threads(lambda: results(function, tensors, upstream))
    assert all(all(map(torch.equal, other, first)) for other in others)


@names
def test_empty_inputs(name, backend, device):
    tensors, options = example(name, torch.float32, device)
    function = functools.partial(OPS[name], backend=backend, **options)
    whole, none = function(**tensors), slice(0)
    for place in (none, (slice(None), none)):  # no images, or no heads
        empty = {key: tensor[place] for key, tensor in tensors.items()}
        assert results(function, empty, whole[place])[0].shape == whole[place].shape
    no_tokens = {key: tensor[:, :, :0] for key, tensor in tensors.items()}
    if name not in KERNELS and name != 'linear_attention':
        return
    queries = {key: no_tokens[key] for key in tensors if key in ('q', 'top_q')}
    out, *grads = results(function, {**tensors, **queries}, whole[:, :, :0])
    assert out.numel() == 0 and not any(grad.any() for grad in grads)
    keys = {key: tensor for key, tensor in no_tokens.items() if key not in queries}
    if name in KERNELS:
        assert function(**{**tensors, **keys}).numel() == 0
        return
    for eps_of_sum in (False, True):  # there is no mean of nothing
        with pytest.raises(ValueError, match=r'at least one key, got shape \(2, 1, 0, 12\)'):
            function(**{**tensors, **keys}, eps_of_sum=eps_of_sum)


@names
def test_results_of_compiled_ops_are_new_memory_that_may_change(name, backend, device):
    if backend == 'reference':
        pytest.skip('torch’s may be views')
    tensors, options = example(name, torch.float64, device)
    for chosen in ('auto', backend):
        with torch.no_grad():
            out = OPS[name](**tensors, **options, backend=chosen)
        factor = torch.ones((), dtype=out.dtype, device=device, requires_grad=True)
        out.mul_(factor).sum().backward()
        assert factor.grad.isfinite()


@pytest.mark.parametrize('name', READS_HALVES)
def test_attentions_and_landmarks_may_change_in_place_and_keep_their_gradients(
    name, backend, device
):
    """The derivatives of kernels and inverses need their results, as that of exp does."""
    tensors, options = example(name, torch.float64, device)
    function = functools.partial(OPS[name], backend=backend, **options)
    upstream = torch.randn_like(function(**tensors))
    expected = results(function, tensors, 2 * upstream)
    changed = results(lambda **tensors: function(**tensors).mul_(2), tensors, upstream)
    torch.testing.assert_close(changed[1:], expected[1:])


@names
def test_under_autocast_ops_read_halves_or_widen_them(name, backend, device):
    tensors, options = example(name, torch.bfloat16, device)
    function = functools.partial(OPS[name], backend=backend, **options)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = function(**tensors)
    attends = name in READS_HALVES and 'v' in tensors
    assert out.dtype == (torch.bfloat16 if attends else torch.float32)
    if name not in READS_HALVES:
        tensors = {key: tensor.float() for key, tensor in tensors.items()}
    torch.testing.assert_close(out, function(**tensors))


@names
def test_a_backward_under_autocast_computes_in_fp32(name, device):
    tensors, options = example(name, torch.float32, device)
    function = functools.partial(OPS[name], backend='native', **options)
    upstream = torch.randn_like(function(**tensors))
    expected = results(function, tensors, upstream)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert all(map(torch.equal, results(function, tensors, upstream), expected))


def memory(backend, function, tensors, with_gradients=True):
    """Bytes of tensors that a call holds at most."""

    def call():
        with torch.set_grad_enabled(with_gradients):
            out = function(*tensors, backend=backend)
        gradients = torch.autograd.grad(out.sum(), tensors) if with_gradients else ()
        return out.detach(), *gradients

    call()
    return tensor_memory(call, tensors[0].device)


devices = pytest.mark.parametrize('device', ['cpu', pytest.param('cuda', marks=NO_GPU)])


@devices
@pytest.mark.parametrize('with_gradients', [False, True])
# One head in parts, and many heads.
@pytest.mark.parametrize('sizes', [(1, 1, 16384, 16384, 64, 16), (2, 8, 2048, 2048, 64, 16)])
def test_attention_stores_nothing_of_tokens_times_landmarks(sizes, with_gradients, device):
    tensors, options = problem(*sizes, 'laplacian', 1e-5, 'half')
    options['rotary'] = options['rotary'].to(device, torch.float32)
    tensors = [tensor.to(device, torch.float32).requires_grad_() for tensor in tensors]

    def attend(*tensors, backend):
        return ops.nystrom_attention(*tensors[:5], scale=tensors[5], backend=backend, **options)

    kernel = 4 * sizes[0] * sizes[1] * sizes[2] * sizes[4]  # bytes of one N x m matrix per head
    assert memory('native', attend, tensors, with_gradients) < kernel / 4
    assert kernel < memory('reference', attend, tensors, with_gradients)


@devices
def test_pooling_stores_nothing_of_the_size_of_the_tokens(device):
    k = torch.randn(1, 4, 64 * 64, 32, device=device, requires_grad=True)
    rotary = table(64 * 64, 16, torch.float32).to(device)
    pool = functools.partial(ops.pooled_landmarks, hw_shape=(64, 64), cells=(7, 7), rotary=rotary)
    size = k.numel() * k.element_size()
    assert memory('native', pool, [k]) < size / 4 and size < memory('reference', pool, [k])


@names
def test_an_op_keeps_none_of_its_tensors(name, device):
    tensors, options = example(name, torch.float32, device)
    leaves = {key: tensor.detach().requires_grad_() for key, tensor in tensors.items()}
    before = [leaf._use_count() for leaf in leaves.values()]
    out = OPS[name](**leaves, backend='native', **options)
    grads = torch.autograd.grad(out, list(leaves.values()), torch.ones_like(out))
    out = out.detach()
    assert [leaf._use_count() for leaf in leaves.values()] == before
    assert {grad._use_count() for grad in grads} == {torch.empty(1)._use_count()}
