"""How ``attn_cfg`` reaches the attentions: one rule, and no option that is lost without a word."""

import re

import pytest
import torch
from conftest import registered
from mmengine.registry import MODELS
from test_backbones import BACKBONES, build, small

from mmlaplace.models import BaseAttention
from mmlaplace.models.backbones.hosts import arch

FOUR = arch((16, 32, 48, 64), (1, 1, 2, 1), (1, 2, 3, 4), (2, 2, 2, 2))
SOFTMAX = dict(type='SoftmaxAttention')


def options(backbone_type, attn_cfg, *names, **kwargs):
    """Of the attention of each stage: its class and the values of some options."""
    cfg = dict(type=backbone_type, arch=FOUR, img_size=64, attn_cfg=attn_cfg, **kwargs)
    found = []
    for stage in MODELS.build(cfg).stages:
        attention = stage['blocks'][0].attn
        inner = getattr(attention, 'attn', attention)
        values = []
        for name in names:
            for owner in (attention, getattr(attention, 'frame', None), inner, inner.frame,
                          getattr(attention, 'landmarks', None)):  # fmt: skip
                if hasattr(owner, name):
                    values.append(getattr(owner, name))
                    break
            else:
                values.append(None)
        found.append((type(inner).__name__.replace('Attention', ''), *values))
    return found


@pytest.mark.parametrize(
    ('backbone', 'attn_cfg', 'names', 'expected'),
    [
        # 1. Without a type, or with the type that is there, options change.
        ('LaplacianFormer', None, ['num_landmarks'], [('Laplacian', 49)] * 4),
        ('LaplacianFormer', dict(), ['num_landmarks'], [('Laplacian', 49)] * 4),
        ('LaplacianFormer', dict(num_landmarks=4), ['num_landmarks'], [('Laplacian', 4)] * 4),
        (
            'LaplacianFormer',
            dict(type='LaplacianAttention', pool_ratio=4),
            ['num_landmarks', 'pool_ratio', 'rope'],
            [('Laplacian', None, 4, True)] * 4,
        ),
        (
            'LaplacianFormer',
            dict(pool_ratio=4, rope=False),
            ['pool_ratio', 'rope', 'lepe_kernel'],
            [('Laplacian', 4, False, 3)] * 4,
        ),
        # An option goes to every stage whose attention has it.
        (
            'SOFT',
            dict(qkv_bias=False, num_landmarks=16),
            ['qkv_bias', 'num_landmarks', 'normalized'],
            [('SOFT', False, 16, False)] * 3 + [('Softmax', False, None, None)],
        ),
        # Options that a family has changed stay so.
        ('PolaFormerPVT', dict(alpha=3), ['alpha', 'sr_ratio'], [('Pola', 3, 1)] * 4),
        (
            'PolaFormerSwin',
            dict(window_size=4),
            ['window_size'],
            [('Pola', 4)] * 2 + [('Softmax', 4)] * 2,
        ),
        # 2. Another type replaces the attention and keeps the frame of the host.
        ('LaplacianFormer', SOFTMAX, ['rope', 'lepe_kernel'], [('Softmax', True, 3)] * 4),
        (
            'LaplacianFormer',
            dict(SOFTMAX, rope=False),
            ['rope', 'lepe_kernel'],
            [('Softmax', False, 3)] * 4,
        ),
        (
            'PVT',
            dict(type='PolaAttention'),
            ['sr_ratio', 'lepe_kernel', 'gate'],
            [('Pola', 1, 5, True)] * 4,
        ),
        ('PolaFormerPVT', SOFTMAX, ['sr_ratio', 'gate'], [('Softmax', 1, False)] * 4),
        (
            'LaplacianFormer',
            dict(type='SOFTAttention', pool_ratio=2),  # which has no rotary positions
            ['rope', 'lepe_kernel', 'lepe_filters', 'pool_ratio'],
            [('SOFT', False, 3, 'head', 2)] * 4,
        ),
        ('Swin', dict(type='PolaAttention'), ['window_size'], [('Pola', None)] * 4),
        # 3. A list has an entry for each stage, None for no change; so has what is in per_stage.
        (
            'LaplacianFormer',
            [dict(num_landmarks=4), None, SOFTMAX, dict(SOFTMAX, lepe_kernel=0)],
            ['num_landmarks', 'lepe_kernel'],
            [('Laplacian', 4, 3), ('Laplacian', 49, 3), ('Softmax', None, 3), ('Softmax', None, 0)],
        ),
        (
            'PVT',
            dict(per_stage=dict(sr_ratio=(1, 2, 3, 4)), qkv_bias=False),
            ['sr_ratio', 'qkv_bias'],
            [('Softmax', ratio, False) for ratio in (1, 2, 3, 4)],
        ),
        (
            'PolaFormerPVT',
            dict(SOFTMAX, per_stage=dict(sr_ratio=[8, 4, 2, 1])),
            ['sr_ratio'],
            [('Softmax', ratio) for ratio in (8, 4, 2, 1)],
        ),
        (
            'SOFT',
            dict(per_stage=dict(num_landmarks=(16, 9, 4, None), pool_ratio=(3, 2, 1, None))),
            ['num_landmarks', 'pool_ratio'],
            [('SOFT', 16, 3), ('SOFT', 9, 2), ('SOFT', 4, 1), ('Softmax', None, None)],
        ),
        # None is no change, also for options that are on.
        (
            'LaplacianFormer',
            dict(per_stage=dict(rope=(False, None, None, None))),
            ['rope'],
            [('Laplacian', False)] + [('Laplacian', True)] * 3,
        ),
        (
            'PolaFormerSwin',
            dict(per_stage=dict(attn_cfg=[dict(alpha=3), None, None, None])),
            ['alpha'],
            [('Pola', 3), ('Pola', 4.0), ('Softmax', None), ('Softmax', None)],
        ),
        ('PolaFormerSwin', dict(attn_cfg=None), ['alpha'],
         [('Pola', 4.0)] * 2 + [('Softmax', None)] * 2),
        # The rule holds inside of windows, for the attention there, wherever they come from.
        ('LaplacianFormer', dict(type='WindowAttention', attn_cfg=dict(rope=False)),
         ['rope', 'lepe_kernel', 'window_size'], [('Softmax', False, 3, 7)] * 4),
        ('PVT', dict(type='WindowAttention', attn_cfg=dict(qkv_bias=False)),
         ['qkv_bias', 'window_size'], [('Softmax', False, 7)] * 4),
        ('Swin', dict(attn_cfg=dict(qkv_bias=False)), ['qkv_bias', 'window_size'],
         [('Softmax', False, 7)] * 4),
        (
            'PolaFormerSwin',
            [dict(attn_cfg=dict(alpha=2)), None, dict(attn_cfg=dict(type='PolaAttention')), None],
            ['alpha', 'window_size'],
            [('Pola', 2, 56), ('Pola', 4.0, 56), ('Pola', 4.0, 7), ('Softmax', None, 7)],
        ),
    ],
)  # fmt: skip
def test_options_reach_the_attentions_by_one_rule(backbone, attn_cfg, names, expected):
    assert options(backbone, attn_cfg, *names) == expected


