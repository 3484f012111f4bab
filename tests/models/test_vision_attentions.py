"""What the authors' files cannot show of the vision attentions."""

import pytest
import torch
import torch.nn.functional as F
from conftest import quiet_init
from mmengine.registry import MODELS

from mmlaplace.models.layers import elu_plus_one


def build(name, hw_shape=(7, 7), **options):
    sizes = dict(embed_dims=16, num_heads=2, input_resolution=hw_shape)
    attention = MODELS.build(dict(sizes, type=name) | options)
    quiet_init(attention)
    return attention.eval()


@pytest.mark.parametrize(('name', 'options'), [
    ('InLineAttention', dict(kernel='exp')),
    ('MALAAttention', dict(rope=False)),
    ('RALAAttention', dict(rope=False)),
    ('MLLAAttention', dict(rope=False)),
    ('MHLAAttention', dict(grid=3)),
    ('EcoFormerAttention', {}),
])  # fmt: skip
def test_rows_of_weights_sum_to_one(name, options):
    attention = build(name, **options).double()
    q, k = torch.randn(2, 1, 2, 35, 8, dtype=torch.float64)
    ones = torch.ones_like(q)
    # Epsilons of 1e-6 beside normalisers of at least 0.01.
    torch.testing.assert_close(attention.mix(q, k, ones, (5, 7)), ones, atol=1e-4, rtol=0)


def test_mixture_of_blocks_equals_the_formula():
    attention = build('MHLAAttention', grid=2).double()
    q, k, v = torch.randn(3, 1, 2, 35, 8, dtype=torch.float64)
    torch.nn.init.uniform_(attention.mixture)
    rows, columns = torch.arange(5) // 3, torch.arange(7) // 4  # blocks of 3 x 4, some cut
    block = (2 * rows[:, None] + columns).flatten()
    scores = (q.relu() + 1e-6) @ (k.relu() + 1e-6).mT * attention.mixture[block][:, block]
    expected = scores @ v / (scores.sum(-1, keepdim=True) + 1e-6)
    torch.testing.assert_close(attention.mix(q, k, v, (5, 7)), expected, atol=1e-10, rtol=1e-10)


def test_a_query_of_zeros_leaves_the_local_branch_of_nala():
    attention = build('NaLaAttention', qkv_bias=False)
    x = torch.randn(1, 49, 16)
    x[:, 3] = 0
    x.requires_grad_()
    out = attention(x, (7, 7))
    out.sum().backward()
    assert out.isfinite().all() and x.grad.isfinite().all()


