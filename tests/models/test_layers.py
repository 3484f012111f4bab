"""The parts around the attentions that the contract tests do not see into."""

import pytest
import torch
from conftest import doubles
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.profiler import ProfilerActivity, profile

from mmlaplace.models import LaplacianAttention
from mmlaplace.models.layers import (
    FFN,
    ConvPatchEmbed,
    DepthwiseConv,
    DropPath,
    OverlapPatchEmbed,
    PatchEmbed,
    PatchMerging,
    RMSNorm,
    RotaryEmbedding2D,
    TransformerBlock,
    map_to_tokens,
    position,
    resize_map,
    tokens_to_map,
)  # fmt: skip
from mmlaplace.models.layers.solvers import conjugate_gradient_inverse, svd_inverse
from mmlaplace.models.layers.unit_vectors import unit_vectors

SOFTMAX = dict(type='SoftmaxAttention', embed_dims=8, num_heads=2, input_resolution=(3, 4))


# ---- rotary positions


@pytest.mark.parametrize('head_dims', [8, 17, 32])
def test_rotary_positions_are_complex_rotations_by_row_and_column(head_dims):
    height, width, pairs = 3, 5, head_dims // 4
    x = doubles(1, 2, height * width, head_dims)
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
    narrow = x[..., :3]  # a head without pairs stays as it is
    assert torch.equal(RotaryEmbedding2D(3)(narrow, (height, width)), narrow)


@pytest.mark.parametrize('head_dims', [4, 8, 12, 10])
def test_pairs_turn_by_frequencies_from_one_to_the_last(head_dims):
    """The rotary form of RALA, MALA and NaLaFormer: pairs (2i, 2i + 1), both ends included."""
    rotary = RotaryEmbedding2D(head_dims, form='pairs')
    count = head_dims // 4
    x = doubles(1, 1, 15, head_dims)
    expected = x.clone()
    for row in range(3):
        for column in range(5):
            for pair in range(2 * count):
                frequency = 10000.0 ** (-(pair % count) / max(count - 1, 1))
                place = row if pair < count else column
                angle = torch.tensor(place * frequency, dtype=torch.float64)
                a, b = x[0, 0, 5 * row + column, 2 * pair : 2 * pair + 2]
                turned = (a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin())
                expected[0, 0, 5 * row + column, 2 * pair : 2 * pair + 2] = torch.stack(turned)
    torch.testing.assert_close(rotary(x, (3, 5)), expected, atol=1e-12, rtol=1e-12)
    with pytest.raises(ValueError, match="form must be one of .*, got 'interleaved'"):
        RotaryEmbedding2D(8, form='interleaved')


def test_rotary_keeps_fp32_positions_in_a_halved_model():
    x = torch.randn(1, 1, 100 * 3, 16).bfloat16()
    exact = RotaryEmbedding2D(16)(x.double(), (100, 3))
    out = RotaryEmbedding2D(16).bfloat16()(x, (100, 3))
    # One rounding of a value; angles rounded to bf16 would be off by whole turns at row 99.
    assert (out.double() - exact).abs().max() <= torch.finfo(torch.bfloat16).eps * 4


def test_blocks_share_one_table_for_a_map_size_and_kind():
    x = torch.randn(1, 2, 15, 16)
    first, second = (RotaryEmbedding2D(16).table(x, (3, 5)) for _ in range(2))
    assert first is second
    assert RotaryEmbedding2D(16).table(x, (5, 3)) is not first
    for other, kind in ((x.double(), torch.float64), (x.half(), torch.float32)):
        assert RotaryEmbedding2D(16).table(other, (3, 5)).dtype == kind


def test_tables_of_inference_mode_serve_in_training_and_fake_ones_are_not_kept():
    attention, x = LaplacianAttention(16, 2, (3, 5)), torch.randn(1, 15, 16)
    rotary, heads = RotaryEmbedding2D(16), torch.randn(1, 2, 15, 16)
    position._kept_table.cache_clear()
    with torch.inference_mode():
        attention(x, (3, 5))
    attention(x, (3, 5)).sum().backward()
    assert attention.qkv.weight.grad.isfinite().all()
    position._kept_table.cache_clear()
    with FakeTensorMode():
        assert isinstance(rotary.table(torch.randn(1, 2, 15, 16), (3, 5)), FakeTensor)
    assert rotary.table(heads.to('meta'), (3, 5)).is_meta
    real = rotary.table(heads, (3, 5))
    assert type(real) is torch.Tensor and not real.is_meta