@pytest.mark.parametrize(('backbone', 'attn_cfg', 'error', 'message'), [
    # What 0.1 took without a word, or refused in other words.
    ('PolaFormerPVT', dict(sr_ratio=(8, 4, 2, 1)), ValueError,
     'sr_ratio of PolaAttention is a single value, got (8, 4, 2, 1); one value for each ' 'stage is attn_cfg=dict(per_stage=dict(sr_ratio=(8, 4, 2, 1)))'),
    ('PolaFormerSwin', dict(attn_cfg=dict(type='PolaAttention', sr_ratio=[2, 1, 1, 1])), ValueError,
     'sr_ratio of PolaAttention is a single value'),
    ('LaplacianFormer', dict(num_heads=4), ValueError,
     'attn_cfg has num_heads=4, which the backbone sets itself; give arch=dict(...)'),
    ('SOFT', dict(landmark_method='pool', num_landmarks=9), ValueError,
     "give num_landmarks (9) or pool_ratio (8), not both, for landmarks by 'pool'"),
    ('SOFT', dict(per_stage=dict(num_landmarks=(16, 9, 9, 9))), TypeError,
     "SoftmaxAttention has no option 'num_landmarks'"),
    ('LaplacianFormer', dict(landmark=4), TypeError,
     "LaplacianAttention has no option 'landmark' (did you mean 'num_landmarks'?)"),
    ('PVT', dict(num_landmarks=4), TypeError, "SoftmaxAttention has no option 'num_landmarks'"),
    ('LaplacianFormer', dict(type='LaplacianAttention', num_landmarks=4, pool_ratio=2), ValueError,
     'give num_landmarks (4) or pool_ratio (2), not both'),
    ('Swin', dict(qkv_bias=False), TypeError, "WindowAttention has no option 'qkv_bias'"),
    ('Swin', dict(attn_cfg=dict(alpha=3)), TypeError, "SoftmaxAttention has no option 'alpha'"),
    ('LaplacianFormer', dict(per_stage=dict(num_landmarks=(4, 9, 16))), ValueError,
     "attn_cfg.per_stage['num_landmarks'] must have one entry for each of the 4 stages"),
    ('LaplacianFormer', dict(per_stage=dict(num_landmarks=4)), ValueError,
     "attn_cfg.per_stage['num_landmarks'] must have one entry"),
    ('LaplacianFormer', [SOFTMAX] * 3, ValueError, 'attn_cfg, where it is no dict, must have one'),
    ('LaplacianFormer', [], ValueError, 'one entry for each of the 4 stages, got []'),
    ('LaplacianFormer', 'SoftmaxAttention', ValueError, "got 'SoftmaxAttention'"),
    ('LaplacianFormer', dict(type='LaplaceAttention'), ValueError,
     "attn_cfg has type='LaplaceAttention', which is not registered"),
    ('LaplacianFormer', [dict(lepe_kernel=4), None, None, None], ValueError,
     'lepe_kernel must be odd, or 0 for none, got 4'),
    ('PVT', dict(type='WindowAttention', attn_cfg=dict(type='PolaAttention', num_heads=7)),
     ValueError, 'attn_cfg has num_heads=7, which the backbone sets itself'),
    ('PVT', dict(embed_dims=7), ValueError, 'attn_cfg has embed_dims=7, which the backbone'),
    ('PVT', dict(input_resolution=7), ValueError, 'attn_cfg has input_resolution=7'),
    ('SOFT', dict(num_prefix_tokens=0), ValueError, 'attn_cfg has num_prefix_tokens=0'),
    ('SOFT', dict(relative_bias=True, per_stage=dict(type=['SoftmaxAttention'] * 4)), ValueError,
     'other attentions in single stages are a list'),
    ('PVT', dict(per_stage=[8, 4, 2, 1]), ValueError, 'per_stage has options with a value for'),
    ('PVT', ['SoftmaxAttention'] * 4, ValueError, 'an attention is a dict, such as dict(type='),
    ('PVT', dict(type=['SoftmaxAttention']), ValueError, 'is a class or its name, got ['),
    ('PVT', dict(lepe_filters='head'), ValueError, "lepe_filters='head' has no effect without"),
    ('PVT', dict(rope_form='pairs'), ValueError, "rope_form='pairs' has no effect without rope"),
    ('PVT', dict(rope='no'), ValueError, "rope must be True or False, got 'no'"),
    ('PVT', dict(gate=2), ValueError, 'gate must be True or False, got 2'),
    ('PVT', dict(rope=True, rope_on='features', per_stage=dict(sr_ratio=(1, 1, 1, 1))), ValueError,
     "SoftmaxAttention rotates no features; take rope_on='query_key'"),
    ('PVT', dict(type='SOFTAttention', num_landmarks=0), ValueError,
     'num_landmarks must be an integer of at least 1, got 0'),
    # Names of 0.1.
    ('LaplacianFormer', dict(landmarks=49), TypeError,
     "LaplacianAttention has no option 'landmarks' ('landmarks' is now num_landmarks)"),
    ('LaplacianFormer', dict(type='SoftmaxAttention', rope=False, dw_kernel_size=0), TypeError,
     "SoftmaxAttention has no option 'dw_kernel_size' ('dw_kernel_size' is now lepe_kernel)"),
    ('LaplacianFormer', dict(share_qk=True), TypeError, "is now qkv='shared_qk'"),
    ('LaplacianFormer', dict(kernel_scale=4), TypeError, 'is now bandwidth'),
    ('LaplacianFormer', dict(scale_form='literal'), TypeError, 'is now whitening'),
    ('SOFT', dict(sampling='average'), TypeError, 'is now landmark_method'),
    ('SOFT', dict(step_size='batch'), TypeError, 'is now newton_start_per'),
    ('SOFT', dict(landmarks=9), TypeError, 'is now num_landmarks'),
    ('PolaFormerPVT', dict(dw_kernel_size=3), TypeError, 'is now lepe_kernel'),
])  # fmt: skip
def test_options_that_would_be_lost_are_quoted(backbone, attn_cfg, error, message):
    with pytest.raises(error, match=re.escape(message)):
        options(backbone, attn_cfg)


