"""The contract of every registered attention; a new one is covered without a new test."""

import pytest
import torch
from conftest import NO_GPU, quiet_init, registered
from hypothesis import given, settings
from hypothesis import strategies as st
from mmengine.registry import MODELS

from mmlaplace.lab.compare.points import POINTS, Case
from mmlaplace.lab.compare.watching import Watch
from mmlaplace.models import BaseAttention, QKVAttention

ATTENTIONS = registered(BaseAttention)
# Without options each is as registered; those of tested_options compute by other paths.
CASES = [dict(type=name) for name in ATTENTIONS]
CASES += [dict(v, type=name) for name in ATTENTIONS for v in MODELS.get(name).tested_options]
# Products and softmax of these are in half precision, as PyTorch fuses them, or parts are layers.
PARTS_IN_HALF = ('Agent', 'CrossShaped', 'ELFATT', 'Linformer', 'SOFT', 'Softmax')


def name_of(cfg):
    """The id of a case: the name of a class, and options."""
    if isinstance(cfg, str):
        return cfg
    return '-'.join([cfg['type'], *(f'{k}={v}' for k, v in cfg.items() if k != 'type')])


def each(cases):
    return pytest.mark.parametrize('cfg', cases, ids=name_of)


def assert_near(cfg, out, exact, dtype):
    # Linears round their inputs and outputs to the half: a few roundings of values of size |exact|.
    off, size = (out.float() - exact).abs(), exact.abs()
    if cfg['type'] == 'MiTAAttention':  # rounding turns the choice of some keys
        assert off.norm() <= 0.05 * size.norm()
    else:
        assert off.max() <= 8 * torch.finfo(dtype).eps * size.max()


def needs_a_cpu_of(dtype):
    if dtype == torch.float16 and not hasattr(torch.amp, 'is_autocast_available'):
        pytest.skip('before torch 2.4, CPUs compute and autocast little in float16')


def build(cfg, embed_dims=64, num_heads=2, input_resolution=(7, 7)):
    sizes = dict(embed_dims=embed_dims, num_heads=num_heads, input_resolution=input_resolution)
    attention = MODELS.build(dict(cfg, **sizes))
    quiet_init(attention)
    return attention.eval()


@pytest.mark.sampled(10, 10)
@each(CASES)
@pytest.mark.parametrize('point', ['any size', 'batch', 'positions', 'parameters', 'fp16', 'bf16'])
def test_points_of_the_contract(cfg, point):
    """Those of ``python -m mmlaplace compare`` that take no second, also under options."""
    if point == 'fp16':
        needs_a_cpu_of(torch.float16)
    options = dict(cfg)
    cls = MODELS.get(options.pop('type'))
    # Landmarks that are drawn in training differ by the place of an image in its batch.
    drawn = point == 'batch' and options.get('landmark_method') == 'random'
    if not drawn and point not in cls.not_promised:
        POINTS[point].check(Case(cls, options, file=''))


@each(
    [
        c
        for c in CASES
        if issubclass(MODELS.get(c['type']), QKVAttention)
        and c['type'].replace('Attention', '') not in PARTS_IN_HALF
    ]
)
def test_what_is_mixed_under_autocast_is_rounded_once(cfg):
    attention = build(cfg)
    shapes = ((7, 7), *[attention.kv_shape((7, 7))] * 2)
    q, k, v = (torch.randn(2, 2, height * width, 32).bfloat16() for height, width in shapes)
    k = q if attention.frame.qkv == 'shared_qk' else k
    exact = attention.mix(*(x.float() for x in (q, k, v)), (7, 7))
    with torch.autocast('cpu', dtype=torch.bfloat16):
        out = attention.mix(q, k, v, (7, 7))
    # Half a unit in the last place of bf16; fp32 sums that cancel are off by some of their own.
    half, close = 0.505 * torch.finfo(torch.bfloat16).eps, 1e-5 * exact.abs().max().item()
    torch.testing.assert_close(out.float(), exact.float(), rtol=half, atol=close)


@pytest.mark.sampled(5)
@each(CASES)
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_run_and_train(cfg, dtype):
    needs_a_cpu_of(dtype)
    attention = build(cfg).to(dtype)
    x = torch.randn(2, 45, 64, dtype=dtype, requires_grad=True)
    out = attention(x, (5, 9))
    assert out.dtype == dtype
    out.float().mean().backward()
    assert x.grad.isfinite().all()
    if cfg['type'] != 'EcoFormerAttention':  # the rounding of a query turns its signs
        assert_near(cfg, out, attention.float()(x.detach().float(), (5, 9)), dtype)


@each(CASES)
@pytest.mark.parametrize(
    ('dtype', 'zeros'),
    [
        (torch.float32, slice(3, 4)),
        (torch.float16, slice(3, 4)),
        (torch.float32, slice(None)),
    ],
    ids=['one', 'one of halves', 'all'],
)
def test_tokens_of_zeros_have_no_larger_gradient_than_a_norm_gives_them(cfg, dtype, zeros):
    needs_a_cpu_of(dtype)
    if 'qkv_bias' in MODELS.get(cfg['type']).known_options():
        cfg = dict(cfg, qkv_bias=False)  # so that its query and key are zeros too
    attention = build(cfg)
    x = torch.randn(2, 49, 64)
    x[:, zeros] = 0  # as windows pad a map
    x.requires_grad_()
    with torch.autocast('cpu', dtype=torch.float16, enabled=dtype == torch.float16):
        out = attention(x, (7, 7))
    (out.float() * torch.randn(out.shape)).mean().backward()
    for parameter_name, value in [('x', x), *attention.named_parameters()]:
        assert value.grad.isfinite().all(), parameter_name
    sizes = x.grad.abs().amax((0, 2))
    # LayerNorm multiplies the gradient of zeros by 1e-5 ** -0.5 = 316, that of others by about 1.
    assert sizes[3] <= 1000 * sizes.median()


