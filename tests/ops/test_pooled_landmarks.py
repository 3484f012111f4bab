"""Landmarks as means of cells: the cells written out, gradients, precisions, memory, bad input."""

import functools

import pytest
import torch
from conftest import NO_GPU, by_threads
from test_kernels import strided
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck
from torch.func import grad, jacrev, vmap

from mmlaplace.analysis.measuring import tensor_memory
from mmlaplace.ops import pooled_landmarks

DEVICES = ['cpu', pytest.param('cuda', marks=NO_GPU)]
# B, heads, H, W, d, cells or ratio, rotary form. Tiles have 128 tokens of one row, and vectors 4 to
# 16 of them; 5, 18, 20 and 33 channels are no whole vectors.
CASES = {
    'one-token': (2, 3, 1, 1, 5, (1, 1), None),
    'uneven-cells': (1, 2, 7, 9, 20, (3, 4), 'half'),
    'wide-rows': (2, 1, 5, 300, 18, 4, 'pairs'),
    'even-cells': (1, 2, 14, 14, 32, (7, 7), None),
    'more-cells-than-rows': (1, 1, 3, 9, 8, (7, 7), 'half'),
    'short-last-cells': (1, 2, 13, 17, 48, 8, 'half'),
    'ratio-beyond-the-map': (1, 1, 5, 5, 64, 8, None),
    'tile-and-two': (1, 2, 3, 130, 33, (2, 3), 'pairs'),
}


@pytest.fixture(name='op')
def _op(computed_by):
    return computed_by(pooled_landmarks)


def table(tokens, pairs, dtype=torch.float64):
    """Cosines and sines of random angles. The op asks nothing of them, such as cos² + sin² = 1."""
    angles = 3 * torch.randn(pairs, tokens, dtype=torch.float64)
    return torch.stack([angles.cos(), 1.1 * angles.sin()]).to(dtype)


def turned(x, rotary, form):
    """Tokens turned as complex numbers."""
    if rotary is None or rotary.shape[1] == 0:
        return x
    pairs = rotary.shape[1]
    angles, last = torch.complex(*rotary.transpose(1, 2).to(x.dtype)), x[..., 2 * pairs :]
    if form == 'half':
        product = torch.complex(x[..., :pairs], x[..., pairs : 2 * pairs]) * angles
        return torch.cat([product.real, product.imag, last], dim=-1)
    product = torch.view_as_complex(x[..., : 2 * pairs].unflatten(-1, (-1, 2)).contiguous())
    return torch.cat([torch.view_as_real(product * angles).flatten(-2), last], dim=-1)


