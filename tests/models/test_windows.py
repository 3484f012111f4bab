"""Windows of a map: one copy, the derivatives of it, and windows that divide a map evenly."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from mmlaplace.models import PolaFormerPVT, PolaFormerSwin, WindowAttention
from mmlaplace.models.layers import join_windows, shifted_window_mask, split_windows

needs_compile = pytest.mark.skipif(
    not hasattr(torch.amp, 'is_autocast_available'),
    reason='before torch 2.4, torch.compile traces no context managers of libraries',
)
LAYOUTS = [((5, 7), 4, 0), ((5, 7), 4, 2), ((6, 4), (3, 2), (1, 0)), ((5, 7), (5, 4), (0, 2))]


def attention(hw_shape=(12, 12), **options):
    options = dict(dict(attn_cfg=dict(type='PolaAttention'), even_windows=True), **options)
    return WindowAttention(16, 2, hw_shape, **options).double().eval()


@pytest.mark.parametrize(('hw_shape', 'side', 'shift'), LAYOUTS)
def test_windows_are_slices_of_the_rolled_map(hw_shape, side, shift):
    x = torch.randn(2, hw_shape[0] * hw_shape[1], 3)
    height, width = (side, side) if isinstance(side, int) else side
    rows, columns = -(-hw_shape[0] // height), -(-hw_shape[1] // width)
    padded = torch.zeros(2, rows * height, columns * width, 3)
    padded[:, : hw_shape[0], : hw_shape[1]] = x.view(2, *hw_shape, 3)
    step = (shift, shift) if isinstance(shift, int) else shift
    rolled = padded.roll((-step[0], -step[1]), (1, 2))
    windows = split_windows(x, hw_shape, side, shift).view(2, rows, columns, height, width, 3)
    for i in range(rows):
        for j in range(columns):
            own = rolled[:, i * height : (i + 1) * height, j * width : (j + 1) * width]
            assert torch.equal(windows[:, i, j], own)
    windows = windows.reshape(-1, height * width, 3)
    assert torch.equal(join_windows(windows, hw_shape, side, shift), x)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(('hw_shape', 'side', 'shift'), LAYOUTS)
def test_windows_have_derivatives_of_two_orders(hw_shape, side, shift):
    x = torch.randn(1, hw_shape[0] * hw_shape[1], 2, dtype=torch.float64, requires_grad=True)
    windows = split_windows(x, hw_shape, side, shift).detach().requires_grad_()
    for function, value in ((split_windows, x), (join_windows, windows)):
        assert gradcheck(lambda t, f=function: f(t, hw_shape, side, shift), value)
        assert gradgradcheck(lambda t, f=function: f(t, hw_shape, side, shift).square(), value)


@needs_compile
def test_windows_compile_in_one_graph_with_their_gradients():
    def squares(x):
        windows = split_windows(x, (5, 7), 4, 2)
        return join_windows(windows * windows, (5, 7), 4, 2)

    x, chance = torch.randn(2, 1, 35, 2, dtype=torch.float64)
    x.requires_grad_()
    compiled = torch.compile(squares, fullgraph=True, backend='aot_eager')
    (grad,) = torch.autograd.grad(compiled(x), x, chance)
    torch.testing.assert_close(grad, 2 * x * chance)


def test_windows_take_vmap():
    x = torch.randn(3, 1, 35, 2)
    mapped = torch.func.vmap(lambda t: split_windows(t, (5, 7), 4, 2))(x)
    assert torch.equal(mapped.flatten(0, 1), split_windows(x[:, 0], (5, 7), 4, 2))


def test_a_window_as_large_as_the_map_is_the_map():
    x = torch.randn(2, 35, 3)
    assert split_windows(x, (5, 7), (5, 7)) is x
    assert join_windows(x, (5, 7), (5, 7)) is x


@pytest.mark.parametrize('window_size', [1, 4, 7, 56])
def test_even_windows_are_as_few_and_add_less_than_a_row_each(window_size):
    even = WindowAttention(8, 1, (9, 9), window_size, even_windows=True, shifted=True)
    for size in range(1, 70):
        (side, other), (shift, _) = even.window_and_shift((size, 9))
        count = -(-size // side)
        assert side <= window_size
        assert count == -(-size // window_size)  # no more windows than without
        assert count * side - size < count
        assert other == 9 if window_size >= 9 else other < 9  # height and width apart
        assert shift == (side // 2 if count > 1 else 0)
        assert side == window_size or size % window_size


def test_windows_of_56_are_windows_of_43_on_a_map_of_128():
    even = WindowAttention(8, 1, (56, 56), 56, even_windows=True, shifted=True)
    assert even.window_and_shift((56, 56)) == ((56, 56), (0, 0))
    assert even.window_and_shift((128, 128)) == ((43, 43), (21, 21))
    assert even.window_and_shift((200, 334)) == ((50, 56), (25, 28))  # 800 x 1333 pixels
    assert even.window_and_shift((40, 100)) == ((40, 50), (0, 25))


@pytest.mark.parametrize('shifted', [False, True])
@pytest.mark.parametrize('hw_shape', [(12, 12), (6, 18), (6, 6)])
def test_even_windows_change_nothing_where_the_window_divides_the_map(hw_shape, shifted):
    even, padded = (attention(even_windows=on, window_size=6, shifted=shifted)
                    for on in (True, False))  # fmt: skip
    padded.load_state_dict(even.state_dict())
    x = torch.randn(2, hw_shape[0] * hw_shape[1], 16, dtype=torch.float64)
    if shifted and min(hw_shape) == 6 < max(hw_shape):  # only even windows are shifted along it
        assert even.window_and_shift(hw_shape)[1] == (0, 3)
        assert padded.window_and_shift(hw_shape)[1] == (0, 0)
    else:
        assert torch.equal(even(x, hw_shape), padded(x, hw_shape))


def test_even_windows_are_the_attention_of_each_window():
    even = attention(window_size=4)
    x = torch.randn(1, 5 * 6, 16, dtype=torch.float64)  # 2 x 2 windows of 3 x 3, and a row of zeros
    padded = torch.nn.functional.pad(x.view(1, 5, 6, 16), (0, 0, 0, 0, 0, 1))
    expected = torch.zeros_like(padded)
    for i in (0, 3):
        for j in (0, 3):
            window = padded[:, i : i + 3, j : j + 3].reshape(1, 9, 16)
            expected[:, i : i + 3, j : j + 3] = even.attn(window, (3, 3)).view(1, 3, 3, 16)
    torch.testing.assert_close(even(x, (5, 6)), expected[:, :5].reshape(1, 30, 16))


def test_shifted_even_windows_keep_softmax_from_the_other_border():
    even = attention(attn_cfg=dict(type='SoftmaxAttention', relative_bias=True), window_size=4,
                     shifted=True)  # fmt: skip
    assert even.window_and_shift((6, 10)) == ((3, 4), (1, 2))
    x = torch.randn(1, 60, 16, dtype=torch.float64, requires_grad=True)
    out = even(x, (6, 10)).view(6, 10, 16)
    # The last window of rows has the last two rows, and the first, which was rolled there.
    (grad,) = torch.autograd.grad(out[5].sum(), x)
    assert grad.view(6, 10, 16).abs().sum((1, 2)).nonzero().flatten().tolist() == [4, 5]
    mask = shifted_window_mask((6, 10), (3, 4), (1, 2), x.device)
    assert mask.shape == (6, 12, 12) and mask[0].all() and not mask[-1].all()


def test_windows_of_a_map_that_shrinks_in_one_axis_are_masked_in_the_other():
    mask = shifted_window_mask((3, 8), (3, 4), (0, 2), torch.device('cpu'))
    assert mask[0].all()
    column = torch.arange(12) % 4 < 2  # the last two columns were rolled there
    assert torch.equal(mask[1], column[:, None] == column)


@pytest.mark.parametrize('hw_shape', [(14, 14), (10, 15), (9, 16)])
def test_tokens_see_each_other_where_the_regions_of_swin_are_one(hw_shape):
    # Swin numbers nine regions of the padded map, which shifted windows must not mix.
    region = torch.zeros([-(-size // 7) * 7 for size in hw_shape])
    parts = slice(0, -7), slice(-7, -3), slice(-3, None)
    for i, rows in enumerate(parts):
        for j, columns in enumerate(parts):
            region[rows, columns] = 3 * i + j
    tiles = region.unflatten(0, (-1, 7)).unflatten(2, (-1, 7)).transpose(1, 2).reshape(-1, 49)
    mask = shifted_window_mask(hw_shape, 7, 3, region.device)
    assert torch.equal(mask, tiles[:, :, None] == tiles[:, None])


def test_polaformer_swin_has_even_windows_where_it_is_linear():
    backbone = PolaFormerSwin(arch='micro', img_size=224)
    even = [stage['blocks'][0].attn.even_windows for stage in backbone.stages]
    assert even == [True, True, False, False]
    keys = [stage['blocks'][0].attn.attn.input_resolution for stage in backbone.stages]
    assert keys == [(56, 56), (28, 28), (7, 7), (7, 7)]


@pytest.mark.slow
@pytest.mark.parametrize('kind', [PolaFormerPVT, PolaFormerSwin])
def test_traced_models_are_saved_and_compute_the_same(kind, tmp_path):
    options = dict(attn_cfg=dict(window_size=7)) if kind is PolaFormerSwin else {}
    model, x = kind(arch='micro', img_size=64, **options).eval(), torch.randn(1, 3, 72, 64)
    torch.jit.save(torch.jit.trace(model, x), str(tmp_path / 'model.pt'))
    out = torch.jit.load(str(tmp_path / 'model.pt'))(x)[-1]
    # Powers in another way, in fp32.
    torch.testing.assert_close(out, model(x)[-1], rtol=1e-4, atol=1e-5)
