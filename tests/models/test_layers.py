"""Landmarks, and the parts around the attentions that the contract tests do not see into."""

import copy

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from called_ops import Called
from conftest import NO_GPU, doubles
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.runner.activation_checkpointing import turn_on_activation_checkpointing
from test_backbones import build as backbone
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from mmlaplace.models import LaplacianAttention
from mmlaplace.models.layers import (
    FFN,
    Landmarks,
    RMSNorm,
    RotaryEmbedding2D,
    RotaryOfAllHeads,
    TransformerBlock,
    resize_map,
)
from mmlaplace.models.layers.build import build_map_norm, build_token_norm
from mmlaplace.models.layers.pseudo_inverse import pseudo_inverse
from mmlaplace.models.layers.rep_norm import PRepBN
from mmlaplace.models.layers.solvers import conjugate_gradient_inverse, svd_inverse
from mmlaplace.models.layers.tables import forget_tables
from mmlaplace.ops import gaussian_kernel

SOFTMAX = dict(type='SoftmaxAttention', embed_dims=8, num_heads=2, input_resolution=(3, 4))


# ---- rotary positions


@pytest.mark.parametrize('head_dims', [3, 8, 17])  # the first has no pair
def test_rotary_positions_are_complex_rotations_by_row_and_column(head_dims):
    height, width, pairs = 3, 5, head_dims // 4
    x = doubles(1, 2, height * width, head_dims)
    first, second, rest = x.split([2 * pairs, 2 * pairs, head_dims - 4 * pairs], dim=-1)
    steps = torch.cartesian_prod(torch.arange(3.0).double(), torch.arange(5.0).double())
    rates = 50.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    angles = (steps[..., None] * rates).flatten(1)  # of rows, then of columns
    turned = torch.complex(first, second) * torch.exp(1j * angles)
    out = RotaryEmbedding2D(head_dims, theta=50.0)(x, (height, width))
    torch.testing.assert_close(out, torch.cat([turned.real, turned.imag, rest], dim=-1))


LAYOUTS = {
    'dense': lambda x: x,
    'heads side by side': lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    'channels apart': lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    'every other channel': lambda x: x.repeat_interleave(2, dim=-1)[..., ::2],
    'an odd width': lambda x: F.pad(x, (0, 1))[..., :-1],
    'an odd start': lambda x: F.pad(x, (1, 1))[..., 1:-1],
}


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.parametrize('head_dims', [8, 17])
def test_neighbouring_channels_turn_alike_in_every_layout_and_in_graphs(head_dims, layout):
    rotary, hw_shape = RotaryEmbedding2D(head_dims, form='pairs'), (3, 5)
    x = LAYOUTS[layout](doubles(2, 3, 15, head_dims)).requires_grad_()
    pairs = head_dims // 4
    turned, rest = x.split([4 * pairs, head_dims - 4 * pairs], dim=-1)
    steps = torch.cartesian_prod(torch.arange(3.0).double(), torch.arange(5.0).double())
    rates = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / (pairs - 1))
    angles = (steps[..., None] * rates).flatten(1)  # of rows, then of columns
    first, second = turned.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    expected = torch.stack([first * cos - second * sin, first * sin + second * cos], dim=-1)
    expected = torch.cat([expected.flatten(-2), rest], dim=-1)
    (slope,) = torch.autograd.grad(expected.sin().sum(), x)

    def turn(x):
        return rotary(x, hw_shape)

    graph = torch.jit.trace(turn, x.detach())
    assert 'complex' not in str(graph.inlined_graph)  # ONNX has no such numbers
    for found in (turn(x), graph(x), torch.func.vmap(turn)(x[:, None])[:, 0]):
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sin().sum(), x)[0], slope)