def cells_of(side, count, ratio):
    if ratio is not None:
        return [slice(start, min(start + ratio, side)) for start in range(0, side, ratio)]
    return [slice(i * side // count, -(-(i + 1) * side // count)) for i in range(count)]


def formula(k, hw_shape, cells=None, ratio=None, rotary=None, rotary_form='half'):
    maps = turned(k, rotary, rotary_form).unflatten(2, hw_shape)
    rows, columns = (
        cells_of(side, count, ratio) for side, count in zip(hw_shape, cells or (None, None))
    )
    means = [maps[:, :, row, column].mean((2, 3)) for row in rows for column in columns]
    return torch.stack(means, dim=2)


def case(name, dtype=torch.float64, device='cpu'):
    """Tokens and options of a case."""
    batch, heads, height, width, dims, size, form = CASES[name]
    k = torch.randn(batch, heads, height * width, dims, dtype=torch.float64).to(device, dtype)
    options = dict(hw_shape=(height, width))
    options['cells' if isinstance(size, tuple) else 'ratio'] = size
    if form is not None:
        rotary = table(height * width, 2 * (dims // 4)).to(device)
        options.update(rotary=rotary, rotary_form=form)
    return k, options


def with_gradient(function, k, upstream):
    k = k.detach().requires_grad_()
    out = function(k)
    return out, torch.autograd.grad(out, k, upstream.to(out.dtype))[0]


@pytest.mark.parametrize('name', CASES)
def test_values_and_gradients_are_those_of_the_cells(op, name, device):
    k, options = case(name, device=device)
    truth = formula(k, **options)
    upstream = torch.randn_like(truth)
    results = with_gradient(lambda k: op(k, **options), k, upstream)
    expected = with_gradient(lambda k: formula(k, **options), k, upstream)
    for result, of_formula in zip(results, expected):
        # Sums of some hundred numbers of order 1 in fp64.
        torch.testing.assert_close(result, of_formula, atol=1e-12, rtol=0)


@pytest.mark.parametrize('name', CASES)
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precisions_are_averaged_in_fp32(op, name, dtype, device):
    k, options = case(name, dtype, device)
    upstream = torch.randn_like(formula(k.double(), **options)).float()
    out, of_k = with_gradient(lambda k: op(k, **options), k, upstream)
    truth, of_truth = with_gradient(lambda k: formula(k, **options), k.double(), upstream)
    assert out.dtype == torch.float32 and of_k.dtype == dtype
    # Numbers below 6, turned and summed in up to 130 steps of which each rounds to fp32.
    assert (out - truth).abs().max() <= 6 * 130 * torch.finfo(torch.float32).eps
    # The gradient rounds to the dtype of the tokens at the end. 1e-7: halves below their smallest.
    allowed = 4 * torch.finfo(dtype).eps * of_truth.abs().max() + 1e-7
    assert (of_k - of_truth).abs().max() <= allowed


@pytest.mark.parametrize('name', CASES)
def test_fp32_is_as_accurate_as_the_reference(name, device, op):
    k, options = case(name, torch.float32, device)
    truth = formula(k.double(), **options)
    upstream = torch.randn_like(truth).float()
    exact = with_gradient(lambda k: formula(k, **options), k.double(), upstream)
    plain = with_gradient(
        lambda k: pooled_landmarks(k, **options, backend='reference'), k, upstream
    )
    for result, same, right in zip(
        with_gradient(lambda k: op(k, **options), k, upstream), plain, exact
    ):
        error, allowed = (value.double().sub(right).norm() for value in (result, same))
        # Tokens of a row are summed one after the other, in the reference by vectors.
        assert error <= 2 * allowed + 2 * torch.finfo(torch.float32).eps * right.norm()


@pytest.mark.sampled(4)
@pytest.mark.parametrize('form', [None, 'half', 'pairs'])
@pytest.mark.parametrize('size', [dict(cells=(2, 2)), dict(ratio=2)])
def test_gradcheck_and_gradgradcheck(op, size, form, device):
    k = torch.randn(1, 2, 6, 5, dtype=torch.float64, device=device, requires_grad=True)
    if form is not None:
        size = dict(size, rotary=table(6, 2).to(device), rotary_form=form)
    assert gradcheck(lambda k: op(k, (2, 3), **size), k)
    assert gradgradcheck(lambda k: op(k, (2, 3), **size).square(), k)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.bfloat16])
def test_any_strides(op, dtype, device):
    k, options = case('uneven-cells', dtype, device)
    upstream = torch.randn(1, 2, 12, 20, device=device)

    def results(layout, upstream=upstream):
        return with_gradient(lambda k: op(layout(k), **options), k, upstream)

    contiguous = results(lambda k: k)
    for order in ((3, 1, 0, 2), (0, 2, 1, 3), (2, 3, 0, 1)):
        other = results(lambda k: strided(k, order), strided(upstream, order))  # noqa: B023
        torch.testing.assert_close(other, contiguous)
    # Channels two apart, from the second on.
    sliced = results(lambda k: torch.stack([k + 1, k], dim=-1).flatten(-2)[..., 1::2])
    torch.testing.assert_close(sliced, contiguous)
    upstream = upstream[:, :1, :1]
    expanded = results(lambda k: k, upstream.expand(1, 2, 12, 20))
    repeated = results(lambda k: k, upstream.repeat(1, 2, 12, 1))
    torch.testing.assert_close(expanded, repeated)
    shared = op(k[:, :1].expand(3, 2, 63, 20), **options)
    torch.testing.assert_close(shared, op(k[:, :1].repeat(3, 2, 1, 1), **options))


def test_results_are_the_same_run_to_run_and_for_any_number_of_threads(op, device):
    k, options = case('wide-rows', torch.float32, device)
    upstream = torch.randn_like(op(k, **options))
    first, *others = by_threads(lambda: with_gradient(lambda k: op(k, **options), k, upstream))
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(other, first))


def test_nan_stays_in_its_cell_and_pair_of_channels(op, device):
    k, options = case('uneven-cells', torch.float32, device)
    clean = op(k, **options)
    k[0, 1, 2 * 9 + 4, 3] = float('nan')
    spoilt = op(k, **options)
    expected = torch.zeros_like(spoilt, dtype=torch.bool)
    # Row 2 of 7 is in rows 0 and 1 of the cells, column 4 of 9 in columns 1 and 2 of 4.
    for cell in (1, 2, 5, 6):
        expected[0, 1, cell, [3, 13]] = True  # a pair
    assert torch.equal(spoilt.isnan(), expected)
    assert torch.equal(spoilt[~expected], clean[~expected])


@pytest.mark.parametrize('shape', [(0, 2, 6, 4), (2, 0, 6, 4)])
def test_empty_inputs(op, shape, device):
    k = torch.randn(shape, device=device, requires_grad=True)
    out = op(k, (2, 3), cells=(2, 2))
    assert out.shape == (*shape[:2], 4, shape[3])
    out.sum().backward()
    assert k.grad.shape == k.shape


@pytest.mark.parametrize('device', DEVICES)
def test_nothing_of_the_size_of_the_tokens_is_stored(device):
    k = torch.randn(1, 4, 64 * 64, 32, device=device, requires_grad=True)
    rotary = table(64 * 64, 16, torch.float32).to(device)
    stored, size = [], k.numel() * k.element_size()
    options = dict(hw_shape=(64, 64), cells=(7, 7), rotary=rotary)
    with torch.autograd.graph.saved_tensors_hooks(stored.append, lambda tensor: tensor):
        pooled_landmarks(k, **options, backend='native')
    for tensor in stored:  # the table itself, and one number
        assert tensor.data_ptr() == rotary.data_ptr() or tensor.untyped_storage().nbytes() <= 8

    def step(backend):
        out = pooled_landmarks(k, **options, backend=backend)
        return (out.detach(), *torch.autograd.grad(out.sum(), k))

    held = {}
    for backend in ('native', 'reference'):
        step(backend)
        held[backend] = tensor_memory(functools.partial(step, backend), k.device)
    assert held['native'] < size / 4 and size < held['reference']


def test_under_autocast_halves_are_read_as_such(op, device):
    k, options = case('uneven-cells', torch.bfloat16, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        out = op(k, **options)
    assert torch.equal(out, op(k, **options)) and out.dtype == torch.float32


@pytest.mark.parametrize('form', [None, 'pairs'])
def test_func_transforms_give_what_loops_give(op, form, device):
    k = torch.randn(3, 2, 2, 6, 5, dtype=torch.float64, device=device)
    options = dict(ratio=2)
    if form is not None:
        options.update(rotary=table(6, 2).to(device), rotary_form=form)
    function = functools.partial(op, hw_shape=(2, 3), **options)

    def loss(k):
        return function(k).square().sum()

    loops = torch.stack([function(each) for each in k])
    torch.testing.assert_close(vmap(function)(k), loops)
    torch.testing.assert_close(vmap(function, in_dims=2)(k.movedim(0, 2)), loops)
    grads = torch.stack([torch.autograd.functional.jacobian(loss, each) for each in k])
    torch.testing.assert_close(grad(loss)(k[0]), grads[0])
    torch.testing.assert_close(vmap(grad(loss))(k), grads)
    sums = vmap(grad(lambda k: function(k).sum()))(k)  # whose cotangents have no batch
    torch.testing.assert_close(sums[0], sums[1])
    truth = torch.autograd.functional.jacobian(function, k[0])
    torch.testing.assert_close(jacrev(function)(k[0]), truth)
    truth = torch.autograd.functional.hessian(loss, k[0])
    torch.testing.assert_close(jacrev(jacrev(loss))(k[0]), truth)


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize('name', ['uneven-cells', 'short-last-cells'])
def test_meta_and_fake_tensors_have_the_shapes_of_real_ones(name, dtype):
    k, options = case(name, dtype)
    real = with_gradient(lambda k: pooled_landmarks(k, **options), k, torch.ones(1).expand(
        formula(k.double(), **options).shape))  # fmt: skip

    def layout(tensors):
        return [(tensor.shape, tensor.dtype, tensor.stride()) for tensor in tensors]

    def empty(make):
        found = dict(options, rotary=make(options['rotary'])) if 'rotary' in options else options
        upstream = make(torch.ones(real[0].shape))
        return with_gradient(lambda k: pooled_landmarks(k, **found), make(k), upstream)

    assert layout(empty(lambda tensor: tensor.to('meta'))) == layout(real)
    with FakeTensorMode() as mode:
        assert layout(empty(mode.from_tensor)) == layout(real)


K = torch.randn(1, 2, 6, 4)


@pytest.mark.parametrize(
    ('change', 'error', 'message'),
    [
        (dict(k=None), TypeError, 'k must be a tensor, got NoneType'),
        (dict(k=K.int()), TypeError, 'k must be float64.*got torch.int32'),
        (dict(k=K[0]), ValueError, r'\(B, heads, 6, d\) for hw_shape \(2, 3\), got \(2, 6, 4\)'),
        (dict(hw_shape=(2, 4)), ValueError, r'8, d\) for hw_shape \(2, 4\), got \(1, 2, 6, 4\)'),
        (dict(hw_shape=(-2, -3)), ValueError, r'hw_shape must be positive, got \(-2, -3\)'),
        (dict(cells=None), ValueError, r'one of cells \(None\) and ratio \(None\)'),
        (dict(ratio=2), ValueError, r'one of cells \(\(1, 2\)\) and ratio \(2\)'),
        (dict(cells=(0, 2)), ValueError, r'cells \(\(0, 2\)\).*must be positive'),
        (dict(cells=None, ratio=0), ValueError, r'ratio \(0\) must be positive'),
        (dict(cells=None, ratio=-3), ValueError, r'ratio \(-3\) must be positive'),
        (dict(rotary_form='whole'), ValueError, "'half', 'pairs'.*got 'whole'"),
        (dict(rotary=[1]), TypeError, 'rotary must be a tensor, got list'),
        (dict(rotary=torch.ones(2, 1, 6).int()), TypeError, 'rotary must be.*got torch.int32'),
        (dict(rotary=torch.ones(2, 6)), ValueError, r'\(2, pairs, 6\) on cpu, got \(2, 6\)'),
        (dict(rotary=torch.ones(2, 1, 7)), ValueError, r'got \(2, 1, 7\) on cpu'),
        (dict(rotary=torch.ones(2, 1, 6, device='meta')), ValueError, 'on cpu, got.* on meta'),
        (dict(rotary=torch.ones(2, 3, 6)), ValueError, '4 channels have no 3 pairs'),
        (dict(backend='triton'), ValueError, "got 'triton'"),
    ],
)
def test_bad_input_is_quoted(change, error, message):
    arguments = dict(dict(k=K, hw_shape=(2, 3), cells=(1, 2)), **change)
    with pytest.raises(error, match=message):
        pooled_landmarks(**arguments)


def test_the_compiled_op_itself_quotes_bad_input():
    op = torch.ops.mmlaplace.pooled_landmarks
    for arguments, message in (
        ((K, None, False, 2, 4, 1, 1, 0), r'N = 2 \* 4, got \[1, 2, 6, 4\]'),
        ((K, None, False, -2, -3, 1, 1, 0), r'N = -2 \* -3'),
        ((K, None, False, 2, 3, 0, 1, 0), 'at least one cell, got 0 x 1 and ratio 0'),
        ((K, torch.ones(2, 3, 6), False, 2, 3, 1, 1, 0), r'2 \* pairs <= 4 and N = 6.*\[2, 3, 6\]'),
    ):
        with pytest.raises(RuntimeError, match=message):
            op(*arguments)