def test_sums_that_no_half_holds_reach_the_norm_of_nala():
    attention = build('NaLaAttention')
    q, k = torch.zeros(2, 1, 2, 35, 8)
    v = torch.rand(1, 2, 35, 8).half().float()  # so that it is the same in all dtypes
    # Queries and keys that share no feature: the normaliser is its epsilon, and the rotated
    # products are not zero.
    q[..., 0], k[..., 1] = 1.0, 1.0
    gate = torch.ones(1, 35, 16)

    def gated(dtype):
        attention.to(dtype)
        mixed = attention.mix(*(x.to(dtype) for x in (q, k, v)), (5, 7))
        return mixed, attention.apply_gate(attention.merge_heads(mixed), gate.to(dtype))

    mixed, truth = gated(torch.float64)
    assert mixed.abs().max() > torch.finfo(torch.float16).max
    _, out = gated(torch.float16)
    assert out.dtype == torch.float16
    # Eleven bits of a result of size one, and fp32 before it.
    torch.testing.assert_close(out.double(), truth, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize('hw_shape', [(5, 7), (3, 1), (1, 4), (1, 1)])
def test_places_of_patches_have_sums_of_their_own_on_a_map_of_any_size(hw_shape):
    attention = build('SeparableAttention', patch_size=2)
    x = torch.randn(2, hw_shape[0] * hw_shape[1], 16)
    score, k, v = attention.qkv(x).split([1, 16, 16], -1)
    out = torch.empty(2, *hw_shape, 16)
    for i in (0, 1):
        for j in (0, 1):
            s, key, value = (t.unflatten(1, hw_shape)[:, i::2, j::2] for t in (score, k, v))
            weights = s.flatten(1).softmax(1)[..., None]
            context = (weights * key.flatten(1, 2)).sum(1)
            out[:, i::2, j::2] = context[:, None, None] * value.relu()
    expected = attention.proj(out.flatten(1, 2))
    # Two orders of the same fp32 sums.
    torch.testing.assert_close(attention(x, hw_shape), expected, atol=1e-6, rtol=1e-5)


def test_windows_are_averaged_place_by_place_with_reflected_borders():
    attention = build('FaViTAttention').double()
    x = torch.randn(2, 15 * 9, 16, dtype=torch.float64)
    for step in (1, 2):
        extent = 6 * step + 1
        maps = x.mT.unflatten(2, (15, 9))
        maps = F.pad(maps, (0, -9 % extent, 0, -15 % extent), 'reflect')
        windows = [maps[:, :, i : i + extent : step, j : j + extent : step]
                   for i in range(0, maps.shape[2], extent)
                   for j in range(0, maps.shape[3], extent)]  # fmt: skip
        expected = torch.stack(windows).mean(0).flatten(2).mT.unflatten(-1, (2, 8)).transpose(1, 2)
        out = attention.averages(x, (15, 9), step)
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=0)


def test_gate_of_tokens_is_no_constant_on_a_large_map():
    x = 3 * torch.randn(1, 64 * 64, 16)
    spread = {
        over: build('PolarizedAttention', softmax_over=over).token_gate(x).std().item()
        for over in ('channels', 'tokens')
    }
    assert spread['tokens'] < 1e-3 < 0.01 < spread['channels']


