"""What the papers' ablations switch: each option does what it says, and equals a plain formula."""

import pytest
import torch
import torch.nn.functional as F
from conftest import quiet_init
from mmengine.registry import MODELS
from test_backbones import build as build_backbone

from mmlaplace.models import (
    SOFT,
    KernelAttention,
    LaplacianAttention,
    LaplacianFormer,
    PolaAttention,
    SOFTAttention,
    SoftmaxAttention,
    SOFTPlusPlus,
    ViT,
)
from mmlaplace.models.layers import ConvPatchEmbed, DropPath, OverlapPatchEmbed, PatchEmbed
from mmlaplace.models.layers.deformable import DeformableConv

HW = (6, 8)
IMAGES = torch.randn(2, 3, 64, 96)


def build(cls, hw_shape=HW, embed_dims=16, **kwargs):
    attention = cls(embed_dims, 2, input_resolution=hw_shape, **kwargs)
    quiet_init(attention)
    for parameter in attention.parameters():  # nothing is to hide at its first value
        torch.nn.init.normal_(parameter, std=0.5)
    return attention.double().eval()


def tokens(count=48):
    return torch.randn(2, count, 16, dtype=torch.float64)


def heads(x):
    return x.unflatten(-1, (2, 8)).transpose(1, 2)


def close(ours, expected, atol=1e-9):
    # fp64, and sums of at most 48 tokens and inverses of a condition of some hundreds.
    torch.testing.assert_close(ours, expected, atol=atol, rtol=1e-9)


def gaussian(x, y):
    return torch.exp(-(x[..., :, None, :] - y[..., None, :, :]).square().sum(-1) / 2)


# ---- SOFT


def dense_soft(attention, query, key, hw_shape=HW):
    """The N x N matrix of SOFT with a ridge; queries and keys are scaled already."""
    prefix = attention.num_prefix_tokens
    maps = query[:, :, prefix:].flatten(0, 1).unflatten(1, hw_shape).permute(0, 3, 1, 2)
    conv = attention.landmarks.conv
    marks = F.conv2d(maps, conv.weight, stride=conv.stride).flatten(2).mT.unflatten(0, (2, 2))
    marks = attention.landmark_norm(marks)
    kernel = gaussian(marks, marks)
    inverse = torch.linalg.inv(kernel + attention.ridge * torch.eye(kernel.shape[-1]).double())
    if attention.normalized:
        root = kernel.sum(-1).rsqrt()
        inverse = root[..., :, None] * inverse * root[..., None, :]
    return gaussian(query, marks) @ inverse @ gaussian(marks, key)


@pytest.mark.parametrize('solver', ['newton_schulz', 'svd', 'cholesky'])
@pytest.mark.parametrize('normalized', [False, True])
@pytest.mark.parametrize('qkv', ['shared_qk', 'qkv', 'q_kv'])
def test_soft_with_its_own_keys_and_any_solver_equals_the_dense_formula(qkv, normalized, solver):
    options = dict(pool_ratio=2, ridge=1e-2, num_iters=60, lepe_kernel=0)
    attention = build(SOFTAttention, qkv=qkv, normalized=normalized, solver=solver, **options)
    x = tokens()
    parts = attention.qkv(x) if attention.kv is None else torch.cat(
        [attention.qkv(x), attention.kv(x)], dim=-1
    )  # fmt: skip
    *qk, value = (heads(part) for part in parts.split(16, dim=-1))
    assert len(qk) == (1 if qkv == 'shared_qk' else 2)
    weights = dense_soft(attention, qk[0] / 8**0.25, qk[-1] / 8**0.25)
    expected = attention.proj((weights @ value).transpose(1, 2).flatten(2))
    close(attention(x, HW), expected)


def test_soft_takes_a_ridge_for_cholesky_and_none_for_the_others():
    for normalized in (True, False):
        ridges = [
            build(SOFTAttention, normalized=normalized, solver=solver).ridge
            for solver in ('newton_schulz', 'svd', 'cholesky')
        ]
        assert ridges == ([0, 0, 1e-2] if normalized else [1e-2] * 3)
    with pytest.raises(ValueError, match="solver must be one of .*'svd', 'cholesky'.*, got 'lu'"):
        build(SOFTAttention, solver='lu')


@pytest.mark.parametrize('normalized', [False, True])
def test_a_class_token_is_a_query_and_a_key_but_no_part_of_a_landmark(normalized):
    options = dict(pool_ratio=2, ridge=1e-2, num_iters=60, num_prefix_tokens=1)
    attention = build(SOFTAttention, normalized=normalized, **options)
    x = tokens(49)
    query, value = (heads(part) for part in attention.qkv(x).split(16, dim=-1))
    mixed = dense_soft(attention, query / 8**0.25, query / 8**0.25) @ value
    values = value.transpose(1, 2).flatten(2)
    # The token's own value stands for its convolution.
    local = torch.cat([values[:, :1], attention.lepe(values[:, 1:], HW)], dim=1)
    expected = attention.proj(mixed.transpose(1, 2).flatten(2) + local)
    close(attention(x, HW), expected)


