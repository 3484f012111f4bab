"""The parts around the attentions that the contract tests do not see into."""

import pytest
import torch

from mmlaplace.models.layers import (
    FFN,
    DropPath,
    RMSNorm,
    RotaryEmbedding2D,
    TransformerBlock,
    join_windows,
    map_to_tokens,
    resize_map,
    split_windows,
    tokens_to_map,
)
from mmlaplace.models.layers.unit_vectors import unit_vectors


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


def test_the_norm_of_large_halves_is_that_of_fp32_rounded_once():
    norm, x = RMSNorm(64), 1000 * torch.randn(5, 64)  # whose squares no fp16 holds
    exact = norm(x.half().float())
    # Half a unit in the last place of fp16.
    torch.testing.assert_close(norm.half()(x.half()).float(), exact, rtol=2**-11, atol=1e-6)


def test_tokens_and_maps_are_inverse():
    x = torch.randn(2, 15, 4)
    assert torch.equal(map_to_tokens(tokens_to_map(x, (3, 5))), x)
    assert torch.equal(tokens_to_map(x, (3, 5))[1, :, 2, 4], x[1, 14])


def test_windows_are_not_shifted_by_default():
    x = torch.randn(2, 5 * 7, 4)
    windows = split_windows(x, (5, 7), 3)
    assert torch.equal(windows[0].view(3, 3, 4), x[0].view(5, 7, 4)[:3, :3])
    assert torch.equal(join_windows(windows, (5, 7), 3), x)


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


@pytest.mark.parametrize('norm_first', [True, False])
def test_a_block_is_its_formula(norm_first):
    attn_cfg = dict(type='SoftmaxAttention', embed_dims=8, num_heads=2, input_resolution=(3, 4))
    block = TransformerBlock(8, attn_cfg, norm_first=norm_first).double().eval()
    for norm in (block.norm1, block.norm2):
        torch.nn.init.normal_(norm.weight)
    x, hw_shape = torch.randn(2, 12, 8, dtype=torch.float64), (3, 4)
    if norm_first:
        expected = x + block.attn(block.norm1(x), hw_shape)
        expected = expected + block.ffn(block.norm2(expected), hw_shape)
    else:
        expected = block.norm1(x + block.attn(x, hw_shape))
        expected = block.norm2(expected + block.ffn(expected, hw_shape))
    torch.testing.assert_close(block(x, hw_shape), expected)


@pytest.mark.parametrize('norm_first', [True, False])
def test_a_block_drops_both_of_its_branches_in_training_alone(norm_first):
    attn_cfg = dict(type='SoftmaxAttention', embed_dims=8, num_heads=2, input_resolution=(3, 4))
    block = TransformerBlock(8, attn_cfg, drop_path_rate=1 - 1e-9, norm_first=norm_first)
    x = torch.randn(2, 12, 8)
    left = x if norm_first else block.norm2(block.norm1(x))  # without the branches
    assert torch.equal(block.train()(x, (3, 4)), left)
    assert not torch.allclose(block.eval()(x, (3, 4)), left, atol=0.1)


@pytest.mark.parametrize('dwconv_kernel', [0, 3])
def test_an_ffn_is_its_formula(dwconv_kernel):
    ffn = FFN(8, 2.5, dwconv_kernel=dwconv_kernel).double()
    x = torch.randn(2, 12, 8, dtype=torch.float64)
    hidden = ffn.layers[0](x)
    assert hidden.shape[-1] == 20
    if dwconv_kernel:
        hidden = ffn.dwconv(hidden, (3, 4))
    expected = ffn.layers[3](torch.nn.functional.gelu(hidden))
    torch.testing.assert_close(ffn(x, (3, 4)), expected)


def test_a_vector_without_a_direction_stays_zero_and_has_no_gradient():
    x = torch.randn(2, 5, 8)
    x[0, 1], x[1, 2] = 0, 1e-9
    x.requires_grad_()
    unit = unit_vectors(x)
    (grad,) = torch.autograd.grad(unit, x, torch.randn_like(x))
    short = x.detach().norm(dim=-1) < 1e-6
    assert short.sum() == 2
    assert (unit[short] == 0).all() and (grad[short] == 0).all()
    # Roundings of fp32.
    torch.testing.assert_close(unit[~short].norm(dim=-1), torch.ones(8), atol=1e-6, rtol=0)
    torch.testing.assert_close(unit_vectors(x.mT, dim=1), unit.mT)


def test_a_block_that_is_computed_again_counts_its_images_once():
    """LiteMLA has BatchNorms, whose running statistics a second pass must leave."""
    attn_cfg = dict(type='LiteMLA', embed_dims=16, num_heads=2, input_resolution=(4, 4))
    plain, saving = (TransformerBlock(16, attn_cfg, with_cp=with_cp) for with_cp in (False, True))
    saving.load_state_dict(plain.state_dict())
    tokens = torch.randn(2, 16, 16)
    for block in (plain, saving):
        block(tokens, (4, 4)).sum().backward()
    for (name, a), b in zip(plain.named_buffers(), saving.buffers()):
        torch.testing.assert_close(a, b, msg=name)
    # And the next step counts its own.
    saving(tokens, (4, 4))
    assert all(b == 2 for name, b in saving.named_buffers() if name.endswith('num_batches_tracked'))