@pytest.mark.slow
@pytest.mark.parametrize('shortcut', [False, True])
def test_large_kernels_equal_those_of_mmpretrain(shortcut):
    van = pytest.importorskip('mmpretrain.models.backbones.van')
    theirs, ours = van.SpatialAttention(16), build('LargeKernelAttention', shortcut=shortcut)
    starts = {
        'proj_1.': 'value.', 'proj_2.': 'proj.', 'spatial_gating_unit.DW_conv.': 'near.conv.',
        'spatial_gating_unit.DW_D_conv.': 'far.', 'spatial_gating_unit.conv1.': 'weight.',
    }  # fmt: skip
    state = {}
    for name, value in theirs.state_dict().items():
        (start,) = (start for start in starts if name.startswith(start))
        name = starts[start] + name[len(start) :]
        state[name] = value.view(ours.state_dict()[name].shape)
    ours.load_state_dict(state)
    x = torch.randn(2, 16, 5, 9)
    out = ours(x.flatten(2).mT, (5, 9)).mT.unflatten(2, (5, 9))
    # Two orders of the same fp32 sums.
    torch.testing.assert_close(out + (0 if shortcut else x), theirs(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(('name', 'options', 'message'), [
    ('InLineAttention', dict(kernel='cosine'), r"'identity', 'relu', .*, got 'cosine'"),
    ('LiteMLA', dict(scales=(4,)), r'scales must be odd and positive, got \(4,\)'),
    ('AdditiveAttention', dict(expansion=0), 'expansion must be .* at least 1, got 0'),
    ('SeparableAttention', dict(patch_size=1.5), 'patch_size must be .* at least 1, got 1.5'),
    ('MHLAAttention', dict(transform='sine'), r"'cos', 'linear', .*, got 'sine'"),
    ('MHLAAttention', dict(normalizer='code'), r"\('weights', 'blocks'\), got 'code'"),
    ('MHLAAttention', dict(grid=0), 'grid must be .* at least 1, got 0'),
    ('MHLAAttention', dict(exp_sigma=0.0), r'exp_sigma must be positive, got 0\.0'),
    ('L2ViTAttention', dict(least_sum=0), 'least_sum must be positive and finite, got 0'),
    ('EcoFormerAttention', dict(offset='none'), r"\('all', 'own'\), got 'none'"),
    ('EcoFormerAttention', dict(num_bits=0), 'num_bits must be .* at least 1, got 0'),
    ('FaViTAttention', dict(average='all'), r"\('places', 'runs'\), got 'all'"),
    ('FaViTAttention', dict(sr_ratio=0), 'sr_ratio must be .* at least 1, got 0'),
    ('FaViTAttention', dict(num_heads=8), 'heads need at least 3 channels, got 2'),
    ('PolarizedAttention', dict(layout='both'), r"\('parallel', 'sequential'\), got 'both'"),
    ('PolarizedAttention', dict(softmax_over='all'), r"\('channels', 'tokens'\), got 'all'"),
])  # fmt: skip
def test_values_that_cannot_be_are_quoted_with_those_that_can(name, options, message):
    with pytest.raises(ValueError, match=message):
        build(name, **options)


def test_elu_plus_one_keeps_what_is_small():
    x = torch.tensor([-30.0, -12.0, -0.5, 0.0, 3.0], requires_grad=True)
    exact = torch.where(x > 0, x.double() + 1, x.double().clamp(max=0).exp())
    out = elu_plus_one(x)
    torch.testing.assert_close(out.double(), exact, atol=0, rtol=1e-6)  # roundings of fp32
    assert (F.elu(x) + 1)[0] == 0 < out[0]
    (slope,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(slope, torch.where(x > 0, 1.0, x.exp()).detach())


# Neighbourhood attention.


@pytest.mark.parametrize(
    ('hw_shape', 'kernel_size', 'dilation'),
    [((6, 9), 3, 1), ((7, 8), 3, 2), ((4, 11), 7, 1), ((2, 9), 3, 3)],
)
def test_a_query_sees_the_nearest_places_of_its_residue(hw_shape, kernel_size, dilation):
    """Against a softmax over the whole map with all other places masked."""
    torch.manual_seed(0)
    attention = build('NeighborhoodAttention', hw_shape, kernel_size=kernel_size, dilation=dilation)
    seen = torch.ones(1, 1, dtype=torch.bool)
    for side in hw_shape:
        step = min(dilation, max(1, side // kernel_size))
        axis = torch.zeros(side, side, dtype=torch.bool)
        for query in range(side):
            alike = [place for place in range(side) if (place - query) % step == 0]
            own = alike.index(query)
            count = min(kernel_size, side // step)
            start = min(max(own - count // 2, 0), len(alike) - count)
            axis[query, alike[start : start + count]] = True
        seen = torch.kron(seen.int(), axis.int()).bool()
    q, k, v = torch.randn(3, 1, 2, hw_shape[0] * hw_shape[1], 8)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    # Two fp32 softmaxes of at most 49 terms.
    torch.testing.assert_close(attention.mix(q, k, v, hw_shape), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(('kernel_size', 'dilation'), [(3, 1), (3, 2), (5, 1)])
def test_natten_computes_the_same(kernel_size, dilation):
    pytest.importorskip('natten')
    torch.manual_seed(0)
    sizes = dict(kernel_size=kernel_size, dilation=dilation)
    here, there = (
        build('NeighborhoodAttention', backend=backend, **sizes)
        for backend in ('reference', 'natten')
    )
    q, k, v = torch.randn(3, 1, 2, 10 * 13, 8)
    # As above.
    torch.testing.assert_close(
        here.mix(q, k, v, (10, 13)), there.mix(q, k, v, (10, 13)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(('options', 'message'), [
    (dict(kernel_size=4), 'odd and at least 3, got 4'),
    (dict(dilation=0), 'at least 1, got 0'),
    (dict(backend='cuda'), "got 'cuda'"),
])  # fmt: skip
def test_a_neighbourhood_that_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        build('NeighborhoodAttention', **options)
