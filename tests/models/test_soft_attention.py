"""SOFT and SOFT++: the linear-time form is the N x N formula, and options of their hosts."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import doubles, make_attention, split_heads
from test_backbones import build as build_backbone

from mmlaplace.models import SOFT
from mmlaplace.models.layers import ConvPatchEmbed, DropPath, OverlapPatchEmbed, PatchEmbed

HW = (6, 8)
CLOSE = dict(atol=1e-8, rtol=1e-8)  # fp64 inverses of a condition of some hundreds


def build(std=None, **options):
    return make_attention('SOFTAttention', HW, std, **options)


def gaussian(x, y, bandwidth=8**0.25):
    """Of scaled tokens, with the bandwidth of tokens before they are scaled by 8^(-1/4)."""
    squares = (x[..., :, None, :] - y[..., None, :, :]).square().sum(-1) * 8**0.5
    return torch.exp(-squares / 2 / bandwidth**2)


def laplacian(x, y, bandwidth=4.0):
    return torch.exp(-torch.cdist(x, y, p=1) * 8**0.25 / bandwidth)


def dense(attention, x, kernel_of=gaussian):
    """The output by the N x N matrix."""
    prefix = attention.num_prefix_tokens
    linears = [layer for layer in (attention.qkv, attention.kv) if layer is not None]
    *qk, v = torch.cat([layer(x) for layer in linears], dim=-1).split(16, dim=-1)
    query, key, value = (split_heads(part) for part in (qk[0], qk[-1], v))
    query, key = query / 8**0.25, key / 8**0.25
    marks, norm = attention.landmarks(query[:, :, prefix:], HW), attention.landmark_norm[0]
    marks = F.gelu(F.layer_norm(marks, (8,), norm.weight, norm.bias))
    kernel = kernel_of(marks, marks)
    inverse = torch.linalg.inv(kernel + attention.ridge * torch.eye(kernel.shape[-1]).double())
    if attention.normalized:
        root = kernel.sum(-1).rsqrt()
        inverse = root[..., :, None] * inverse * root[..., None, :]
    mixed = kernel_of(query, marks) @ inverse @ kernel_of(marks, key) @ value
    out = mixed.transpose(1, 2).flatten(2)
    if attention.lepe is not None:
        images = value[:, :, prefix:].permute(0, 3, 1, 2).reshape(16, 2, *HW)  # heads are channels
        local = F.conv2d(images, attention.lepe.conv.weight, padding=1, groups=2)
        local = local.view(2, 8, 2, -1).permute(0, 3, 2, 1).reshape(2, -1, 16)
        # The class token's own value stands for its convolution.
        out = out + torch.cat([v[:, :prefix], local], dim=1)
    return attention.proj(out)


@pytest.mark.parametrize('solver', ['newton_schulz', 'svd', 'cholesky'])
@pytest.mark.parametrize('normalized', [False, True])
@pytest.mark.parametrize(
    'options',
    [
        {},
        dict(num_prefix_tokens=1),
        *(dict(qkv=form, lepe_kernel=0) for form in ('qkv', 'q_kv')),
    ],
    ids=str,
)
def test_linear_time_form_equals_the_dense_formula(options, normalized, solver):
    common = dict(pool_ratio=2, ridge=1e-2, num_iters=60)
    attention = build(0.5, normalized=normalized, solver=solver, **common, **options)
    x = doubles(2, 48 + attention.num_prefix_tokens, 16)
    torch.testing.assert_close(attention(x, HW), dense(attention, x), **CLOSE)


@pytest.mark.parametrize(
    ('options', 'kernel_of'),
    [
        (dict(kernel='laplacian'), laplacian),
        (dict(kernel='laplacian', bandwidth=1.5), partial(laplacian, bandwidth=1.5)),
        (dict(kernel='laplacian', qkv='qkv'), laplacian),
        (dict(bandwidth=3.0), partial(gaussian, bandwidth=3.0)),
    ],
    ids=['laplacian', 'laplacian-1.5', 'laplacian-qkv', 'gaussian-3'],
)
@pytest.mark.parametrize('normalized', [False, True])
def test_the_kernel_and_its_bandwidth_are_those_asked_for(options, kernel_of, normalized):
    common = dict(pool_ratio=2, ridge=1e-2, num_iters=60)
    attention = build(0.5, normalized=normalized, **common, **options)
    x = doubles(2, 48, 16)
    torch.testing.assert_close(attention(x, HW), dense(attention, x, kernel_of), **CLOSE)


@pytest.mark.parametrize('name', ['SOFT', 'LaplacianFormer'])
def test_patches_overlap_or_lie_beside_each_other(name):
    overlap = OverlapPatchEmbed if name == 'LaplacianFormer' else ConvPatchEmbed
    for overlapping, expected in ((True, overlap), (False, PatchEmbed)):
        backbone = build_backbone(name, overlapping_patches=overlapping)
        assert {type(stage['patch_embed']) for stage in backbone.stages} == {expected}
        assert [out.shape[-1] for out in backbone(torch.randn(2, 3, 64, 96))] == [24, 12, 6, 3]


def test_the_authors_of_soft_drop_elements_and_not_branches_of_images():
    stages = SOFT('micro', img_size=64, drop_path_rate=0.5, drop_path_per='element').stages
    kinds = [[block.drop_path.per for block in stage['blocks']] for stage in stages]
    assert kinds == [['element'], ['element'], ['element'] * 2, ['sample']]
    x = torch.ones(50, 20, 8)
    elements, samples = DropPath(0.25, per='element')(x), DropPath(0.25)(x)
    assert elements.unique().tolist() == samples.unique().tolist() == pytest.approx([0, 4 / 3])
    # None of 160 elements is kept or lost whole.
    assert all(len(a.unique()) == 2 and len(b.unique()) == 1 for a, b in zip(elements, samples))
