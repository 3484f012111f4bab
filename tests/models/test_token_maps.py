"""Tokens and maps share their memory: what convolutions of tokens copy, and what they give."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from mmlaplace.models.layers import (
    ConvPatchEmbed,
    DepthwiseConv,
    OverlapPatchEmbed,
    PatchEmbed,
    PatchMerging,
    map_to_tokens,
    tokens_to_map,
)

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
def test_maps_of_tokens_are_channels_last_at_any_batch(batch):
    x = torch.randn(batch, 15, 4)
    maps = tokens_to_map(x, (3, 5))
    assert maps.stride() == (60, 1, 20, 4)
    assert maps.data_ptr() == x.data_ptr()
    assert map_to_tokens(maps).stride() == x.stride()
    assert map_to_tokens(maps).data_ptr() == x.data_ptr()


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


@pytest.mark.parametrize('kind', EMBEDDINGS)
def test_patch_embeddings_take_maps_of_any_order(kind):
    embed = EMBEDDINGS[kind]().double().eval()
    x = torch.randn(2, 16, 9, 14, dtype=torch.float64)
    tokens, hw_shape = embed(x)
    others, other_shape = embed(x.to(memory_format=torch.channels_last))
    assert hw_shape == other_shape == (5, 7)
    # fp64 sums in another order.
    torch.testing.assert_close(tokens, others, rtol=0, atol=1e-12)


def test_patch_merging_copies_once():
    merging, x = PatchMerging(16, 24).eval(), torch.randn(1, 20 * 28, 16)
    with torch.no_grad():
        assert copies(lambda: merging(tokens_to_map(x, (20, 28))), x.numel()) == 1


@pytest.mark.parametrize('hw_shape', [(4, 6), (5, 7)])
def test_patch_merging_puts_the_four_column_by_column(hw_shape):
    merging, x = PatchMerging(3, 8), torch.randn(2, 3, *hw_shape)
    padded = torch.nn.functional.pad(x, (0, hw_shape[1] % 2, 0, hw_shape[0] % 2))
    four = [padded[..., i::2, j::2] for j in (0, 1) for i in (0, 1)]  # mmcv's and Swin's order
    expected = merging.reduction(merging.norm(torch.cat(four, dim=1).flatten(2).mT))
    tokens, merged_shape = merging(x)
    assert merged_shape == tuple(-(-side // 2) for side in hw_shape)
    torch.testing.assert_close(tokens, expected)
