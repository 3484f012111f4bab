"""Values that an attention cannot take are quoted."""

import re

import pytest
from conftest import doubles, make_attention

from mmlaplace.models.layers import FFN, PositionEmbedding

# For each attention one bad value of an option, with all others as they are.
BAD = {
    'AdditiveAttention': dict(expansion=0, out_dims=0),
    'AgentAttention': dict(agent_shape=5),
    'BasedAttention': dict(form='exact'),
    'CastlingAttention': dict(conv_kernel_size=-3),
    'CirculantAttention': dict(weights_per='token'),
    'CosformerAttention': dict(positions='rows'),
    'CrossShapedAttention': dict(stripe_width=1.5),
    'ELFATTAttention': dict(window_size=0),
    'WindowAttention': dict(window_size=7.5),
    'EcoFormerAttention': dict(offset='none', num_bits=0),
    'EfficientLinearAttention': dict(key_dims=9, value_dims=0),
    'FaViTAttention': dict(average='all', sr_ratio=0),
    'HedgehogAttention': dict(form='exp', feature_dims=0),
    'InLineAttention': dict(kernel='cosine'),
    'L2ViTAttention': dict(least_sum=0),
    'KernelAttention': dict(
        kernel='cauchy', normalization='columns', bandwidth=-1.0, whitening_eps=-1.0
    ),
    'LaplacianAttention': dict(
        bandwidth=0.0,
        num_iters=0,
        ridge=-1.0,
        whitening_eps=0.0,
        kernel='cauchy',
        solver='lu',
        whitening='off',
        num_landmarks=50,
        pool_ratio=0,
        lepe_kernel=4,
    ),
    'LinformerAttention': dict(num_landmarks=0, head_dims=0),
    'LiteMLA': dict(scales=(4,), head_dims=0, out_dims=2.0),
    'MHLAAttention': dict(transform='sine', normalizer='code', grid=0, exp_sigma=0.0),
    'MiTAAttention': dict(num_landmarks=24, topk=0, routes=1.5),
    'NaLaAttention': dict(directions='sines'),
    'SeparableAttention': dict(patch_size=1.5),
    'NeighborhoodAttention': dict(kernel_size=4, dilation=0, backend='cuda'),
    'NystromformerAttention': dict(
        landmark_method='conv',
        num_landmarks=0,
        num_iters=0,
        conv_kernel_size=4,
        newton_start_per='image',
        out_dims=9,
    ),
    'PerformerAttention': dict(features='elu', num_features=0, eps=0.0),
    'PolaAttention': dict(
        alpha=0, power=0, gate_form='diagonal', gate_init='xavier', gate=2, lepe_kernel=2
    ),
    'PolarizedAttention': dict(layout='both', softmax_over='all'),
    'ReformerAttention': dict(bucket_size=0, num_hashes=1.5, form='direct'),
    'SOFTAttention': dict(
        landmark_method='strided',
        newton_start_per='image',
        num_iters=0,
        ridge=-1.0,
        solver='lu',
        kernel='cauchy',
        bandwidth=0.0,
    ),
    'SkyformerAttention': dict(
        landmark_method='runs',
        bandwidth=0.0,
        ridge=-1.0,
        num_landmarks=0,
        accumulation=0,
        kernel='cauchy',
    ),
    'LinearAttention': dict(sr_ratio=2.0, rope_form='full', lepe_kernel=-1),
    'SoftmaxAttention': dict(
        sr_ratio=0,
        qkv='kv',
        lepe_filters='heads',
        pool_size=-7,
        rope_on='values',
        second_lepe_kernel=4,
    ),
    'TTTAttention': dict(inner_lr=-0.5),
    'TaylorShiftAttention': dict(form='exact'),
}


@pytest.mark.parametrize(
    ('name', 'option', 'value'),
    [(name, *pair) for name, options in BAD.items() for pair in options.items()],
)
def test_a_value_that_cannot_be_is_quoted(name, option, value):
    with pytest.raises(ValueError, match=rf'(got |\(){re.escape(repr(value))}'):
        make_attention(name, **{option: value})