def test_a_captured_cuda_graph_makes_its_own_table(monkeypatch):
    # The cache forgets the one of another size, whose memory a later replay would read.
    rotary, x = RotaryEmbedding2D(16), torch.randn(1, 2, 15, 16)
    kept = rotary.table(x, (3, 5))
    monkeypatch.setattr(position, 'is_capturing', lambda tensor: True)
    own = rotary.table(x, (3, 5))
    assert own is not kept and torch.equal(own, kept)
    monkeypatch.undo()
    assert rotary.table(x, (3, 5)) is kept and not position.is_capturing(x)


# ---- tokens, maps, convolutions and embeddings


CONVOLUTIONS = {
    'channel': dict(kernel_size=3),
    'head_channel': dict(kernel_size=5, num_heads=2, filters_per='head_channel'),
    'head': dict(kernel_size=3, num_heads=2, filters_per='head'),
}
EMBEDDINGS = {
    'overlapping': lambda: OverlapPatchEmbed(16, 24, kernel_size=3, stride=2),
    'patches': lambda: PatchEmbed(16, 24, patch_size=2),
    'convolutions': lambda: ConvPatchEmbed(16, 24, strides=(2, 1)),
}


def copies(function, size):
    """How many tensors of at least so many values it copies. A bias that is spread is none."""
    function()  # what is made once is made here
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as run:
        function()
    shapes = [event.input_shapes[:2] for event in run.events() if event.name == 'aten::copy_']
    return sum(to == source and torch.Size(to).numel() >= size for to, source in shapes)