def test_options_of_the_backbone_that_0_1_had_are_named():
    with pytest.raises(TypeError, match="'class_token' is now with_cls_token"):
        build('SOFT', class_token=False)


def test_twins_differ_in_nothing_but_the_mixing_rule():
    for host, stages in (('LaplacianFormer', 4), ('SOFT', 3)):  # SOFT's last has no frame
        names = []
        for kind in ('SoftmaxAttention', 'LaplacianAttention'):
            kwargs = dict(with_cls_token=False) if host == 'SOFT' else {}
            backbone = build(host, FOUR, attn_cfg=dict(type=kind), **kwargs)
            state = backbone.stages[:stages].state_dict()
            names.append({k: v.shape for k, v in state.items() if not k.endswith('gamma')})
        assert names[0] == names[1]


@pytest.mark.sampled(12)
@pytest.mark.parametrize('name', BACKBONES)
@pytest.mark.parametrize('attention', registered(BaseAttention))
def test_every_host_takes_every_attention(name, attention):
    kwargs = {}
    if attention != 'SoftmaxAttention' and name in ('SOFT', 'SOFTPlusPlus', 'ViT'):
        kwargs = dict(with_cls_token=False)
    backbone = build(name, small(name), attn_cfg=dict(type=attention), **kwargs).eval()
    with torch.no_grad():
        outs = backbone(torch.randn(1, 3, 50, 70))
    assert all(out.isfinite().all() for out in outs)