@pytest.mark.parametrize('attn_cfg', [dict(type='SOFTAttention'), dict(qkv='shared_qk')])
def test_a_plain_vit_has_soft_or_shared_queries_beside_its_class_token(attn_cfg):
    arch = dict(embed_dims=[32], depths=[2], num_heads=[2], ffn_ratios=[2])
    backbone = ViT(arch, attn_cfg=attn_cfg, img_size=(64, 96), out_type='cls_token')
    quiet_init(backbone)
    (token,) = backbone(IMAGES)
    assert token.shape == (2, 32)
    token.square().sum().backward()
    missing = [name for name, p in backbone.named_parameters() if p.grad is None]
    assert missing == []
    (maps,) = ViT(arch, attn_cfg=attn_cfg, img_size=(64, 96))(IMAGES[..., :80])
    assert maps.shape == (2, 32, 4, 5)


def test_shared_queries_beside_a_class_token_are_the_keys_of_softmax():
    attention = build(SoftmaxAttention, qkv='shared_qk', num_prefix_tokens=1)
    x = tokens(49)
    query, value = (heads(part) for part in attention.qkv(x).split(16, dim=-1))
    weights = (query @ query.mT / 8**0.5).softmax(-1)
    close(attention(x, HW), attention.proj((weights @ value).transpose(1, 2).flatten(2)))


def test_blocks_of_a_plain_vit_may_be_post_norm():
    arch = dict(embed_dims=[32], depths=[2], num_heads=[2], ffn_ratios=[2])
    for norm_first in (True, False):
        blocks = ViT(arch, norm_first=norm_first).stages[0]['blocks']
        assert [block.norm_first for block in blocks] == [norm_first] * 2


@pytest.mark.parametrize('name', ['SOFT', 'SOFTPlusPlus', 'LaplacianFormer'])
def test_patches_overlap_or_lie_beside_each_other(name):
    overlap = OverlapPatchEmbed if name == 'LaplacianFormer' else ConvPatchEmbed
    for overlapping, expected in ((True, overlap), (False, PatchEmbed)):
        backbone = build_backbone(name, overlapping_patches=overlapping)
        embeds = [stage['patch_embed'] for stage in backbone.stages]
        assert [type(embed) for embed in embeds] == [expected] * 4
        assert [out.shape[-1] for out in backbone(IMAGES)] == [24, 12, 6, 3]
    assert [embed.projection.kernel_size for embed in embeds] == [(4, 4)] + [(2, 2)] * 3
    # A patch sees its own pixels alone.
    other = IMAGES.clone()
    other[:, :, :4, :4] += 1
    changed = (embeds[0](other)[0] != embeds[0](IMAGES)[0]).any(-1)
    assert changed[:, 0].all() and not changed[:, 1:].any()


def test_patches_beside_each_other_take_the_norm_of_tokens():
    embed = build_backbone(
        'SOFT', overlapping_patches=False, norm_cfg=dict(type='LN', eps=0.125)
    ).stages[0]['patch_embed']  # fmt: skip
    assert embed.norm.eps == 0.125
    with pytest.raises(ValueError, match='stem_norm_cfg=.* has no effect with overlapping_patches'):
        build_backbone('SOFT', overlapping_patches=False, stem_norm_cfg=dict(type='SyncBN'))


def test_the_authors_of_soft_drop_elements_and_not_branches_of_images():
    for cls in (SOFT, SOFTPlusPlus):
        kwargs = dict(arch='micro', img_size=64, drop_path_rate=0.5, drop_path_per='element')
        stages = cls(**kwargs).stages
        kinds = [[block.drop_path.per for block in stage['blocks']] for stage in stages]
        assert kinds == [['element'], ['element'], ['element'] * 2, ['sample']]
        assert stages[-1]['blocks'][0].drop_path.drop_prob == 0.5
    x = torch.ones(50, 20, 8)
    elements, samples = DropPath(0.5, per='element')(x), DropPath(0.5)(x)
    for dropped in (elements, samples):
        assert dropped.unique().tolist() == [0, 2]
    means = elements.mean((1, 2))
    assert means.min() > 0 and means.max() < 2  # no image loses all of 160 elements, or none
    assert samples.mean((1, 2)).unique().tolist() == [0, 2]
    assert torch.equal(DropPath(0.5, per='element').eval()(x), x)
    with pytest.raises(ValueError, match="drop_path_per must be one of .*'element'.*, got 'token'"):
        build_backbone('SOFT', drop_path_per='token')


# ---- LaplacianFormer


