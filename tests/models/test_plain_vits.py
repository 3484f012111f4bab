"""Plain ViTs in dense heads: rotary positions, windows, several blocks, and pyramids of one map."""

import math
import warnings

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from conftest import doubles, make_attention
from mmengine.registry import MODELS

from mmlaplace import channels, plain_pyramid
from mmlaplace.checkpoints.of_timm import backbone_of_timm
from mmlaplace.models import DINOv2, DINOv3, ResizedPyramid, SimpleFeaturePyramid, ViT
from mmlaplace.models.layers import RotaryEmbedding2D, SwiGLU

ARCH = dict(embed_dims=(32,), depths=(4,), num_heads=(2,), ffn_ratios=(2,))
# Each host of one map, with the side of its patches.
HOSTS = {
    'ViT': (dict(type='ViT'), 16),
    'CLIP': (dict(type='ViT', position_norm=True, patch_size=14), 14),
    'SigLIP': (dict(type='ViT', with_cls_token=False), 16),
    'EVA-02': (dict(type='ViT', rope_form='reference', swiglu=True, patch_size=14), 14),
    'DINOv2': (dict(type='DINOv2', num_registers=4), 14),
    'DINOv3': (dict(type='DINOv3'), 16),
    'XCiT': (dict(type='XCiTBackbone', patch_size=8), 8),
}


