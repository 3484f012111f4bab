"""Windows of a map: slices, derivatives, Swin's masks, and windows that divide a map evenly."""

import gzip
import json

import pytest
import torch
import torch.nn.functional as F
from conftest import ROOT, doubles, make_attention
from mmengine.registry import MODELS
from test_backbones import build, small

from mmlaplace.checkpoints.published import recognise
from mmlaplace.models import PolaFormerSwin, Swin, WindowAttention
from mmlaplace.models.layers import join_windows, split_windows


def attention(hw_shape=(12, 12), **options):
    options = dict(attn_cfg=dict(type='PolaAttention'), even_windows=True) | options
    return make_attention('WindowAttention', hw_shape, init=False, **options)


@pytest.mark.parametrize(('hw_shape', 'side', 'shift'), [
    ((5, 7), 3, 0), ((5, 7), 4, 2), ((6, 4), (3, 2), (1, 0)), ((5, 7), (5, 4), (0, 2)),
])  # fmt: skip
def test_windows_are_slices_of_the_rolled_map(hw_shape, side, shift):
    x = torch.randn(2, hw_shape[0] * hw_shape[1], 3)
    height, width = (side, side) if isinstance(side, int) else side
    rows, columns = -(-hw_shape[0] // height), -(-hw_shape[1] // width)
    padded = torch.zeros(2, rows * height, columns * width, 3)
    padded[:, : hw_shape[0], : hw_shape[1]] = x.view(2, *hw_shape, 3)
    step = (shift, shift) if isinstance(shift, int) else shift
    rolled = padded.roll((-step[0], -step[1]), (1, 2))
    arguments = (hw_shape, side, shift) if shift else (hw_shape, side)  # by default not shifted
    windows = split_windows(x, *arguments).view(2, rows, columns, height, width, 3)
    for i in range(rows):
        for j in range(columns):
            own = rolled[:, i * height : (i + 1) * height, j * width : (j + 1) * width]
            assert torch.equal(windows[:, i, j], own)
    assert torch.equal(join_windows(windows.reshape(-1, height * width, 3), *arguments), x)


@pytest.mark.parametrize('hw_shape', [(14, 14), (9, 16), (5, 12)])
@pytest.mark.parametrize('shifted', [False, True])
def test_windows_are_those_of_swin(hw_shape, shifted):
    """mmpretrain's Swin with the same weights; where its windows do not shrink with the map."""
    attentions = pytest.importorskip('mmpretrain.models.utils.attention')
    side = min(7, *hw_shape)
    ours = make_attention('WindowAttention', hw_shape, 0.5, window_size=side, shifted=shifted)
    shift = side // 2 if shifted and min(hw_shape) > 7 else 0
    theirs = attentions.ShiftWindowMSA(16, 2, side, shift_size=shift, pad_small_map=True)
    theirs.double().eval().w_msa.load_state_dict(
        {
            **{k: v for k, v in ours.attn.state_dict().items() if k.startswith(('qkv', 'proj'))},
            'relative_position_bias_table': ours.attn.relative_bias.flatten(2)[0].T,
            'relative_position_index': theirs.w_msa.relative_position_index,
        }
    )
    x = doubles(2, hw_shape[0] * hw_shape[1], 16)
    torch.testing.assert_close(ours(x, hw_shape), theirs(x, hw_shape), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize('pixels', [(224, 192), (100, 260)])
def test_maps_of_small_images_are_those_of_mmdets_swin(pixels):
    """From the same weights; the last maps have 7 x 6 and 4 x 9 tokens."""
    swin = pytest.importorskip('mmdet.models.backbones.swin')
    manifest = gzip.decompress((ROOT / 'tests/data/manifests/swin_tiny.json.gz').read_bytes())
    shapes = json.loads(manifest)['authors']['shapes']
    weights = {k: 0.05 * torch.randn(shapes[k]) for k in shapes if 'index' not in k}
    ours, theirs = Swin(arch='tiny', pad_small_maps=True), swin.SwinTransformer(drop_path_rate=0.0)
    converted = recognise(weights).convert(weights).weights
    for model, state in (ours, converted), (theirs, swin.swin_converter(weights)):
        model.load_state_dict({k.removeprefix('backbone.'): v for k, v in state.items()}, False)
    ours.norm3.reset_parameters()  # those of the maps are new in mmdet
    for model in (ours, theirs):
        model.double().eval()
    x = doubles(1, 3, *pixels)
    with torch.no_grad():
        for own, other in zip(ours(x), theirs(x)):
            torch.testing.assert_close(own, other, atol=1e-10, rtol=1e-10)


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
    padded = torch.nn.functional.pad(x.view(1, 5, 6, 16), (0, 0, 0, 0, 0, 1))
    expected = torch.zeros_like(padded)
    for i in (0, 3):
        for j in (0, 3):
            window = padded[:, i : i + 3, j : j + 3].reshape(1, 9, 16)
            expected[:, i : i + 3, j : j + 3] = even.attn(window, (3, 3)).view(1, 3, 3, 16)
    torch.testing.assert_close(even(x, (5, 6)), expected[:, :5].reshape(1, 30, 16))


def test_shifted_even_windows_keep_softmax_from_the_other_border():
    softmax = dict(type='SoftmaxAttention', relative_bias=True)
    even = attention(attn_cfg=softmax, window_size=4, shifted=True)
    assert even.window_and_shift((6, 10)) == ((3, 4), (1, 2))
    x = doubles(1, 60, 16).requires_grad_()
    out = even(x, (6, 10)).view(6, 10, 16)
    # The last window of rows has the last two rows, and the first, which was rolled there.
    (grad,) = torch.autograd.grad(out[5].sum(), x)
    assert grad.view(6, 10, 16).abs().sum((1, 2)).nonzero().flatten().tolist() == [4, 5]


def test_polaformer_swin_has_even_windows_where_it_is_linear():
    backbone = PolaFormerSwin(arch='micro', img_size=224)
    even = [stage['blocks'][0].attn.even_windows for stage in backbone.stages]
    assert even == [True, True, False, False]


@pytest.mark.parametrize('hw_shape', [(4, 6), (5, 7)])
def test_stripes_are_columns_and_rows_of_maps_with_zeros_on_both_sides(hw_shape):
    sizes = dict(embed_dims=12, num_heads=3, input_resolution=(4, 6))
    attention = MODELS.build(dict(type='CrossShapedAttention', stripe_width=2, **sizes)).double()
    height, width = hw_shape
    x = torch.randn(2, height * width, 12, dtype=torch.float64)
    q, k, v = attention.qkv(x).unflatten(1, hw_shape).chunk(3, dim=-1)
    weight, bias, outs = *attention.lepe.filters(), []
    for turned, own in ((False, slice(0, 8)), (True, slice(8, 12))):  # two heads, then one
        maps = [t[..., own].transpose(1, 2) if turned else t[..., own] for t in (q, k, v)]
        odd = maps[0].shape[2] % 2  # then a column of zeros comes last
        maps = [F.pad(t, (0, 0, 0, odd)) for t in maps]
        out = torch.zeros_like(maps[0])
        for i in range(0, maps[0].shape[2], 2):
            queries, keys, values = (
                t[:, :, i : i + 2].flatten(1, 2).unflatten(2, (-1, 4)).transpose(1, 2) for t in maps
            )
            mixed = (queries @ keys.mT / 2).softmax(-1) @ values
            stripe = maps[2][:, :, i : i + 2].permute(0, 3, 1, 2)
            filters = weight[own].mT if turned else weight[own]
            local = F.conv2d(stripe, filters, bias[own], padding=1, groups=len(filters))
            mixed = mixed.transpose(1, 2).flatten(2).unflatten(1, (-1, 2))
            out[:, :, i : i + 2] = mixed + local.permute(0, 2, 3, 1)
        out = out[:, :, : out.shape[2] - odd]
        outs.append(out.transpose(1, 2) if turned else out)
    expected = attention.proj(torch.cat(outs, dim=-1).flatten(1, 2))
    torch.testing.assert_close(attention(x, hw_shape), expected)
    with pytest.raises(ValueError, match='got 0'):
        MODELS.build(dict(type='CrossShapedAttention', stripe_width=0, **sizes))


@pytest.mark.parametrize('name', ['Swin', 'PolaFormerSwin'])
def test_windows_of_every_second_block_are_shifted_unless_all_are_told(name):
    arch = dict(small(name), depths=(3, 2, 1, 4))
    usual = [[False, True, False], [False, True], [False], [False, True] * 2]
    for told in (None, False, True):
        attn_cfg = dict(window_size=4) if told is None else dict(shifted=told)
        stages = build(name, arch, attn_cfg=attn_cfg).stages
        shifted = [[block.attn.shifted for block in stage['blocks']] for stage in stages]
        assert shifted == (usual if told is None else [[told] * len(stage) for stage in usual])