@pytest.mark.parametrize(
    ('name', 'options', 'quoted'),
    [
        ('CrossShapedAttention', dict(stripe_width=0), 'got 0'),
        ('EfficientLinearAttention', dict(value_dims=8, qkv='qk'), "qkv='qk' .* 16 .* have 8"),
        ('ELFATTAttention', dict(embed_dims=1, num_heads=1), 'got embed_dims=1'),
        ('FaViTAttention', dict(num_heads=8), 'at least 3 channels, got 2'),
        ('FaViTAttention', dict(num_heads=16, sr_ratio=1), 'at least 2 channels, got 1'),
        ('HedgehogAttention', dict(feature_dims=4, skip_connection=True), 'got 4'),
        ('LinformerAttention', dict(share_kv=True, gate=True), 'gate=True'),
        ('LiteMLA', dict(head_dims=4, num_heads=0), 'num_heads .* got 0'),
        ('NystromformerAttention', dict(out_dims=9), r'\(9\).*num_heads \(2\)'),
        ('PolaAttention', dict(gate_form='matrix', gate=False), "'matrix' .* gate=False"),
        ('PolaAttention', dict(lepe_deformable=True, lepe_kernel=0), 'lepe_kernel=0'),
        ('PolaAttention', dict(power=3, alpha=2.0), 'alpha=2.0 .* power=3'),
        ('PolaAttention', dict(gate_init='zeros'), "'zeros' .* gate_form='linear'"),
        ('LaplacianAttention', dict(ridge=None), 'ridge must not be negative, got None'),
        ('LaplacianAttention', dict(hw_shape=14), r'such as \(14, 14\), got 14'),
        ('LiteMLA', dict(scales=5), 'got 5'),
        ('SkyformerAttention', dict(accumulation=2), "landmark_method='random' or accumulation=1"),
        ('SoftmaxAttention', dict(sr_ratio=2, second_lepe_kernel=3), 'got sr_ratio=2'),
        ('SoftmaxAttention', dict(sr_ratio=2, qkv='qk'), "got qkv='qk'"),
        ('SoftmaxAttention', dict(sr_ratio=2, rope=True), 'got sr_ratio=2 and rope=True'),
        (
            'SoftmaxAttention',
            dict(key_positions=True, qkv='shared_qk'),
            "got qkv='shared_qk'; set key_positions=False",
        ),
        ('SoftmaxAttention', dict(sr_ratio=2, relative_bias=True), 'got sr_ratio=2'),
        ('SoftmaxAttention', dict(sr_ratio=2, pool_size=7), 'pool_size=7 .* sr_ratio=2'),
        ('SoftmaxAttention', dict(pool_size=3, second_lepe_kernel=3), 'second_lepe_kernel=3'),
        ('SoftmaxAttention', dict(pool_size=3, relative_bias=True), 'relative_bias=True'),
        ('SoftmaxAttention', dict(relative_bias=True, num_prefix_tokens=1), '=1 have no offsets'),
    ],
)
def test_options_that_exclude_each_other_are_quoted(name, options, quoted):
    with pytest.raises(ValueError, match=quoted):
        make_attention(name, **options)


def test_filters_of_the_residual_want_a_host_that_gives_it():
    attention = make_attention('InLineAttention', filters_from='residual')
    x = doubles(1, 16, 16)
    with pytest.raises(ValueError, match="filters_from='input' on other hosts"):
        attention(x, (4, 4))
    assert attention(x, (4, 4), residual=x).shape == x.shape


@pytest.mark.parametrize('name', ['PerformerAttention', 'PolaAttention'])
def test_heads_of_one_channel_have_a_feature(name):
    attention = make_attention(name, embed_dims=2)
    assert attention(doubles(1, 16, 2), (4, 4)).isfinite().all()


def test_an_option_without_effect_is_refused():
    with pytest.raises(ValueError, match='set dwconv_residual=True'):
        FFN(8, 2, act_twice=True)
    with pytest.raises(ValueError, match='num_registers=4 follow'):
        PositionEmbedding(8, (2, 2), num_registers=4)