def test_rotary_positions_of_all_heads_take_one_product_and_no_copy():
    rotary, x = RotaryOfAllHeads(32), torch.randn(2, 15, 64)[..., :32]  # queries beside keys
    heads = x.view(2, 15, 4, 8).transpose(1, 2)
    rotary(heads, (3, 5))  # its table is kept from now on
    with Called() as called:
        rotary(heads, (3, 5))
    assert [op.overloadpacket.__name__ for op in called.computing] == ['mul']


@pytest.mark.parametrize('form', ['half', 'pairs'])
def test_rotary_keeps_fp32_positions_in_a_halved_model(form):
    x = torch.randn(1, 1, 100 * 3, 16).bfloat16()
    exact = RotaryEmbedding2D(16, form=form)(x.double(), (100, 3))
    out = RotaryEmbedding2D(16, form=form).bfloat16()(x, (100, 3))
    assert out.dtype == torch.bfloat16
    # One rounding of a value; angles rounded to bf16 would be off by whole turns at row 99.
    assert (out.double() - exact).abs().max() <= torch.finfo(torch.bfloat16).eps * 4


def test_tables_of_inference_mode_serve_in_training():
    attention, x = LaplacianAttention(16, 2, (3, 5)), torch.randn(1, 15, 16)
    forget_tables()
    with torch.inference_mode():
        attention(x, (3, 5))
    attention(x, (3, 5)).sum().backward()
    assert attention.qkv.weight.grad.isfinite().all()


def test_a_graph_for_a_gpu_makes_its_table_without_one():
    rotary = RotaryEmbedding2D(16)
    with FakeTensorMode():
        x = torch.empty(1, 2, 15, 16, device='cuda')
        assert rotary.table(x, (3, 5)).shape == (2, 8, 15)


@NO_GPU
def test_a_captured_cuda_graph_makes_its_own_table():
    # The cache forgets the one of another size, whose memory a later replay would read.
    rotary, x = RotaryEmbedding2D(16).cuda(), torch.randn(1, 2, 15, 16).cuda()
    kept = rotary.table(x, (3, 5))
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        own = rotary.table(x, (3, 5))
    graph.replay()
    assert own is not kept and torch.equal(own, kept)
    assert rotary.table(x, (3, 5)) is kept


@NO_GPU
def test_streams_that_run_at_once_turn_by_tables_of_their_own():
    rotary, x = RotaryEmbedding2D(64).cuda(), torch.randn(1, 2, 64 * 48, 64).cuda()
    expected = rotary.cpu()(x.cpu(), (64, 48))
    forget_tables()
    torch.cuda.synchronize()
    busy, free = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(busy):
        torch.cuda._sleep(10**9)  # half a second or so, in which nothing here is computed
        rotary(x, (64, 48))
    with torch.cuda.stream(free):
        out = rotary(x, (64, 48))
    free.synchronize()
    # A sum of two products, with the fp32 of another device.
    torch.testing.assert_close(out.cpu(), expected)


# ---- maps


@pytest.mark.parametrize('mode', ['bilinear', 'bicubic'])
def test_maps_are_resized_in_fp32_and_keep_their_dtype(mode):
    for other in (torch.rand(1, 2, 3, 6), *(torch.ones((2,) * axes) for axes in (1, 2, 3, 5))):
        assert resize_map(other, (3, 6), mode) is other  # of that size, or no map
    x = torch.rand(1, 2, 4, 4)
    out = resize_map(x.half(), (3, 6), mode)
    assert out.dtype == torch.float16 and out.shape == (1, 2, 3, 6)
    exact = F.interpolate(x.half().float(), (3, 6), mode=mode)
    # One rounding to the half, of values below 2.
    torch.testing.assert_close(out.float(), exact, atol=1e-3, rtol=0)


# ---- blocks and their parts


def test_the_norm_of_large_halves_is_that_of_fp32_rounded_once():
    norm, x = RMSNorm(64), 1000 * torch.randn(5, 64)  # whose squares no fp16 holds
    exact = norm(x.half().float())
    # Half a unit in the last place of fp16.
    torch.testing.assert_close(norm.half()(x.half()).float(), exact, rtol=2**-11, atol=1e-6)