def angles_of(form, height, width, pairs):
    """The angle of each token and pair, rows first, by the formulas of the papers."""
    token = torch.arange(height * width)
    angles = []
    for place, side in ((token // width, height), (token % width, width)):
        if form == 'centred':
            position, theta = 2 * math.pi * (2 * (place + 0.5) / side - 1), 100
        else:
            position, theta = 16 * place / side, 10000
        powers = theta ** -(torch.arange(pairs) / pairs)
        angles.append(position.double()[:, None] * powers.double())
    return torch.cat(angles, dim=1)  # (N, 2 * pairs)


@pytest.mark.parametrize('form', ['centred', 'reference'])
def test_positions_are_those_of_dinov3_and_eva02(form):
    x, hw_shape = doubles(1, 2, 15, 16), (3, 5)
    turned = RotaryEmbedding2D(16, form=form)(x, hw_shape)
    angles = angles_of(form, *hw_shape, 4)
    for pair in range(8):
        first, second = (pair, pair + 8) if form == 'centred' else (2 * pair, 2 * pair + 1)
        cos, sin = angles[:, pair].cos(), angles[:, pair].sin()
        a, b = x[..., first], x[..., second]
        torch.testing.assert_close(turned[..., first], a * cos - b * sin, rtol=0, atol=1e-6)
        torch.testing.assert_close(turned[..., second], a * sin + b * cos, rtol=0, atol=1e-6)


@pytest.mark.parametrize('kind', ['SoftmaxAttention', 'AgentAttention', 'LinearAttention'])
def test_positions_of_tokens_do_not_turn_prefix_tokens(kind):
    options = dict(num_prefix_tokens=3, lepe_kernel=0, rope=True, qkv='qkv')
    attention = make_attention(kind, (4, 6), **options)
    x = doubles(1, 3 + 24, attention.embed_dims)
    projected = attention.project(x, (4, 6))
    q, k, _ = attention.heads(projected, (4, 6))
    for turned, plain in ((q, projected.q), (k, projected.k)):
        plain = attention.split_heads(plain)
        assert torch.equal(turned[:, :, :3], plain[:, :, :3])
        own = attention.rotary(plain[:, :, 3:], (4, 6))
        torch.testing.assert_close(turned[:, :, 3:], own)
        assert not torch.allclose(turned[:, :, 4:], plain[:, :, 4:])


@pytest.mark.parametrize('prefix', [0, 3])
@pytest.mark.parametrize('hw_shape', [(8, 12), (9, 14), (4, 13), (3, 4)])
def test_windows_are_softmax_with_a_mask(hw_shape, prefix):
    options = dict(num_prefix_tokens=prefix, rope=True, rope_form='centred')
    windows = make_attention('SoftmaxAttention', hw_shape, 0.5, window_size=4, **options)
    dense = make_attention('SoftmaxAttention', hw_shape, 0.5, **options)
    dense.load_state_dict(windows.state_dict())
    height, width = hw_shape
    token = torch.arange(height * width)
    window = token // width // 4 * width + token % width // 4
    mask = torch.ones(prefix + len(token), prefix + len(token), dtype=torch.bool)
    mask[prefix:, prefix:] = window[:, None] == window
    x = doubles(2, prefix + len(token), windows.embed_dims).requires_grad_()
    out, expected = windows(x, hw_shape), dense(x, hw_shape, mask=mask)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(out)
    own, other = (torch.autograd.grad((y * weight).sum(), x)[0] for y in (out, expected))
    torch.testing.assert_close(own, other, rtol=1e-10, atol=1e-10)


def sizes_of_windows(backbone):
    return [getattr(block.attn, 'window_size', None) for block in backbone.stages[0].blocks]


@pytest.mark.parametrize('host', [ViT, DINOv2, DINOv3])
def test_all_blocks_have_windows_but_the_last_of_each_quarter(host):
    arch = dict(ARCH, depths=(8,))
    assert sizes_of_windows(host(arch, window_size=4)) == [4, 0, 4, 0, 4, 0, 4, 0]
    assert sizes_of_windows(host(arch, window_size=4, global_blocks=[7])) == [4] * 7 + [0]
    assert sizes_of_windows(host(arch)) == [0] * 8
    whole = host(ARCH, layer_scale=1.0)
    windows = host(ARCH, layer_scale=1.0, window_size=2, global_blocks=(3,))
    windows.load_state_dict(whole.state_dict())
    x = torch.randn(1, 3, 5 * whole.stage_strides[0], 4 * whole.stage_strides[0])
    own, other = whole.eval()(x)[0], windows.eval()(x)[0]
    assert own.shape == other.shape and not torch.allclose(own, other, atol=1e-2)


def test_a_hybrid_has_windows_where_softmax_stays():
    agent = dict(type='AgentAttention', num_landmarks=4)
    attn_cfg = dict(per_block=[agent, None, agent, None])
    backbone = DINOv3(ARCH, window_size=2, global_blocks=[3], attn_cfg=attn_cfg, img_size=64)
    assert sizes_of_windows(backbone) == [None, 2, None, 0]
    assert backbone.stages[0].blocks[0].attn.frame.rope_form == 'centred'
    assert backbone(torch.randn(1, 3, 64, 96))[0].shape == (1, 32, 4, 6)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(window_size=2, attn_cfg=dict(type='AgentAttention')), 'window_size=2 reaches no bl'),
        (dict(window_size=2, global_blocks=range(4)), 'window_size=2 reaches no block'),
        (dict(window_size=2, global_blocks=[4]), r'from 0 to 3, got \[4\]'),
        (dict(global_blocks=[1]), 'blocks without windows; set window_size'),
        (dict(window_size=-1), 'window_size must be an integer of at least 1, got -1'),
        (dict(out_blocks=(0, 1)), r'the last of them 3, .*got \(0, 1\)'),
        (dict(out_blocks=(3, 1)), r'rising order, .*got \(3, 1\)'),
        (dict(out_blocks=4), 'rising order, .*got 4'),
        (dict(out_blocks=(1, 3), out_type='cls_token'), "set out_type='featmap'"),
        (dict(num_registers=1.5), 'num_registers must be .* got 1.5'),
        (dict(out_indices=(1, 2, 3)), r'the only stage of a plain ViT.*neck=mmlaplace.plain_pyr'),
    ],
)
def test_bad_options_of_a_plain_vit_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DINOv3(ARCH, **options)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(ffn_norm=True), 'set swiglu=True'),
        (dict(rope_form='turned'), "rope_form must be one of .*got 'turned'"),
    ],
)
def test_bad_options_of_the_host_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ViT(ARCH, **options)


