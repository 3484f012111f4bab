"""PolaFormer's attention and its hosts: dense formulas, windows as in Swin, bad input."""

import pytest
import torch
import torch.nn.functional as F
from conftest import quiet_init

from mmlaplace.models import PolaAttention, PolaFormerSwin, SoftmaxAttention, WindowAttention
from mmlaplace.models.layers import join_windows, split_windows


def build(cls, hw_shape=(6, 8), **kwargs):
    attention = cls(16, 2, input_resolution=hw_shape, **kwargs)
    quiet_init(attention)
    for parameter in attention.parameters():  # nothing is to hide at its first value
        torch.nn.init.normal_(parameter, std=0.5)
    return attention.double().eval()


def heads(x):
    return x.unflatten(-1, (2, 8)).transpose(1, 2)


def test_linear_time_form_equals_the_dense_formula():
    attention = build(PolaAttention)
    x = torch.randn(2, 48, 16, dtype=torch.float64)
    query, gate = attention.qkv(x).chunk(2, dim=-1)
    key, value = attention.kv(x).chunk(2, dim=-1)
    key = key + attention.key_positions.flatten(2).transpose(1, 2)
    scale = torch.log(1 + attention.scale.exp())
    query, key, value = heads(query / scale), heads(key / scale), heads(value)
    power = 1 + 4 / (1 + (-attention.power).exp())
    parts = {sign: [(sign * t).clamp(min=0) ** power for t in (query, key)] for sign in (1, -1)}
    same = parts[1][0] @ parts[1][1].mT + parts[-1][0] @ parts[-1][1].mT
    opposite = parts[-1][0] @ parts[1][1].mT + parts[1][0] @ parts[-1][1].mT
    streams = []
    for weights, part in ((same, value[..., :4]), (opposite, value[..., 4:])):
        streams.append(weights / (weights.sum(-1, keepdim=True) + 48e-6) @ part)
    mixed = torch.cat(streams, dim=-1)
    images = value.reshape(4, 6, 8, 8).permute(0, 3, 1, 2)  # heads are images
    local = attention.lepe.conv(images).flatten(2).mT.view(2, 2, 48, 8)
    out = (mixed + local).transpose(1, 2).flatten(2) * gate
    torch.testing.assert_close(attention(x, (6, 8)), attention.proj(out), atol=1e-10, rtol=1e-10)


def test_softmax_on_a_reduced_map_equals_the_dense_formula():
    attention = build(SoftmaxAttention, sr_ratio=4)
    x = torch.randn(2, 48, 16, dtype=torch.float64)
    image = F.pad(x.mT.view(2, 16, 6, 8), (0, 0, 0, 2))  # 4 does not divide 6 rows
    reduced = attention.sr.norm(attention.sr.projection(image).flatten(2).mT)
    query = attention.qkv(x)
    key, value = attention.kv(reduced).chunk(2, dim=-1)
    weights = (heads(query) @ heads(key).mT / 8**0.5).softmax(-1)
    out = attention.proj((weights @ heads(value)).transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x, (6, 8)), out, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize('hw_shape', [(14, 14), (9, 16), (7, 21), (5, 12)])
@pytest.mark.parametrize('shifted', [False, True])
def test_windows_are_those_of_swin(hw_shape, shifted):
    """mmpretrain's Swin with the same weights; where its windows do not shrink with the map."""
    attentions = pytest.importorskip('mmpretrain.models.utils.attention')
    window_size = min(7, *hw_shape)
    ours = build(WindowAttention, hw_shape, window_size=window_size, shifted=shifted)
    theirs = attentions.ShiftWindowMSA(
        16, 2, window_size, shift_size=window_size // 2 if shifted and min(hw_shape) > 7 else 0,
        pad_small_map=True,
    ).double().eval()  # fmt: skip
    theirs.w_msa.load_state_dict(
        {
            **{k: v for k, v in ours.attn.state_dict().items() if k.startswith(('qkv', 'proj'))},
            'relative_position_bias_table': ours.attn.relative_bias.flatten(2)[0].T,
            'relative_position_index': theirs.w_msa.relative_position_index,
        }
    )
    x = torch.randn(2, hw_shape[0] * hw_shape[1], 16, dtype=torch.float64)
    torch.testing.assert_close(ours(x, hw_shape), theirs(x, hw_shape), atol=1e-10, rtol=1e-10)


def test_window_is_the_map_where_the_map_is_smaller():
    attention = build(WindowAttention, (4, 4), window_size=7, shifted=True)
    assert attention.attn.relative_bias.shape[2:] == (7, 7)  # the offsets of 4 x 4 tokens
    x = torch.randn(1, 16, 16, dtype=torch.float64)
    torch.testing.assert_close(attention(x, (4, 4)), attention.attn(x, (4, 4)))


@pytest.mark.parametrize('shift', [0, 1, 2])
def test_windows_split_and_join(shift):
    x = torch.arange(2 * 35 * 3.0).view(2, 35, 3)
    windows = split_windows(x, (5, 7), 4, shift)
    assert windows.shape == (2 * 2 * 2, 16, 3)
    assert torch.equal(join_windows(windows, (5, 7), 4, shift), x)
    if shift == 0:
        assert torch.equal(windows[1, :3], x[0, 4:7])  # the second window of the first rows
        assert (windows[1, 3] == 0).all()  # and its padding


def test_every_second_block_of_swin_is_shifted():
    arch = dict(
        embed_dims=(16, 32, 64, 128), depths=(2, 1, 3, 1), num_heads=(1, 2, 4, 8),
        ffn_ratios=(2,) * 4,
    )  # fmt: skip
    backbone = PolaFormerSwin(arch, img_size=64)
    shifted = [[block.attn.shifted for block in stage['blocks']] for stage in backbone.stages]
    assert shifted == [[False, True], [False], [False, True, False], [False]]
    inner = [type(stage['blocks'][0].attn.attn).__name__ for stage in backbone.stages]
    assert inner == ['PolaAttention'] * 2 + ['SoftmaxAttention'] * 2


@pytest.mark.parametrize(
    ('cls', 'kwargs', 'message'),
    [
        (PolaAttention, dict(sr_ratio=0), 'sr_ratio must be an integer of at least 1, got 0'),
        (PolaAttention, dict(alpha=0), 'alpha must be positive and finite, got 0'),
        (PolaAttention, dict(lepe_kernel=2), 'odd, or 0 for none, got 2'),
        (WindowAttention, dict(window_size=0), 'window_size must be at least 1, got 0'),
        (SoftmaxAttention, dict(sr_ratio=0), 'sr_ratio must be an integer of at least 1, got 0'),
        (SoftmaxAttention, dict(sr_ratio=2, rope=True), 'got sr_ratio=2 and rope=True'),
        (SoftmaxAttention, dict(sr_ratio=2, qkv='shared_qk'), "got qkv='shared_qk'"),
        (SoftmaxAttention, dict(sr_ratio=2, relative_bias=True), 'on one map, got sr_ratio=2'),
        (SoftmaxAttention, dict(key_positions=True, qkv='shared_qk'), 'that are not the queries'),
        (SoftmaxAttention, dict(qkv='kv'), r"one of \('qkv', .*, got 'kv'"),
        (SoftmaxAttention, dict(lepe_filters='heads'), "'head_channel'.*, got 'heads'"),
        (
            SoftmaxAttention,
            dict(sr_ratio=2, num_prefix_tokens=1),
            r'num_prefix_tokens=1 are on no map.*sr_ratio=1 \(2\)',
        ),
    ],
)
def test_bad_options_are_quoted(cls, kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(cls, **kwargs)