@pytest.mark.parametrize('norm_first', [True, False])
def test_a_block_drops_both_of_its_branches_in_training_alone(norm_first):
    block = TransformerBlock(8, SOFTMAX, drop_path_rate=1 - 1e-9, norm_first=norm_first)
    x = torch.randn(2, 12, 8)
    left = x if norm_first else block.norm2(block.norm1(x))  # without the branches
    assert torch.equal(block.train()(x, (3, 4)), left)
    assert not torch.allclose(block.eval()(x, (3, 4)), left, atol=0.1)


@pytest.mark.parametrize('drop_rate', [0.0, 0.5])  # one op, or layers
def test_a_hook_of_the_layers_of_an_ffn_acts(drop_rate):
    ffn, x = FFN(8, 2, drop_rate).eval(), torch.randn(2, 12, 8)
    expected = ffn(x, (3, 4)) + 3
    ffn.layers.register_forward_hook(lambda layers, inputs, out: out + 3)
    torch.testing.assert_close(ffn(x, (3, 4)), expected)


def test_gradients_of_an_ffn_are_contiguous_as_compiled_graphs_expect():
    tokens = torch.randn(1, 16, 10).transpose(1, 2).requires_grad_()  # of a flattened map
    (grad,) = torch.autograd.grad(FFN(16, 4)(tokens, (2, 5)).sum(), tokens)
    assert grad.is_contiguous()


OF_TOKENS = [
    dict(type='RepBN'),
    dict(type='PRepBN', steps=3),
    dict(type=RMSNorm),
    dict(type=torch.nn.LayerNorm),
]
OF_MAPS = [dict(type=torch.nn.InstanceNorm1d), dict(type=torch.nn.BatchNorm1d)]


@pytest.mark.parametrize(
    ('build', 'norm', 'said'),
    [
        # They would norm the columns of a map that has as many as channels.
        *((build_map_norm, norm, r"of tokens, for maps; take one of \['BN'") for norm in OF_TOKENS),
        *((build_token_norm, norm, r"of maps, for tokens; take one of \['LN'") for norm in OF_MAPS),
    ],
)
def test_norms_of_tokens_and_of_maps_are_refused_for_each_other(build, norm, said):
    with pytest.raises(ValueError, match=said):
        build(norm, 8)


# ---- norms of SLAB, which change from LayerNorm to BatchNorm: what their count of forwards means


def with_prepbn(with_cp, **options):
    norm_cfg = dict(type='PRepBN', **options)
    return TransformerBlock(8, SOFTMAX, norm_cfg=norm_cfg, with_cp=with_cp).double()


def kept(block, x):
    return block(x, (3, 4))


def by_own_option(block, x):
    block.with_cp = True
    return block(x, (3, 4))


def without_graph(block, x):
    return checkpoint(block, x, (3, 4), use_reentrant=True)


def with_graph(block, x):
    return checkpoint(block, x, (3, 4), use_reentrant=False)


def around_its_own(block, x):
    return checkpoint(lambda x: by_own_option(block, x), x, use_reentrant=True)


def by_mmengine(block, x):
    if 'forward' not in vars(block):
        turn_on_activation_checkpointing(nn.ModuleDict(dict(block=block)), ['block'])
    return block(x, (3, 4))


WAYS = [by_own_option, without_graph, with_graph, around_its_own, by_mmengine]


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.filterwarnings('ignore:.*use_reentrant')
def test_a_forward_that_is_computed_again_counts_once_and_takes_the_first_share(way):
    found = []
    for compute in (kept, way):
        torch.manual_seed(0)
        block = with_prepbn(False, steps=5)
        for sizes in ((2, 3), (3, 1)):  # two passes before a backward, of batches of two sizes
            images = [doubles(size, 12, 8).requires_grad_() for size in sizes]
            sum(compute(block, x).square().sum() for x in images).backward()
        found.append(dict(block.named_buffers()))
        found[-1].update({name: p.grad for name, p in block.named_parameters()})
    assert found[1]['norm1.forwards'] == found[1]['norm1.bn.num_batches_tracked'] == 4
    torch.testing.assert_close(*found)