@pytest.mark.parametrize('options', [dict(relative_bias=True), dict(sr_ratio=2), dict(pool_size=2)])
def test_windows_without_a_map_of_keys_are_refused(options):
    with pytest.raises(ValueError, match='window_size=4 needs queries and keys on one map'):
        make_attention('SoftmaxAttention', (8, 8), window_size=4, **options)


def test_swiglu_is_its_formula():
    ffn = SwiGLU(6, 2, with_norm=True, norm_cfg=dict(type='LN', eps=1e-3)).double()
    nn.init.normal_(ffn.norm.weight)
    x = doubles(2, 5, 6)
    gate, values = ffn.first.weight[:12], ffn.first.weight[12:]
    bias = ffn.first.bias
    hidden = F.silu(x @ gate.T + bias[:12]) * (x @ values.T + bias[12:])
    hidden = (hidden - hidden.mean(-1, keepdim=True)) / (
        hidden.var(-1, unbiased=False, keepdim=True) + 1e-3
    ).sqrt()
    expected = (hidden * ffn.norm.weight + ffn.norm.bias) @ ffn.last.weight.T + ffn.last.bias
    torch.testing.assert_close(ffn(x, (1, 5)), expected)


@pytest.mark.parametrize('host', [ViT, DINOv3])
def test_several_blocks_give_their_maps_after_the_norm(host):
    backbone = host(ARCH, out_blocks=(1, 3)).eval()
    nn.init.normal_(backbone.norm0.weight)
    tokens = []
    for number in (1, 3):
        block = backbone.stages[0].blocks[number]
        block.register_forward_hook(lambda module, inputs, out: tokens.append(out))
    maps = backbone(torch.randn(2, 3, 64, 96))
    assert backbone.out_channels == (32, 32) and backbone.map_sides(96) == (6, 6)
    for found, out in zip(maps, tokens):
        expected = backbone.norm0(out)[:, backbone.cls_tokens[0] :]
        assert found.shape == (2, 32, 4, 6)
        assert torch.equal(found.flatten(2).mT, expected)
    plain = host(ARCH).eval()
    plain.load_state_dict(backbone.state_dict())
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(plain(x)[0], backbone(x)[-1])


def test_feature2pyramid_of_mmseg_takes_four_blocks():
    necks = pytest.importorskip('mmseg.models.necks')
    neck = necks.Feature2Pyramid(32, norm_cfg=dict(type='BN')).eval()
    maps = neck(DINOv3(ARCH, out_blocks=range(4)).eval()(torch.randn(1, 3, 64, 96)))
    assert [tuple(x.shape[2:]) for x in maps] == [(16, 24), (8, 12), (4, 6), (2, 3)]


