"""Landmarks as means of cells: the cells written out, gradients and NaN."""

import functools

import pytest
import torch
from op_results import assert_formula

from mmlaplace.ops import pooled_landmarks

# B, heads, H, W, d, cells or ratio, rotary form. Tiles have 128 tokens of one row, and vectors 4 to
# 16 of them; 5, 18, 20 and 33 channels are no whole vectors.
CASES = {
    'one-token': (2, 3, 1, 1, 5, (1, 1), None),
    'uneven-cells': (1, 2, 7, 9, 20, (3, 4), 'half'),
    'wide-rows': (2, 1, 5, 300, 18, 4, 'pairs'),
    'more-cells-than-rows': (1, 1, 3, 9, 8, (7, 7), 'half'),
    'short-last-cells': (1, 2, 13, 17, 48, 8, 'half'),
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


@pytest.mark.parametrize('name', CASES)
def test_values_and_gradients_are_those_of_the_cells(op, name, device):
    k, options = case(name, device=device)
    both = (functools.partial(function, **options) for function in (op, formula))
    # Sums of some hundred numbers of order 1 in fp64.
    assert_formula(*both, [k], {torch.float64: 2e-13})


def test_nan_stays_in_its_cell_and_pair_of_channels(op, device):
    k, options = case('uneven-cells', torch.float32, device)
    expected = op(k, **options)
    k[0, 1, 2 * 9 + 4, 3] = float('nan')
    # Row 2 of 7 is in rows 0 and 1 of the cells, column 4 of 9 in columns 1 and 2 of 4.
    for cell in (1, 2, 5, 6):
        expected[0, 1, cell, [3, 13]] = float('nan')  # a pair
    torch.testing.assert_close(op(k, **options), expected, rtol=0, atol=0, equal_nan=True)