def test_a_norm_that_is_checkpointed_alone_knows_the_last_forward_of_a_batch_that_comes_again():
    x, found = doubles(2, 12, 8).requires_grad_(), []
    for checkpointed in (False, True):
        norm = PRepBN(8, steps=5).double()
        for _ in range(3):
            out = checkpoint(norm, x, use_reentrant=False) if checkpointed else norm(x)
            (grad,) = torch.autograd.grad(out.square().sum(), x)
        found.append((grad, dict(norm.named_buffers())))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize('way', WAYS)
@pytest.mark.parametrize('first', [0, 1])
@pytest.mark.filterwarnings('ignore:.*use_reentrant')
def test_a_batch_that_passes_twice_takes_the_share_of_each_pass(way, first):
    x, found = doubles(2, 12, 8), []
    for compute in (kept, way):
        torch.manual_seed(0)
        block = with_prepbn(False, steps=2)
        images = [x.clone().requires_grad_() for _ in range(2)]
        outs = [compute(block, image).square().sum() for image in images]
        for out in (outs[first], outs[1 - first]):  # in both orders
            out.backward()
        found.append([p.grad for p in block.parameters()] + [image.grad for image in images])
    assert (found[0][-1] - found[0][-2]).abs().max() > 0.01  # as the shares are 0 and 0.5
    torch.testing.assert_close(*found)


def test_forwards_are_remembered_on_their_own_device_and_by_no_copy_on_a_disk():
    norm = PRepBN(8, steps=3)
    for _ in range(100):
        norm(torch.randn(2, 5, 8))
    assert len(norm.recent) == 64
    assert set(norm.state_dict()) == set(PRepBN(8, steps=3).state_dict())
    assert not norm.to('meta').recent


def test_batch_norms_of_a_stage_count_once_whoever_checkpoints():
    found = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        stage = backbone('EfficientViT').train().stages[2]
        maps = torch.randn(2, 32, 8, 8).requires_grad_()
        tokens, _ = checkpoint(stage, maps, use_reentrant=True) if checkpointed else stage(maps)
        tokens.sum().backward()
        found.append(dict(stage.named_buffers()))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize('mode', [True, False])
def test_hooks_of_the_parts_of_a_norm_act(mode):
    norm, x = PRepBN(8, steps=2).double(), doubles(2, 5, 8)
    norm.forwards.fill_(1)
    norm.train(mode)
    share = 0.5 if mode else 1.0
    before = copy.deepcopy(norm)(x) + share * 3.0
    norm.bn.register_forward_hook(lambda bn, inputs, out: out + 3)
    torch.testing.assert_close(norm(x), before)


@pytest.mark.parametrize('with_cp', [False, True])
def test_a_norm_goes_from_layer_norm_to_batch_norm_and_tokens(with_cp):
    block = with_prepbn(with_cp, steps=4, warmup=2)
    norm, x = block.norm1, doubles(3, 12, 8).requires_grad_()
    torch.nn.init.constant_(norm.alpha, 0.5)
    got = []
    norm.register_forward_hook(lambda module, inputs, out: got.append(out))
    both = [
        F.batch_norm(x.flatten(0, 1), None, None, training=True).view_as(x) + x / 2,
        F.layer_norm(x, (8,), eps=1e-6),
    ]
    for share in (0, 0, 0, 0.25, 0.5, 0.75, 1, 1):
        block(x, (3, 4)).sum().backward()
        for out in got:  # once, or again in the backward pass
            torch.testing.assert_close(out, share * both[0] + (1 - share) * both[1])
        got.clear()
    assert norm.bn.num_batches_tracked == 8
    norm.eval()
    mean, variance = norm.bn.running_mean, norm.bn.running_var
    expected = (x - mean) / (variance + 1e-5).sqrt() + x / 2
    torch.testing.assert_close(norm(x), expected)
    with pytest.raises(ValueError, match='got 0 and -1'):
        PRepBN(8, steps=0, warmup=-1)