@pytest.mark.parametrize('kind', ['SimpleFeaturePyramid', 'ResizedPyramid'])
@pytest.mark.parametrize('host', HOSTS)
def test_each_host_of_one_map_gets_the_strides_of_a_pyramid(host, kind):
    cfg, patch = HOSTS[host]
    cfg = dict(cfg, arch=ARCH)
    neck_cfg = plain_pyramid(cfg, kind, strides=(4, 8, 16, 32), num_outs=5)
    assert neck_cfg['patch_size'] == patch
    backbone, neck = MODELS.build(cfg).eval(), MODELS.build(neck_cfg).eval()
    for height, width in ((128, 128), (96, 160)):
        maps = neck(backbone(torch.randn(1, 3, height, width)))
        sides = [(height // s, width // s) for s in (4, 8, 16, 32)]
        assert [tuple(x.shape[2:]) for x in maps[:4]] == sides
        assert torch.equal(maps[4], maps[3][:, :, ::2, ::2])
        assert {x.shape[1] for x in maps} == {256 if kind == 'SimpleFeaturePyramid' else 32}


def test_the_simple_pyramid_is_that_of_vitdet():
    """By the layers that the paper names, with the weights of the neck."""
    neck = SimpleFeaturePyramid(8, 6, norm_cfg=dict(type='LN2d', eps=1e-3)).double()
    for parameter in neck.parameters():
        nn.init.normal_(parameter)
    x = doubles(2, 8, 4, 6)
    weights = iter(neck.parameters())

    def normed(x):
        mean, variance = x.mean(1, keepdim=True), x.var(1, unbiased=False, keepdim=True)
        scale, shift = (next(weights)[:, None, None] for _ in range(2))
        return (x - mean) / (variance + 1e-3).sqrt() * scale + shift

    def doubled(x):
        return F.conv_transpose2d(x, next(weights), next(weights), stride=2)

    for level, found in enumerate(neck((x,))):
        y = x
        if level == 0:
            y = doubled(F.gelu(normed(doubled(y))))
        elif level == 1:
            y = doubled(y)
        elif level == 3:
            y = F.max_pool2d(y, 2)
        y = normed(F.conv2d(y, next(weights)))
        y = normed(F.conv2d(y, next(weights), padding=1))
        torch.testing.assert_close(found, y)
    assert next(weights, None) is None


@pytest.mark.parametrize('patch', [14, 16])
def test_resized_levels_have_each_value_at_its_place_in_the_image(patch):
    """A map that is its own row and column, in pixels, is that at each stride too."""
    rows, columns = (patch * (torch.arange(n).double() + 0.5) for n in (16, 24))
    x = torch.stack([rows[:, None].expand(16, 24), columns.expand(16, 24)])[None]
    levels = ResizedPyramid(patch, strides=(4, 8, 16, 32))((x,))
    for stride, level in zip((4, 8, 16, 32), levels):
        for axis, found in enumerate(level[0]):
            found = found.select(1 - axis, 3)
            wanted = stride * (torch.arange(len(found)).double() + 0.5)
            inside = (wanted > patch / 2) & (wanted < patch * (x.shape[2 + axis] - 0.5))
            torch.testing.assert_close(found[inside], wanted[inside])
    each = [torch.full((1, 1, 4, 4), float(i)) for i in range(3)]
    assert [float(level.mean()) for level in ResizedPyramid()(each)] == [0, 1, 2]


@pytest.mark.parametrize('patch', [8, 14, 16])
@pytest.mark.parametrize('hw_shape', [(7, 9), (37, 36), (1, 3)])
def test_both_pyramids_have_cells_for_all_of_an_odd_map(patch, hw_shape):
    x = torch.rand(1, 8, *hw_shape)
    strides = (4, 8, 16, 32)
    simple = SimpleFeaturePyramid(8, 8, patch, strides)((x,))
    resized = ResizedPyramid(patch, strides)((x,))
    for stride, one, other in zip(strides, simple, resized):
        assert one.shape[2:] == other.shape[2:]
        for cells, side in zip(one.shape[2:], hw_shape):
            # Patches of 14 pixels may reach over the image, by less than the 16 of a cell.
            assert cells * stride > side * patch - (16 if patch == 14 else 1)
    # Each value is at its place, also in the last row and column: a ramp stays one inside.
    ramp = torch.arange(float(hw_shape[1])).expand(1, 1, *hw_shape)
    for stride, level in zip(strides, ResizedPyramid(patch, strides)((ramp,))):
        places = (torch.arange(level.shape[3]) + 0.5) * stride / patch - 0.5
        inside = (places >= 0) & (places <= hw_shape[1] - 1)
        torch.testing.assert_close(level[0, 0, 0, inside], places[inside], rtol=0, atol=1e-5)


@pytest.mark.parametrize('kind', ['SOFTAttention', 'MLLAAttention'])
def test_a_dinov3_whose_attention_has_no_such_positions_says_so(kind):
    arch = dict(embed_dims=[32], depths=[1], num_heads=[2], ffn_ratios=[2])
    with pytest.warns(UserWarning, match=f"'centred', and some of {kind} have none"):
        DINOv3(arch, with_cls_token=False, attn_cfg=dict(type=kind))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        DINOv3(arch)
        ViT(arch, with_cls_token=False, attn_cfg=dict(type=kind))


def test_a_name_of_timm_brings_the_activation_that_no_tensor_shows():
    pytest.importorskip('timm')
    tanh = dict(type='GELU', approximate='tanh')
    for name, activation in (
        ('vit_large_patch16_siglip_512.v2_webli', tanh),
        ('vit_base_patch16_siglip_224.v2_webli', None),
        ('vit_base_patch16_clip_quickgelu_224.openai', dict(type='QuickGELU')),
    ):
        assert backbone_of_timm(f'timm://{name}').get('act_cfg') == activation


def test_patches_of_14_are_first_resized_to_a_stride_of_16():
    neck = SimpleFeaturePyramid(8, 6, patch_size=14, strides=(16,)).double()
    other = SimpleFeaturePyramid(8, 6, patch_size=16, strides=(16,)).double()
    other.load_state_dict(neck.state_dict())
    x = doubles(1, 8, 16, 24)
    (resized,) = ResizedPyramid(14, strides=(16,))((x,))
    assert resized.shape[2:] == (14, 21)
    torch.testing.assert_close(neck((x,))[0], other((resized,))[0])


BAD_NECKS = [
    (dict(strides=(4, 12)), r'powers of two, .* got \(4, 12\)'),
    (dict(strides=(8, 4)), r'strides must rise, .* got \(8, 4\)'),
    (dict(strides=()), r'powers of two, .* got \(\)'),
    (dict(num_outs=3), 'at least the number of strides, 4, got 3'),
    (dict(in_channels=6), 'in_channels=6 cannot be halved .* stride 4'),
    (dict(patch_size=0), 'patch_size must be an integer of at least 1, got 0'),
]


@pytest.mark.parametrize(('options', 'message'), BAD_NECKS)
def test_bad_options_of_a_pyramid_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SimpleFeaturePyramid(**{'in_channels': 8, **options})


def test_other_maps_than_one_of_the_right_channels_are_refused():
    x = torch.randn(1, 8, 4, 4)
    neck = SimpleFeaturePyramid(8, 6)
    with pytest.raises(ValueError, match='of one map, got 4; leave out out_blocks'):
        neck([x] * 4)
    with pytest.raises(ValueError, match='has 16 channels; set in_channels=16'):
        neck([torch.randn(1, 16, 4, 4)])
    with pytest.raises(ValueError, match='one for each of the 3 strides, got 2; set out_blocks'):
        ResizedPyramid()([x, x])


def test_a_pyramid_behind_the_wrong_backbone_is_refused_with_the_fix():
    with pytest.raises(ValueError, match='Swin has maps of several strides.*leave it out'):
        plain_pyramid(dict(type='Swin', arch='tiny'))
    with pytest.raises(ValueError, match="must be one of .*, got 'FPN'"):
        plain_pyramid(dict(type='DINOv3'), 'FPN')
    message = 'reads 4 maps, and DINOv3 has 1; put a pyramid behind it by neck=mmlaplace.plain_pyr'
    with pytest.raises(ValueError, match=message):
        channels(dict(type='DINOv3'), maps=4)
    with pytest.raises(ValueError, match='Swin has 4; set its out_indices to 3 stages'):
        channels(dict(type='Swin', arch='tiny'), maps=3)
    assert channels(dict(type='DINOv3', out_blocks=(2, 5, 8, 11)), maps=4) == [384] * 4