@pytest.mark.parametrize('kernel', ['laplacian', 'gaussian'])
def test_without_whitening_and_with_all_tokens_as_landmarks_it_is_the_exact_kernel(kernel):
    hw_shape = (6, 6)
    nystrom = build(
        LaplacianAttention, hw_shape, kernel=kernel, whitening='none', num_landmarks=36,
        ridge=0.0, solver='cholesky', rope=False, lepe_kernel=0,
    )  # fmt: skip
    exact = build(KernelAttention, hw_shape, kernel=kernel)
    exact.load_state_dict({k: v for k, v in nystrom.state_dict().items() if k != 'gamma'})
    exact.proj = nystrom.proj = torch.nn.Identity()
    x = tokens(36)
    scale = (nystrom.gamma / 36).repeat_interleave(8)  # of the channels of each head
    # W W^-1 of 36 tokens costs digits by their condition, some thousands.
    close(nystrom(x, hw_shape), exact(x, hw_shape) * scale, atol=1e-8)


def test_gamma_starts_alike_with_and_without_whitening():
    gammas = [LaplacianAttention(16, 2, HW, whitening=w).gamma for w in ('normalized', 'none')]
    assert torch.equal(*gammas) and gammas[0][0].item() == pytest.approx(48**0.5)


def test_conjugate_gradients_train_as_the_exact_inverse_does():
    x, outs, grads = tokens(), [], []
    state = None
    for solver in ('cholesky', 'conjugate_gradient'):
        attention = build(LaplacianAttention, solver=solver, num_landmarks=16, num_iters=40)
        state = state or attention.state_dict()
        attention.load_state_dict(state)
        outs.append(attention(x, HW))
        grads.append(torch.autograd.grad(outs[-1].square().sum(), list(attention.parameters())))
    close(*outs)
    for one, other in zip(*grads):
        # Gradients are sums over all tokens, of size 1e3 here.
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_the_solver_of_a_backbone_reaches_every_stage():
    backbone = LaplacianFormer('micro', attn_cfg=dict(solver='conjugate_gradient', num_iters=3))
    for stage in backbone.stages:
        attention = stage['blocks'][0].attn
        assert (attention.solver, attention.num_iters) == ('conjugate_gradient', 3)


# ---- PolaFormer


