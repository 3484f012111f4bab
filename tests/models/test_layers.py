"""The parts around the attentions that the contract tests do not see into."""

import pytest
import torch

from mmlaplace.models.layers import (
    DropPath,
    RotaryEmbedding2D,
    map_to_tokens,
    resize_map,
    tokens_to_map,
)


@pytest.mark.parametrize('head_dims', [8, 17, 32])
def test_rotary_positions_are_complex_rotations_by_row_and_column(head_dims):
    height, width, pairs = 3, 5, head_dims // 4
    x = torch.randn(1, 2, height * width, head_dims, dtype=torch.float64)
    out = RotaryEmbedding2D(head_dims, theta=50.0)(x, (height, width))
    first, second = x[..., : 2 * pairs], x[..., 2 * pairs : 4 * pairs]
    for row in range(height):
        for column in range(width):
            token = row * width + column
            steps = torch.tensor([row] * pairs + [column] * pairs, dtype=torch.float64)
            rates = 50.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs).repeat(2)
            turned = torch.complex(first, second)[:, :, token] * torch.exp(1j * steps * rates)
            torch.testing.assert_close(out[:, :, token, : 2 * pairs], turned.real)
            torch.testing.assert_close(out[:, :, token, 2 * pairs : 4 * pairs], turned.imag)
    assert torch.equal(out[..., 4 * pairs :], x[..., 4 * pairs :])


def test_rotary_products_depend_on_distance_alone():
    rotary = RotaryEmbedding2D(16)
    q, k = (torch.randn(16, dtype=torch.float64) for _ in range(2))
    turned = [rotary(t.expand(1, 1, 48, 16), (6, 8))[0, 0] for t in (q, k)]
    product = (turned[0] @ turned[1].T).reshape(6, 8, 6, 8)
    torch.testing.assert_close(product[1, 2, 3, 5], product[2, 4, 4, 7])


def test_rotary_keeps_fp32_positions_in_a_halved_model():
    x = torch.randn(1, 1, 100 * 3, 16).bfloat16()
    exact = RotaryEmbedding2D(16)(x.double(), (100, 3))
    out = RotaryEmbedding2D(16).bfloat16()(x, (100, 3))
    # One rounding of a value; angles rounded to bf16 would be off by whole turns at row 99.
    assert (out.double() - exact).abs().max() <= torch.finfo(torch.bfloat16).eps * 4


def test_drop_path_drops_whole_samples_and_keeps_the_mean():
    x = torch.ones(2000, 3, 2)
    out = DropPath(0.25).train()(x)
    assert out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert all(len(sample.unique()) == 1 for sample in out)
    # Standard error of the mean over 2,000 samples: 0.013.
    assert out.mean().item() == pytest.approx(1, abs=0.06)


def test_tokens_and_maps_are_inverse():
    x = torch.randn(2, 15, 4)
    assert torch.equal(map_to_tokens(tokens_to_map(x, (3, 5))), x)
    assert torch.equal(tokens_to_map(x, (3, 5))[1, :, 2, 4], x[1, 14])


@pytest.mark.parametrize('axes', [1, 2, 3, 5])
def test_a_tensor_that_is_no_map_is_not_resized(axes):
    x = torch.ones((2,) * axes)
    assert resize_map(x, (3, 3)) is x


@pytest.mark.parametrize('mode', ['bilinear', 'bicubic'])
def test_maps_are_resized_in_fp32_and_keep_their_dtype(mode):
    x = torch.rand(1, 2, 4, 4)
    assert resize_map(x, (4, 4), mode) is x
    out = resize_map(x.half(), (3, 6), mode)
    assert out.dtype == torch.float16 and out.shape == (1, 2, 3, 6)
    exact = torch.nn.functional.interpolate(x.half().float(), (3, 6), mode=mode)
    # One rounding to the half, of values below 2.
    torch.testing.assert_close(out.float(), exact, atol=1e-3, rtol=0)