@pytest.mark.parametrize('count', [0, 1, 375000])
def test_a_norm_with_frozen_statistics_trains_as_it_is_tested(count):
    norm_cfg = dict(type='PRepBN', steps=300000)
    model = backbone('PVT', norm_cfg=norm_cfg, norm_eval=True)
    norms = [module for module in model.modules() if isinstance(module, PRepBN)]
    for norm in norms:
        norm.forwards.fill_(count)
        torch.nn.init.constant_(norm.layer_norm.weight, 2.0)
        norm.bn.running_var.uniform_(0.5, 2)
    images = torch.randn(2, 3, 64, 64)
    outs = model.train()(images)
    torch.testing.assert_close(outs, model.eval()(images))
    sum(out.square().sum() for out in outs).backward()
    # DistributedDataParallel waits for one of each.
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert {norm.forwards.item() for norm in norms} == {count}


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_a_norm_of_halves_counts_on(dtype):
    # Where bf16 ends at 256, and fp16 at 2048.
    norm = PRepBN(8, steps=300000)
    norm.forwards.fill_(70001)
    norm = copy.deepcopy(norm).to(dtype)
    assert norm.bn.weight.dtype == dtype
    norm(torch.randn(2, 5, 8, dtype=dtype))
    assert norm.forwards.item() == 70002


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
    weight = doubles(2, 3, 12, 12)
    weight = weight + weight.mT  # the pseudo-inverse is told the symmetric part alone
    one, other = (torch.autograd.grad((out * weight).sum(), mat)[0] for out in (ours, exact))
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)  # two inverses in a product


@BOTH
def test_halves_are_inverted_in_fp32_and_a_nan_spoils_its_matrix_alone(inverse):
    mat = positive(3, 6, condition=10.0).half()
    expected = inverse(mat.float())
    # One rounding, of the result or of none.
    torch.testing.assert_close(inverse(mat).float(), expected, rtol=2**-10, atol=0)
    mat[1, 2, 3] = float('nan')
    spoilt = inverse(mat.float())
    assert spoilt[1].isnan().all()
    torch.testing.assert_close(spoilt[[0, 2]], expected[[0, 2]])
    assert inverse(mat[:0]).shape == (0, 6, 6)
    with pytest.raises(ValueError, match=r'\(2, 3\)'):
        inverse(torch.ones(2, 3))
    with pytest.raises(ValueError, match='got -1.0'):
        inverse(torch.eye(2), ridge=-1.0)


def test_far_landmarks_give_the_pseudo_inverse_no_tiny_numbers():
    """Which take a CPU up to 60 times as long. Their gradients are those of fp64 all the same."""
    points = 3 * torch.randn(4, 20, 16, generator=torch.Generator().manual_seed(0))
    mat = gaussian_kernel(points[:, None], points[:, None], 2.0)
    mat = mat / mat.sum(-1, keepdim=True)
    assert ((mat > 0) & (mat < 1e-19)).any()
    single, double = mat.requires_grad_(), mat.detach().double().requires_grad_()
    inverses = [pseudo_inverse(leaf, 6) for leaf in (single, double)]
    sum(inverse.sin().sum() for inverse in inverses).backward()
    for found, exact in (inverses, (single.grad, double.grad)):
        torch.testing.assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)  # rounding of fp32
        assert (found[found != 0].abs() >= 1e-19).all()


def test_directions_of_a_singular_matrix_stay_out_of_the_svd():
    factor = doubles(4, 8, 3)
    mat = factor @ factor.mT  # of rank 3
    # A condition below 1e3 on the three directions leaves more than 12 digits.
    torch.testing.assert_close(svd_inverse(mat), torch.linalg.pinv(mat), rtol=1e-9, atol=1e-9)


