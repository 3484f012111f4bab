"""Attention by features: the N x n matrix written out, both streams, NaN and dtypes."""

import functools

import pytest
import torch
from op_results import assert_formula, results

from mmlaplace.models.layers import elu_plus_one, linear_attention

# B, heads, N, n, f, d, features, streams, whether there is a numerator. On a GPU, tiles have 64 or
# 16 tokens, and parts 256 or more.
CASES = {
    'odd': (2, 3, 17, 9, 5, 3, 'elu_plus_one', 1, False),
    'three-parts': (1, 2, 600, 700, 8, 6, 'relu', 1, True),
    'numerator': (2, 1, 70, 66, 12, 20, 'elu_plus_one', 1, True),
    'two-streams': (1, 2, 40, 270, 6, 5, 'none', 2, False),
    'all': (1, 1, 33, 20, 10, 4, 'elu_plus_one', 2, True),
    'wide': (1, 1, 20, 30, 128, 130, 'relu', 1, False),
}
FEATURES = dict(none=lambda x: x, relu=torch.relu, elu_plus_one=elu_plus_one)
NAMES = ('q', 'k', 'v', 'top_q', 'top_k')


@pytest.fixture(name='op')
def _op(computed_by):
    return computed_by(attend)


def attend(q, k, v, *numerator, backend, **options):
    return linear_attention(q, k, v, numerator=numerator or None, backend=backend, **options)


def case(name, dtype=torch.float64, device='cpu'):
    """Tensors and options of a case. Features are positive, so that no normaliser is near 0."""
    batch, heads, queries, keys, dims, channels, features, streams, has_numerator = CASES[name]
    sizes = [(queries, dims), (keys, dims), (keys, channels), (queries, dims), (keys, dims)]
    tensors = [
        torch.randn(batch, tokens, heads, width, dtype=torch.float64).transpose(1, 2)
        for tokens, width in sizes[: 5 if has_numerator else 3]
    ]
    if features != 'elu_plus_one':
        tensors[:2] = [tensor.abs() + 0.1 for tensor in tensors[:2]]
    options = dict(eps=1e-3, features=features, streams=streams)
    return [tensor.to(device, dtype) for tensor in tensors], options


def formula(q, k, v, top_q=None, top_k=None, eps=0.0, features='none', streams=1):
    query, key = FEATURES[features](q), FEATURES[features](k)
    tops = (query, key) if top_q is None else (top_q, top_k)
    outs = []
    for stream, value in enumerate(
        v.tensor_split([-(-v.shape[-1] // 2)], -1) if streams == 2 else [v]
    ):
        if stream == 1:
            query, tops = (torch.cat(x.chunk(2, -1)[::-1], -1) for x in (query, tops[0]))
            tops = (tops, (key if top_k is None else top_k))
        normalizer = (query @ key.mT).mean(-1, keepdim=True) + eps
        outs.append(tops[0] @ tops[1].mT @ value / (normalizer * k.shape[-2]))
    return torch.cat(outs, -1)


# Of sums of up to 700 products, and of rounding results to a half; terms are of order 1 and larger
# than 0.1.
BOUNDS = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@pytest.mark.parametrize('dtype', BOUNDS)
@pytest.mark.parametrize('name', CASES)
def test_values_and_gradients_are_those_of_the_dense_formula(op, name, dtype, device):
    tensors, options = case(name, dtype, device)
    both = (functools.partial(function, **options) for function in (op, formula))
    assert_formula(*both, tensors, BOUNDS, floor=0.1)


def test_nan_of_a_query_stays_in_its_row_and_that_of_a_key_in_its_head(op, device):
    tensors, options = case('odd', torch.float32, device)
    expected = op(*tensors, **options)
    tensors[0][0, 1, 4, 2] = tensors[1][1, 2, 3, 0] = float('nan')
    expected[0, 1, 4] = expected[1, 2] = float('nan')
    torch.testing.assert_close(op(*tensors, **options), expected, equal_nan=True)


def test_a_query_without_a_key_gives_zero_and_no_nan(op, device):
    q, k = torch.zeros(1, 1, 70, 4, device=device), torch.rand(1, 1, 5, 4, device=device)
    attend = functools.partial(op, eps=1e-6, features='relu')
    found = results(attend, (-q, k, k), torch.ones_like(q))
    assert not found[0].any() and all(tensor.isfinite().all() for tensor in found)


def test_numbers_of_several_dtypes_are_mixed_as_in_products(op, device):
    q, k = torch.rand(2, 1, 2, 9, 4, device=device).unbind()
    v = torch.rand(1, 2, 9, 3, device=device).bfloat16()
    out = op(q, k, v)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), op(q, k, v.float()), atol=5e-3, rtol=0)


@pytest.mark.parametrize(
    'dtypes',
    [
        (torch.float16, torch.float64, torch.float32),
        (torch.bfloat16, torch.float16, torch.float64),
        (torch.float64, torch.float32, torch.float16, torch.float64, torch.float64),
        (torch.float16, torch.float16, torch.float16, torch.float64, torch.float64),
    ],
)
def test_any_dtypes_are_computed_in_the_one_that_holds_them_all(op, dtypes, device):
    tensors = [torch.rand(1, 2, 9, 4, device=device).to(dtype) for dtype in dtypes]
    wide = functools.reduce(torch.promote_types, dtypes)
    out = op(*tensors)
    assert out.dtype == dtypes[2]
    expected = op(*(tensor.to(wide) for tensor in tensors))
    torch.testing.assert_close(out, expected.to(dtypes[2]), rtol=0, atol=0)


def test_an_epsilon_of_the_sum_is_that_of_each_key(op, device):
    q, k = (torch.rand(1, 2, tokens, 4, dtype=torch.float64, device=device) for tokens in (5, 9))
    torch.testing.assert_close(op(q, k, k, eps=0.9, eps_of_sum=True), op(q, k, k, eps=0.1))
