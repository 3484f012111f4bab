"""SOFT and SOFT++: the linear-time form is the N x N formula, the norm is bounded, bad input."""

import pytest
import torch
import torch.nn.functional as F
from conftest import quiet_init

from mmlaplace.models import SOFT, SOFTAttention, SOFTPlusPlus

SMALL = dict(
    embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4), ffn_ratios=(2,) * 4
)


def build(hw_shape=(6, 8), embed_dims=16, **kwargs):
    attention = SOFTAttention(embed_dims, 2, input_resolution=hw_shape, **kwargs)
    quiet_init(attention)
    return attention.double().eval()


def gaussian(x, y):
    return torch.exp(-(x[..., :, None, :] - y[..., None, :, :]).square().sum(-1) / 2)


@pytest.mark.parametrize('normalized', [False, True])
def test_linear_time_form_equals_the_dense_formula(normalized):
    height, width, ratio = 6, 8, 2
    attention = build(normalized=normalized, pool_ratio=ratio, num_iters=60)
    torch.nn.init.normal_(attention.qkv.weight)
    x = torch.randn(2, height * width, 16, dtype=torch.float64)
    query, value = F.linear(x, attention.qkv.weight, attention.qkv.bias).chunk(2, dim=-1)
    query, value = (t.view(2, -1, 2, 8).transpose(1, 2) for t in (query, value))
    query = query / 8**0.25
    maps = query.reshape(4, height, width, 8).permute(0, 3, 1, 2)
    marks = F.conv2d(maps, attention.landmarks.conv.weight, stride=ratio).flatten(2).transpose(1, 2)
    norm = attention.landmark_norm[0]
    marks = F.gelu(F.layer_norm(marks, (8,), norm.weight, norm.bias)).view(2, 2, -1, 8)
    landmark_kernel = gaussian(marks, marks)
    if normalized:
        root = landmark_kernel.sum(-1).rsqrt()
        inverse = root[..., :, None] * torch.linalg.pinv(landmark_kernel) * root[..., None, :]
    else:
        inverse = torch.linalg.inv(landmark_kernel + 0.01 * torch.eye(12, dtype=torch.float64))
    dense = gaussian(query, marks) @ inverse @ gaussian(marks, query)  # (2, 2, N, N)
    mixed = (dense @ value).transpose(1, 2).reshape(2, -1, 16)
    images = value.permute(0, 3, 1, 2).reshape(16, 2, height, width)  # heads are the channels
    local = F.conv2d(images, attention.lepe.conv.weight, padding=1, groups=2)
    local = local.view(2, 8, 2, -1).permute(0, 3, 2, 1).reshape(2, -1, 16)
    expected = F.linear(mixed + local, attention.proj.weight, attention.proj.bias)
    torch.testing.assert_close(attention(x, (height, width)), expected, atol=1e-8, rtol=1e-8)


def test_normalised_matrix_stays_bounded_as_landmarks_grow():
    norms = {}
    for normalized in (False, True):
        attention = build(normalized=normalized, embed_dims=64, num_iters=30)
        for side in (4, 8, 16):
            torch.manual_seed(0)
            marks = torch.randn(1, 1, side * side, 32, dtype=torch.float64) * 0.3
            norms[normalized, side] = torch.linalg.matrix_norm(
                attention.invert(gaussian(marks, marks)), 2
            ).item()
    # The row sums of the landmark kernel grow with their number, and divide the inverse.
    for side in (4, 8, 16):
        assert norms[True, side] < norms[False, side]
    assert norms[True, 16] / norms[True, 4] < norms[False, 16] / norms[False, 4]


@pytest.mark.parametrize('normalized', [False, True])
def test_equal_landmarks_give_finite_output_and_gradients(normalized):
    attention = build(normalized=normalized, pool_ratio=2).float()
    x = torch.ones(1, 48, 16, requires_grad=True)  # one colour: every landmark is the same
    out = attention(x, (6, 8))
    out.square().sum().backward()
    assert torch.isfinite(out).all()
    assert torch.isfinite(x.grad).all()
    assert all(torch.isfinite(p.grad).all() for p in attention.parameters())


