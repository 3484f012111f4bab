"""Windows of a map: slices, derivatives, Swin's masks, and windows that divide a map evenly."""

import pytest
import torch
from conftest import doubles, make_attention
from test_backbones import build, small

from mmlaplace.models import WindowAttention


def attention(hw_shape=(12, 12), **options):
    options = dict(attn_cfg=dict(type='PolaAttention'), even_windows=True) | options
    return make_attention('WindowAttention', hw_shape, init=False, **options)


@pytest.mark.parametrize('hw_shape', [(14, 14), (9, 16), (5, 12)])
@pytest.mark.parametrize('shifted', [False, True])
def test_windows_are_those_of_swin(hw_shape, shifted):
    """mmpretrain's Swin with the same weights; where its windows do not shrink with the map."""
    attentions = pytest.importorskip('mmpretrain.models.utils.attention')
    side = min(7, *hw_shape)
    ours = make_attention('WindowAttention', hw_shape, 0.5, window_size=side, shifted=shifted)
    shift = side // 2 if shifted and min(hw_shape) > 7 else 0
    theirs = attentions.ShiftWindowMSA(16, 2, side, shift_size=shift, pad_small_map=True)
    weights = ours.attn.state_dict()
    table = weights.pop('relative_bias').flatten(2)[0].T
    weights['relative_position_bias_table'] = table
    weights['relative_position_index'] = theirs.w_msa.relative_position_index
    theirs.double().eval().w_msa.load_state_dict(weights)
    x = doubles(2, hw_shape[0] * hw_shape[1], 16)
    torch.testing.assert_close(ours(x, hw_shape), theirs(x, hw_shape), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize('window_size', [1, 4, 7, 56])
def test_even_windows_are_as_few_and_add_less_than_a_row_each(window_size):
    even = WindowAttention(8, 1, (9, 9), window_size, even_windows=True, shifted=True)
    for size in range(1, 70):
        (side, other), (shift, _) = even.window_and_shift((size, 9))
        count = -(-size // side)
        assert side <= window_size
        assert count == -(-size // window_size)  # no more windows than without
        assert count * side - size < count
        assert other == 9 if window_size >= 9 else other < 9  # each axis has its own side
        assert shift == (side // 2 if count > 1 else 0)
        assert side == window_size or size % window_size


def test_even_windows_are_the_attention_of_each_window():
    even = attention(window_size=4)
    x = doubles(1, 5 * 6, 16)  # 2 x 2 windows of 3 x 3, and a row of zeros
    padded = torch.nn.functional.pad(x.view(5, 6, 16), (0, 0, 0, 0, 0, 1))
    windows = padded.unflatten(0, (2, 3)).unflatten(2, (2, 3)).transpose(1, 2)  # (2, 2, 3, 3, C)
    out = even.attn(windows.reshape(4, 9, 16), (3, 3)).view(windows.shape)
    expected = out.transpose(1, 2).flatten(2, 3).flatten(0, 1)[:5]
    torch.testing.assert_close(even(x, (5, 6)), expected.reshape(1, 30, 16))


def test_shifted_even_windows_keep_softmax_from_the_other_border():
    softmax = dict(type='SoftmaxAttention', relative_bias=True)
    even = attention(attn_cfg=softmax, window_size=4, shifted=True)
    assert even.window_and_shift((6, 10)) == ((3, 4), (1, 2))
    x = doubles(1, 60, 16).requires_grad_()
    out = even(x, (6, 10)).view(6, 10, 16)
    # The last window of rows has the last two rows, and the first, which was rolled there.
    (grad,) = torch.autograd.grad(out[5].sum(), x)
    assert grad.view(6, 10, 16).abs().sum((1, 2)).nonzero().flatten().tolist() == [4, 5]


@pytest.mark.parametrize(('name', 'even'), [('Swin', 0), ('PolaFormerSwin', 2)])
def test_windows_of_every_second_block_are_shifted_unless_all_are_told(name, even):
    arch = dict(small(name), depths=(3, 2, 1, 4))
    usual = [[False, True, False], [False, True], [False], [False, True] * 2]
    for told in (None, False, True):
        attn_cfg = dict(window_size=4) if told is None else dict(shifted=told)
        stages = build(name, arch, attn_cfg=attn_cfg).stages
        shifted = [[block.attn.shifted for block in stage['blocks']] for stage in stages]
        assert shifted == (usual if told is None else [[told] * len(stage) for stage in usual])
        # In the stages that are linear.
        evens = [stage['blocks'][0].attn.even_windows for stage in stages]
        assert evens == [True] * even + [False] * (4 - even)