@NO_GPU
@each(CASES)
def test_a_gpu_gives_what_the_cpu_gives(cfg):
    attention = build(cfg).double()
    x = torch.randn(2, 45, 64, dtype=torch.float64)
    expected = attention(x, (5, 9))
    out = attention.cuda()(x.cuda(), (5, 9))
    torch.testing.assert_close(out.cpu(), expected, atol=1e-8, rtol=1e-8)


@each(CASES)
def test_wrong_tokens_heads_masks_and_options_are_quoted(cfg):
    attention, name = build(cfg), cfg['type']
    with pytest.raises(ValueError, match=r'64\) for hw_shape \(7, 7\), got \(2, 48, 64\)'):
        attention(torch.randn(2, 48, 64), (7, 7))
    with pytest.raises(ValueError, match=r'embed_dims \(100\).*num_heads \(3\)'):
        build(cfg, embed_dims=100, num_heads=3)
    with pytest.raises(TypeError, match=f"{name} has no option 'proj_dorp'.* input_resolution"):
        build(dict(cfg, proj_dorp=0.1))
    if not attention.accepts_mask:
        with pytest.raises(ValueError, match=f'{name} .* mask; call it without one'):
            attention(torch.randn(1, 49, 64), (7, 7), mask=torch.ones(49, 49, dtype=torch.bool))


maps = st.tuples(st.integers(1, 13), st.integers(1, 13))


@pytest.mark.sampled(8)
@pytest.mark.parametrize('name', ATTENTIONS)
@settings(deadline=None, derandomize=True, max_examples=25, database=None)
@given(maps, maps, st.sampled_from((1, 2, 4)), st.sampled_from((4, 8, 17)), st.integers(0, 3))
def test_attentions_take_any_map_heads_and_strides(name, hw_shape, resolution, heads, dims, batch):
    attention = build(dict(type=name), heads * dims, heads, resolution)
    tokens = hw_shape[0] * hw_shape[1]
    x = torch.randn(heads * dims, tokens, batch).permute(2, 1, 0)  # channels lie farthest apart
    out = attention(x, hw_shape)
    assert out.shape == x.shape
    assert torch.isfinite(out).all()
    # Strides change the order of sums: a few roundings of fp32.
    torch.testing.assert_close(out, attention(x.contiguous(), hw_shape), atol=1e-4, rtol=1e-4)


# ---- memory: tensors that grow as the tokens, or refused matrices of pairs

# All others in the registry are linear, under all options that the contract is tested with.
# Reformer chooses among N / b buckets.
QUADRATIC = (
    *[
        dict(type=f'{name}Attention')
        for name in ('Kernel', 'Softmax', 'ScaledCosine', 'FaViT', 'Reformer')
    ],
    dict(type='CastlingAttention', sparse_softmax=True),
    *[dict(type=f'{name}Attention', form='direct') for name in ('TaylorShift', 'Based')],
    # The number of landmarks grows with the map.
    *[dict(type=f'{name}Attention', pool_ratio=2) for name in ('Laplacian', 'SOFT')],
)
LINEAR = [cfg for cfg in CASES if not any(one.items() <= cfg.items() for one in QUADRATIC)]


def largest(cfg, resolution, side):
    attention = build(cfg, 16, 2, resolution or (side, side))
    x = torch.randn(1, side * side, 16, requires_grad=True)
    with Watch('', torch.Tensor.numel) as watch:
        attention(x, (side, side)).sum().backward()
    return watch.largest


@pytest.mark.sampled(3)
@each(LINEAR)
@pytest.mark.parametrize('resolution', [None, (7, 7)], ids=['of its map', 'of another map'])
def test_tensors_of_linear_attentions_grow_as_the_tokens(cfg, resolution):
    small, middle, large = (largest(cfg, resolution, side) for side in (16, 32, 64))
    assert middle <= 4 * small and large <= 4 * middle
    assert middle < 1024**2 / 4 and large < 4096**2 / 16


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('Kernel', {}),
        ('TaylorShift', dict(form='direct')),
        ('Based', dict(form='direct')),
        ('Castling', dict(sparse_softmax=True)),
        ('Reformer', dict(bucket_size=160 * 160)),
        ('Reformer', dict(form='pairs')),
        ('Softmax', dict(relative_bias=True)),
    ],
)
def test_too_many_pairs_are_refused_before_they_are_allocated(name, options):
    attention = build(dict(options, type=f'{name}Attention'), 8, 2, (4, 4))
    images = '1 image' if name == 'Softmax' else '3 images'  # whose bias is the same for all
    tokens = torch.zeros(1, 1, 1, 4, dtype=torch.float16).expand(3, 2, 160 * 160, 4)
    quoted = rf'{images} x 2 heads.*15.7 GB.*4 GB'
    with Watch('', torch.Tensor.numel) as watch, pytest.raises(ValueError, match=quoted):
        attention.mix(tokens, tokens, tokens, (160, 160))
    assert watch.largest <= tokens.numel()