@pytest.mark.parametrize('start', ['matrix', 'batch'])
@pytest.mark.parametrize('options', [dict(), dict(ridge=0.2), dict(normalized=False, ridge=0.2)])
def test_landmarks_far_apart_have_the_inverse_of_their_matrix(options, start):
    """Where SOFT++'s authors' start, and any start that leaves out a large ridge, goes astray."""
    attention = build(newton_start_per=start, **options).float()
    scales = torch.tensor([3.0, 1.0, 0.5])[:, None, None, None]
    marks = scales * torch.randn(3, 2, 9, 32)
    mat = gaussian(marks, marks)
    exact = torch.linalg.inv(mat.double() + attention.ridge * torch.eye(9))
    if attention.normalized:
        root = mat.double().sum(-1).rsqrt()
        exact = root[..., :, None] * exact * root[..., None, :]
    # Rounding in fp32 of matrices of condition 10 at most.
    torch.testing.assert_close(attention.invert(mat).double(), exact, atol=1e-4, rtol=0)


def test_one_step_size_for_the_batch_couples_its_images_and_one_per_matrix_does_not():
    # Far apart tokens give well conditioned matrices, near ones ill conditioned: other step sizes.
    x = torch.randn(2, 48, 16, dtype=torch.float64)
    x[0] *= 0.05
    for start, coupled in (('matrix', False), ('batch', True)):
        attention = build(newton_start_per=start, pool_ratio=2, num_iters=3)
        torch.nn.init.normal_(attention.qkv.weight)
        alone = attention(x[1:], (6, 8))
        together = attention(x, (6, 8))[1:]
        assert torch.allclose(alone, together, atol=1e-9) != coupled


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        (dict(landmark_method='strided'), "one of .*'first'.*, got 'strided'"),
        (dict(newton_start_per='image'), "newton_start_per must be one of .*, got 'image'"),
        (dict(num_landmarks=50), 'square number .*, got 50'),
        (dict(pool_ratio=0), 'pool_ratio must be an integer of at least 1, got 0'),
        (dict(num_iters=0), r'num_iters \(0\)'),
        (dict(ridge=-1.0), r'ridge \(-1.0\)'),
        (dict(lepe_kernel=4), 'odd, or 0 for none, got 4'),
    ],
)
def test_bad_options_are_quoted(kwargs, message):
    with pytest.raises(ValueError, match=message):
        build(**kwargs)


def test_class_token_is_for_classifiers_and_maps_go_without_it():
    images = torch.randn(2, 3, 64, 96)
    (token,) = SOFTPlusPlus(SMALL, img_size=64, out_indices=(3,), out_type='cls_token')(images)
    assert token.shape == (2, 64)
    with_token = SOFTPlusPlus(SMALL, img_size=64)(images)[-1]
    without = SOFTPlusPlus(SMALL, img_size=64, with_cls_token=False)(images)[-1]
    assert with_token.shape == without.shape == (2, 64, 2, 3)


@pytest.mark.parametrize(
    ('kwargs', 'message'),
    [
        (
            dict(out_type='cls_token'),
            r'of stages \(3,\), got out_indices=\(0, 1, 2, 3\).* Dense he',
        ),
        (
            dict(out_type='cls_token', with_cls_token=False, out_indices=(3,)),
            r'of stages \(\), .*with_cls_token=True',
        ),
        (dict(out_type='cls'), "'featmap', 'cls_token'.*, got 'cls'"),
    ],
)
def test_class_token_where_there_is_none_is_explained(kwargs, message):
    with pytest.raises(ValueError, match=message):
        SOFTPlusPlus(SMALL, img_size=64, **kwargs)


def test_class_token_needs_an_attention_without_positions():
    attn_cfg = [None, None, None, dict(rope=True)]
    with pytest.raises(ValueError, match=r'num_prefix_tokens=1 are on no map.*rope=False \(True\)'):
        SOFTPlusPlus(SMALL, img_size=64, attn_cfg=attn_cfg)
    with pytest.raises(
        ValueError, match="such as SoftmaxAttention, got 'PolaAttention'.*None in a"
    ):
        SOFTPlusPlus(SMALL, img_size=64, attn_cfg=dict(type='PolaAttention'))
    SOFTPlusPlus(SMALL, img_size=64, attn_cfg=dict(type='PolaAttention'), with_cls_token=False)


def test_soft_is_not_normalised_and_softplusplus_is():
    for cls, normalized in ((SOFT, False), (SOFTPlusPlus, True)):
        stages = cls(SMALL, img_size=64).stages
        assert [stage['blocks'][0].attn.normalized for stage in stages[:3]] == [normalized] * 3
    with pytest.raises(ValueError, match="'softpp-small'; it is now type='SOFTPlusPlus', arch='s"):
        SOFT('softpp-small')
