"""What holds for any map, any arch and any option, tried on inputs that nobody chose."""

from itertools import accumulate
from operator import mul

import pytest
import torch
from conftest import quiet_init, registered
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.registry import MODELS
from test_backbones import BACKBONES

from mmlaplace.models import BaseAttention
from mmlaplace.models.layers import (
    DepthwiseConv,
    Landmarks,
    join_windows,
    split_windows,
)

tried = settings(deadline=None, derandomize=True, max_examples=25, database=None)
sides = st.integers(1, 13)
maps = st.tuples(sides, sides)


@tried
@given(maps, st.integers(1, 8), st.data())
def test_windows_come_together_again(hw_shape, side, data):
    side = min(side, *hw_shape)
    shift = data.draw(st.integers(0, side - 1))
    x = torch.randn(2, hw_shape[0] * hw_shape[1], 3)
    windows = split_windows(x, hw_shape, side, shift)
    rows, columns = (-(-size // side) for size in hw_shape)
    assert windows.shape == (2 * rows * columns, side * side, 3)
    assert torch.equal(join_windows(windows, hw_shape, side, shift), x)
    # Padding aside, every token is in one window.
    assert windows.sum().item() == pytest.approx(x.sum().item(), abs=1e-3)  # fp32 sums


@tried
@given(
    maps, st.sampled_from((1, 2, 3)), st.integers(1, 4), st.sampled_from((1, 3, 5)), st.booleans(),
    st.sampled_from(('channel', 'head', 'head_channel')),
)  # fmt: skip
def test_a_depthwise_filter_sees_its_own_channel(hw_shape, heads, head_dims, kernel, bias, per):
    channels = heads * head_dims
    conv = DepthwiseConv(channels, kernel, heads, per, bias).double()
    x = torch.randn(2, hw_shape[0] * hw_shape[1], channels, dtype=torch.float64)
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


@tried
@given(maps, st.sampled_from((1, 4, 9, 16, 49)), st.integers(1, 5))
def test_landmarks_are_as_many_as_asked_or_a_token_each(hw_shape, count, ratio):
    height, width = hw_shape
    side = round(count**0.5)
    x = torch.randn(2, 3, height * width, 4)
    expected = min(side, height) * min(side, width)
    for options in ({}, dict(method='conv', pool_ratio=ratio, head_dims=4)):
        assert Landmarks(count, **options)(x, hw_shape).shape == (2, 3, expected, 4)
    growing = Landmarks(pool_ratio=ratio)(x, hw_shape)
    assert growing.shape == (2, 3, -(-height // ratio) * -(-width // ratio), 4)
    # Means of cells lie between the least and the greatest token.
    assert growing.max() <= x.max() + 1e-6 and growing.min() >= x.min() - 1e-6
    for method in ('random', 'first'):
        pick = Landmarks(count, method=method).eval()
        picked = pick(x, hw_shape)
        assert picked.shape[2] == min(count, height * width)
        assert torch.equal(picked, pick(x, hw_shape))
        assert picked.unique(dim=2).shape == picked.shape  # no token twice


ATTENTIONS = registered(BaseAttention)


@pytest.mark.sampled(8)
@pytest.mark.parametrize('name', ATTENTIONS)
@tried
@given(maps, maps, st.sampled_from((1, 2, 4)), st.sampled_from((4, 8, 17)), st.integers(0, 3))
def test_attentions_take_any_map_heads_and_strides(name, hw_shape, resolution, heads, dims, batch):
    attention = MODELS.build(
        dict(type=name, embed_dims=heads * dims, num_heads=heads, input_resolution=resolution)
    )
    quiet_init(attention)
    attention.eval()
    tokens = hw_shape[0] * hw_shape[1]
    x = torch.randn(heads * dims, tokens, batch).permute(2, 1, 0)  # channels lie farthest apart
    out = attention(x, hw_shape)
    assert out.shape == x.shape
    assert torch.isfinite(out).all()
    # Strides change the order of sums: a few roundings of fp32.
    torch.testing.assert_close(out, attention(x.contiguous(), hw_shape), atol=1e-4, rtol=1e-4)


@pytest.mark.sampled(4)
@pytest.mark.parametrize('name', BACKBONES)
@settings(deadline=None, derandomize=True, max_examples=8, database=None)
@given(st.data())
def test_backbones_take_any_arch_and_image(name, data):
    strides = tuple(accumulate((stage.stride for stage in MODELS.get(name).host()), mul))
    stages = len(strides)

    def of_stages(values):
        return data.draw(st.lists(values, min_size=stages, max_size=stages))

    heads = of_stages(st.integers(1, 3))
    head_dims = of_stages(st.sampled_from((4, 8, 12)))
    arch = dict(
        embed_dims=[h * d for h, d in zip(heads, head_dims)],
        depths=of_stages(st.integers(1, 2)),
        num_heads=heads,
        ffn_ratios=of_stages(st.sampled_from((1, 2.5, 4))),
    )
    out_indices = data.draw(st.sets(st.integers(0, stages - 1), min_size=1).map(sorted).map(tuple))
    backbone = MODELS.build(dict(type=name, arch=arch, img_size=32, out_indices=out_indices))
    quiet_init(backbone)
    backbone.eval()
    height, width = (data.draw(st.integers(strides[0], 70)) for _ in range(2))
    image = torch.randn(1, 3, height, width, requires_grad=True)
    outs = backbone(image)
    assert [tuple(out.shape) for out in outs] == [
        (1, arch['embed_dims'][i], -(-height // strides[i]), -(-width // strides[i]))
        for i in out_indices
    ]
    sum((out * torch.randn_like(out)).sum() for out in outs).backward()
    assert torch.isfinite(image.grad).all()
    for path, parameter in backbone.named_parameters():
        # A map of one token has nothing to mix, so zero gradients are no fault there.
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), path