@pytest.mark.parametrize('batch', [1, 3])
def test_tokens_and_maps_are_inverse_and_share_memory(batch):
    x = torch.randn(batch, 15, 4)
    maps = tokens_to_map(x, (3, 5))
    assert torch.equal(map_to_tokens(maps), x)
    assert torch.equal(maps[-1, :, 2, 4], x[-1, 14])
    assert maps.stride() == (60, 1, 20, 4)
    assert map_to_tokens(maps).stride() == x.stride()
    assert maps.data_ptr() == map_to_tokens(maps).data_ptr() == x.data_ptr()


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('kind', CONVOLUTIONS)
def test_depthwise_convolutions_copy_no_tokens(kind, batch, dtype):
    conv = DepthwiseConv(64, **CONVOLUTIONS[kind]).to(dtype)
    x = torch.randn(batch, 20 * 28, 64, dtype=dtype, requires_grad=True)
    grad = torch.randn_like(x)
    with torch.no_grad():
        assert copies(lambda: conv(x, (20, 28)), x.numel() // 2) == 0
    assert copies(lambda: conv(x, (20, 28)).backward(grad), x.numel() // 2) == 0
    assert conv(x, (20, 28)).is_contiguous() and x.grad.is_contiguous()


@pytest.mark.parametrize('batch', [1, 2])
@pytest.mark.parametrize('kind', EMBEDDINGS)
def test_patch_embeddings_copy_no_tokens(kind, batch):
    embed, hw_shape = EMBEDDINGS[kind]().eval(), (40, 56)
    x = torch.randn(batch, 40 * 56, 16)
    with torch.no_grad():
        # Smaller than the tokens it takes or gives, and larger than the weights, which are copied.
        assert copies(lambda: embed(tokens_to_map(x, hw_shape)), 10000) == 0
        assert embed(tokens_to_map(x, hw_shape))[0].is_contiguous()


@pytest.mark.parametrize('hw_shape', [(4, 6), (5, 7)])
def test_patch_merging_puts_the_four_column_by_column(hw_shape):
    merging, x = PatchMerging(3, 8), torch.randn(2, 3, *hw_shape)
    padded = torch.nn.functional.pad(x, (0, hw_shape[1] % 2, 0, hw_shape[0] % 2))
    four = [padded[..., i::2, j::2] for j in (0, 1) for i in (0, 1)]  # mmcv's and Swin's order
    expected = merging.reduction(merging.norm(torch.cat(four, dim=1).flatten(2).mT))
    tokens, merged_shape = merging(x)
    assert merged_shape == tuple(-(-side // 2) for side in hw_shape)
    torch.testing.assert_close(tokens, expected)
    wide = torch.randn(1, 1000, 3)
    with torch.no_grad():
        assert copies(lambda: merging(tokens_to_map(wide, (20, 50))), wide.numel()) == 1


@settings(deadline=None, derandomize=True, max_examples=25, database=None)
@given(
    st.tuples(st.integers(1, 13), st.integers(1, 13)), st.sampled_from((1, 2, 3)),
    st.integers(1, 4), st.sampled_from((1, 3, 5)), st.booleans(),
    st.sampled_from(('channel', 'head', 'head_channel')),
)  # fmt: skip
def test_a_depthwise_filter_sees_its_own_channel(hw_shape, heads, head_dims, kernel, bias, per):
    channels = heads * head_dims
    conv = DepthwiseConv(channels, kernel, heads, per, bias).double()
    x = doubles(2, hw_shape[0] * hw_shape[1], channels)
    out = conv(x, hw_shape).view(2, *hw_shape, channels)
    assert (conv.conv.bias is not None) == bias
    for channel in range(channels):
        index = dict(channel=channel, head_channel=channel % head_dims, head=channel // head_dims)
        one = torch.nn.Conv2d(1, 1, kernel, padding=kernel // 2, bias=bias).double()
        one.weight.data[:] = conv.conv.weight[index[per]]
        if bias:
            one.bias.data[:] = conv.conv.bias[index[per]]
        alone = one(x[..., channel].view(2, 1, *hw_shape))[:, 0]
        # fp64 sums of at most 25 products in another order.
        torch.testing.assert_close(out[..., channel], alone, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize('mode', ['bilinear', 'bicubic'])
def test_maps_are_resized_in_fp32_and_keep_their_dtype(mode):
    for other in (torch.rand(1, 2, 3, 6), *(torch.ones((2,) * axes) for axes in (1, 2, 3, 5))):
        assert resize_map(other, (3, 6), mode) is other  # of that size, or no map
    x = torch.rand(1, 2, 4, 4)
    out = resize_map(x.half(), (3, 6), mode)
    assert out.dtype == torch.float16 and out.shape == (1, 2, 3, 6)
    exact = torch.nn.functional.interpolate(x.half().float(), (3, 6), mode=mode)
    # One rounding to the half, of values below 2.
    torch.testing.assert_close(out.float(), exact, atol=1e-3, rtol=0)


# ---- blocks and their parts


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


@pytest.mark.parametrize('norm_first', [True, False])
def test_a_block_is_its_formula(norm_first):
    block = TransformerBlock(8, SOFTMAX, norm_first=norm_first).double().eval()
    for norm in (block.norm1, block.norm2):
        torch.nn.init.normal_(norm.weight)
    x, hw_shape = doubles(2, 12, 8), (3, 4)
    if norm_first:
        expected = x + block.attn(block.norm1(x), hw_shape)
        expected = expected + block.ffn(block.norm2(expected), hw_shape)
    else:
        expected = block.norm1(x + block.attn(x, hw_shape))
        expected = block.norm2(expected + block.ffn(expected, hw_shape))
    torch.testing.assert_close(block(x, hw_shape), expected)


@pytest.mark.parametrize('norm_first', [True, False])
def test_a_block_drops_both_of_its_branches_in_training_alone(norm_first):
    block = TransformerBlock(8, SOFTMAX, drop_path_rate=1 - 1e-9, norm_first=norm_first)
    x = torch.randn(2, 12, 8)
    left = x if norm_first else block.norm2(block.norm1(x))  # without the branches
    assert torch.equal(block.train()(x, (3, 4)), left)
    assert not torch.allclose(block.eval()(x, (3, 4)), left, atol=0.1)


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


@pytest.mark.parametrize('dwconv_kernel', [0, 3])
def test_an_ffn_is_its_formula(dwconv_kernel):
    ffn = FFN(8, 2.5, dwconv_kernel=dwconv_kernel).double()
    x = doubles(2, 12, 8)
    hidden = ffn.layers[0](x)
    assert hidden.shape[-1] == 20
    if dwconv_kernel:
        hidden = ffn.dwconv(hidden, (3, 4))
    expected = ffn.layers[3](torch.nn.functional.gelu(hidden))
    torch.testing.assert_close(ffn(x, (3, 4)), expected)


# ---- inverses that papers compare with the Newton iteration

BOTH = pytest.mark.parametrize('inverse', [svd_inverse, conjugate_gradient_inverse])


def positive(*shape, condition=100.0):
    """Symmetric matrices ``(*shape[:-1], m, m)`` with eigenvalues from 1 down to 1 / condition."""
    m = shape[-1]
    basis = torch.linalg.qr(doubles(*shape, m))[0]
    values = torch.logspace(0, -torch.tensor(condition).log10().item(), m, dtype=torch.float64)
    return (basis * values) @ basis.mT


@BOTH
@pytest.mark.parametrize('ridge', [0.0, 0.5])
def test_an_inverse_and_its_gradient_are_those_of_linear_algebra(inverse, ridge):
    mat = positive(2, 3, 12).requires_grad_()
    options = dict(num_iters=24) if inverse is conjugate_gradient_inverse else {}
    ours = inverse(mat, ridge=ridge, **options)
    exact = torch.linalg.inv(mat + ridge * torch.eye(12, dtype=torch.float64))
    # A condition of 100 leaves 14 digits of 16. Steps beyond the m-th clean up what rounding left.
    torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(exact)
    # The pseudo-inverse of a symmetric matrix is told the symmetric part of a change alone.
    gradients = [torch.autograd.grad((out * weight).sum(), mat)[0] for out in (ours, exact)]
    one, other = ((gradient + gradient.mT) / 2 for gradient in gradients)
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)  # two inverses in a product


@BOTH
def test_a_nan_spoils_its_matrix_alone_and_an_empty_batch_stays_empty(inverse):
    mat = positive(3, 5).float()
    clean = inverse(mat)
    mat[1, 2, 3] = float('nan')
    out = inverse(mat)
    assert out[1].isnan().all()
    torch.testing.assert_close(out[[0, 2]], clean[[0, 2]])
    assert inverse(mat[:0]).shape == (0, 5, 5)


@BOTH
@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_halves_are_inverted_in_fp32_and_what_is_no_square_is_quoted(inverse, dtype):
    mat = positive(2, 6, condition=10.0).to(dtype)
    expected = inverse(mat.float())
    # One rounding, of the result or of none.
    torch.testing.assert_close(inverse(mat).float(), expected, rtol=torch.finfo(dtype).eps, atol=0)
    with pytest.raises(ValueError, match=r'\(2, 3\)'):
        inverse(torch.ones(2, 3))
    with pytest.raises(ValueError, match='got -1.0'):
        inverse(torch.eye(2), ridge=-1.0)


def test_directions_of_a_singular_matrix_stay_out_of_the_svd():
    factor = doubles(4, 8, 3)
    mat = factor @ factor.mT  # of rank 3
    # A condition below 1e3 on the three directions leaves more than 12 digits.
    torch.testing.assert_close(svd_inverse(mat), torch.linalg.pinv(mat), rtol=1e-9, atol=1e-9)


def test_columns_that_have_converged_stay_as_they_are():
    # One step solves the first matrix, and the second needs all five.
    mat = torch.stack([torch.eye(5, dtype=torch.float64) * 2, positive(5, condition=10.0)])
    for num_iters in (1, 5, 50, 500):
        out = conjugate_gradient_inverse(mat, num_iters, ridge=0.0)
        assert torch.equal(out[0], torch.eye(5, dtype=torch.float64) / 2)
    torch.testing.assert_close(out[1], torch.linalg.inv(mat[1]), rtol=1e-12, atol=1e-12)
    few = conjugate_gradient_inverse(mat, 2, ridge=0.0)
    assert (few[1] - out[1]).norm() > 1e-3 * out[1].norm()  # an approximation
    with pytest.raises(ValueError, match='got 0'):
        conjugate_gradient_inverse(mat, 0)