def made(**options):
    return Landmarks(head_dims=8, **options).eval()


@settings(deadline=None, derandomize=True, max_examples=25, database=None)
@given(
    st.tuples(st.integers(1, 13), st.integers(1, 13)),
    st.sampled_from((1, 4, 9, 16, 49)),
    st.integers(1, 5),
)
def test_landmarks_are_as_many_as_asked_or_a_token_each(hw_shape, count, ratio):
    (height, width), side = hw_shape, round(count**0.5)
    x = torch.randn(2, 3, height * width, 8)
    expected = min(side, height) * min(side, width)
    if 1 in hw_shape:  # a line has them all in one row
        expected = min(count, height * width)
    for options in ({}, dict(method='conv', pool_ratio=ratio)):
        assert made(num_landmarks=count, **options)(x, hw_shape).shape == (2, 3, expected, 8)
    growing = made(pool_ratio=ratio)(x, hw_shape)
    assert growing.shape == (2, 3, -(-height // ratio) * -(-width // ratio), 8)
    for method in ('random', 'first'):
        picked = made(num_landmarks=count, method=method)(x, hw_shape)
        assert picked.shape[2] == min(count, height * width)
        assert picked.unique(dim=2).shape == picked.shape  # no token twice


def test_exact_landmarks_repeat_tokens_of_short_sides():
    x = torch.randn(2, 2, 3 * 9, 8)
    found = Landmarks(49, exact=True)(x, (3, 9))
    assert found.shape == (2, 2, 49, 8)
    by_hand = F.adaptive_avg_pool2d(x.flatten(0, 1).mT.unflatten(2, (3, 9)), 7)
    # Sums of up to nine tokens in another order.
    torch.testing.assert_close(found, by_hand.flatten(2).mT.unflatten(0, (2, 2)))


def test_a_map_smaller_than_the_convolution_gets_zeros():
    landmarks = made(method='conv', pool_ratio=4)
    x = torch.randn(1, 1, 2 * 3, 8)
    padded = torch.zeros(1, 8, 4, 4)
    padded[:, :, :2, :3] = x[0].mT.view(1, 8, 2, 3)
    torch.testing.assert_close(landmarks(x, (2, 3))[0], landmarks.conv(padded).flatten(2).mT)


def test_methods_take_what_their_names_say():
    x = torch.arange(2 * 36.0).view(1, 2, 36, 1).expand(-1, -1, -1, 8)
    first = made(method='first', num_landmarks=4)(x, (6, 6))
    assert first[0, 0, :, 0].tolist() == [0, 1, 2, 3]
    average = made(pool_ratio=3)(x, (6, 6))
    assert average[0, 0, :, 0].tolist() == [7, 10, 25, 28]
    random = made(method='random', num_landmarks=4)
    assert torch.equal(random(x, (6, 6)), random(x, (6, 6)))  # to evaluate is to repeat
    picks = random.train()(x, (6, 6))[0]
    assert len(picks[0, :, 0].unique()) == 4
    assert torch.equal(picks[1] - picks[0], torch.full_like(picks[0], 36))  # alike in all heads
    assert any(not torch.equal(picks, random(x, (6, 6))[0]) for _ in range(5))


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(num_landmarks=49, pool_ratio=2), r"\(49\) or pool_ratio \(2\), not both.*'pool'"),
        (dict(method='conv', num_landmarks=49), "'conv' need pool_ratio"),
        (dict(method='conv', num_landmarks=49, pool_ratio=2, exact=True), r"'pool' \('conv'\)"),
        (dict(pool_ratio=2, exact=True), 'exact=True needs num_landmarks'),
    ],
)
def test_options_that_would_be_ignored_are_quoted(options, message):
    with pytest.raises(ValueError, match=message):
        made(**options)