def test_without_polarity_it_is_linear_attention_with_powers_of_the_positive_part():
    attention = build(PolaAttention, polarity=False, gate=False, lepe_kernel=0)
    x = tokens()
    key, value = (heads(part) for part in attention.kv(x).split(16, dim=-1))
    key = key + heads(attention.key_positions.flatten(2).mT)
    scale = F.softplus(attention.scale).view(2, 1, 8)
    power = 1 + 4 * attention.power.sigmoid()
    query, key = ((part / scale).clamp(min=0) ** power for part in (heads(attention.qkv(x)), key))
    weights = query @ key.mT
    mixed = weights / (weights.sum(-1, keepdim=True) + 48e-6) @ value
    close(attention(x, HW), attention.proj(mixed.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize('power', [1, 3, 2.5])
def test_a_fixed_power_is_that_which_the_learned_ones_would_have(power):
    fixed = build(PolaAttention, power=power)
    learned = build(PolaAttention, alpha=4)
    assert 'power' not in dict(fixed.named_parameters())
    learned.load_state_dict(fixed.state_dict(), strict=False)
    # 1 + 4 sigmoid(w) = power; for no power w goes to -inf, and e^-60 is nothing in fp64.
    share = max((power - 1) / 4, 1e-26)
    torch.nn.init.constant_(learned.power, torch.logit(torch.tensor(share).double()).item())
    x = tokens()
    close(fixed(x, HW), learned(x, HW))


def test_without_a_gate_it_is_a_gate_of_one():
    gated, without = build(PolaAttention), build(PolaAttention, gate=False)
    state = gated.state_dict()
    for name, of_gate in (('qkv.weight', 0.0), ('qkv.bias', 1.0)):
        gated.get_parameter(name).data[16:] = of_gate
        state[name] = state[name][:16]
    without.load_state_dict(state)
    x = tokens()
    close(gated(x, HW), without(x, HW))


def test_a_matrix_multiplies_each_token_and_channel_and_is_resized():
    attention, without = build(PolaAttention, gate_form='matrix'), build(PolaAttention, gate=False)
    state = attention.state_dict()
    matrix = state.pop('gate_matrix')
    without.load_state_dict(state)
    assert matrix.shape == (1, 16, *HW)
    attention.proj = without.proj = torch.nn.Identity()
    x = tokens()
    close(attention(x, HW), without(x, HW) * matrix.flatten(2).mT)
    smaller = F.interpolate(matrix, (3, 5), mode='bilinear').flatten(2).mT
    close(attention(x[:, :15], (3, 5)), without(x[:, :15], (3, 5)) * smaller)
    assert attention.resize_weight('gate_matrix', torch.ones(1, 16, 3, 4)).shape == (1, 16, *HW)


@pytest.mark.parametrize(
    ('init', 'mean', 'std', 'least', 'most'),
    [
        # Kaiming's bound with d / 2 = 16 columns: sqrt(6 / 16) = 0.61, and std sqrt(2 / 16).
        ('kaiming_uniform', 0, 0.354, -0.6124, 0.6124),
        ('zeros', 0, 0, 0, 0),
        ('normal', 0, 1, -6, 6),
        ('uniform', 0.5, 0.289, 0, 1),
        ('ones', 1, 0, 1, 1),
    ],
)
def test_a_matrix_starts_in_the_papers_five_ways(init, mean, std, least, most):
    attention = PolaAttention(64, 2, (14, 14), gate_form='matrix', gate_init=init)
    quiet_init(attention)
    matrix = attention.gate_matrix
    # 12544 values: five errors of a mean of std 1 are 0.045.
    assert matrix.mean().item() == pytest.approx(mean, abs=0.05)
    assert matrix.std().item() == pytest.approx(std, abs=0.05)
    assert least <= matrix.min() and matrix.max() <= most
    if std:
        assert len(matrix.unique()) > 1000  # no row, column or stream is another one's copy


def test_without_a_convolution_there_is_none():
    attention, without = build(PolaAttention), build(PolaAttention, lepe_kernel=0)
    without.load_state_dict({k: v for k, v in attention.state_dict().items() if 'lepe' not in k})
    torch.nn.init.zeros_(attention.lepe.conv.weight)
    torch.nn.init.zeros_(attention.lepe.conv.bias)
    x = tokens()
    close(without(x, HW), attention(x, HW))


def test_a_deformable_convolution_starts_as_the_depthwise_one_and_its_shifts_move_it():
    deformable = PolaAttention(16, 2, HW, lepe_deformable=True).double()
    depthwise = PolaAttention(16, 2, HW).double()
    depthwise.load_state_dict(
        {k: v for k, v in deformable.state_dict().items() if 'offset' not in k}
    )
    x = tokens()
    close(deformable(x, HW), depthwise(x, HW))
    conv = DeformableConv(16, 3, 2, 'head_channel').double()
    assert conv.conv.weight.shape == (8, 1, 3, 3)
    with torch.no_grad():
        conv.offset.bias[1::2] = 1.0  # every place one column to the right
    shifted = F.pad(x.mT.unflatten(2, HW), (0, 1))[..., 1:].flatten(2).mT
    plain = super(DeformableConv, conv).forward(shifted, HW).unflatten(1, HW)
    # The last columns see zeros where the shifted map ends.
    close(conv(x, HW).unflatten(1, HW)[:, :, 1:-1], plain[:, :, 1:-1])


@pytest.mark.parametrize('filters_per', ['channel', 'head_channel'])
@pytest.mark.parametrize('hw_shape', [(3, 5), (1, 4)])
def test_a_deformable_convolution_equals_that_of_torchvision(hw_shape, filters_per):
    ops = pytest.importorskip('torchvision.ops')
    conv = DeformableConv(6, 3, 2, filters_per).double()
    torch.nn.init.normal_(conv.offset.weight)  # far enough to leave the map
    x = torch.randn(2, hw_shape[0] * hw_shape[1], 6).double().requires_grad_()
    maps = x.mT.unflatten(2, hw_shape)
    weight, bias = conv.filters()
    expected = ops.deform_conv2d(maps, conv.offset(maps), weight, bias, padding=1).flatten(2).mT
    out = conv(x, hw_shape)
    close(out, expected)
    wanted = [x, conv.offset.weight, conv.conv.weight, conv.conv.bias]
    grad = torch.randn_like(out)
    for one, other in zip(*(torch.autograd.grad(y, wanted, grad) for y in (out, expected))):
        close(one, other)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(power=0), 'power must be positive and finite, got 0'),
        (dict(power=float('inf')), 'power must be positive and finite, got inf'),
        (dict(gate_form='diagonal'), "gate_form must be one of .*'matrix'.*, got 'diagonal'"),
        (dict(gate_init='xavier'), "gate_init must be one of .*'ones'.*, got 'xavier'"),
        (dict(gate_form='matrix', gate=False), "gate_form='matrix' has no effect with gate=False"),
        (dict(gate=2), 'gate must be True or False, got 2'),
        (dict(lepe_deformable=True, lepe_kernel=0), 'no effect with lepe_kernel=0'),
    ],
)
def test_options_of_pola_that_cannot_be_are_quoted(options, message):
    with pytest.raises(ValueError, match=message):
        MODELS.build(
            dict(type='PolaAttention', embed_dims=16, num_heads=2, input_resolution=HW, **options)
        )
