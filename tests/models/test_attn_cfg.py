"""How ``attn_cfg`` reaches the attentions: one rule, and no option that is lost without a word."""

import re

import pytest
import torch
from conftest import registered
from mmengine.registry import MODELS
from test_backbones import BACKBONES, build

from mmlaplace.models import BaseAttention, QKVAttention, SOFTAttention
from mmlaplace.models.pyramid import arch

FOUR = arch((16, 32, 48, 64), (1, 1, 2, 1), (1, 2, 3, 4), (2, 2, 2, 2))
LAP, SOFTMAX = 'LaplacianFormer', dict(type='SoftmaxAttention')


def options(backbone_type, attn_cfg, *names):
    """Of the attention of each stage: its class and the values of some options."""
    cfg = dict(type=backbone_type, arch=FOUR, img_size=64, attn_cfg=attn_cfg)
    found = []
    for stage in MODELS.build(cfg).stages:
        attention = stage['blocks'][0].attn
        inner = getattr(attention, 'attn', attention)
        owners = [attention, inner, inner.frame, getattr(inner, 'landmarks', None)]
        values = [[getattr(o, name) for o in owners if hasattr(o, name)] for name in names]
        kind = type(inner).__name__.replace('Attention', '')
        found.append((kind, *(of[0] if of else None for of in values)))
    return found


@pytest.mark.parametrize(
    ('backbone', 'attn_cfg', 'names', 'expected'),
    [
        # 1. Without a type, or with the type that is there, options change.
        (LAP, dict(num_landmarks=4), 'num_landmarks', [('Laplacian', 4)] * 4),
        # An option goes to every stage whose attention has it.
        (
            'SOFT',
            dict(qkv_bias=False, num_landmarks=16),
            'qkv_bias num_landmarks normalized',
            [('SOFT', False, 16, False)] * 3 + [('Softmax', False, None, None)],
        ),
        (
            'PolaFormerSwin',
            dict(window_size=4),
            'window_size',
            [('Pola', 4)] * 2 + [('Softmax', 4)] * 2,
        ),
        # 2. Another type replaces the attention and keeps the frame of the host.
        (
            'PVT',
            dict(type='PolaAttention'),
            'sr_ratio lepe_kernel gate',
            [('Pola', 1, 5, True)] * 4,
        ),
        ('PolaFormerPVT', SOFTMAX, 'sr_ratio gate', [('Softmax', 1, False)] * 4),
        (
            LAP,
            dict(type='SOFTAttention', pool_ratio=2),  # which has no rotary positions
            'rope lepe_kernel lepe_filters pool_ratio',
            [('SOFT', False, 3, 'head', 2)] * 4,
        ),
        # 3. A list has an entry for each stage, None for no change; so has what is in per_stage.
        (
            LAP,
            [dict(num_landmarks=4), None, SOFTMAX, dict(SOFTMAX, lepe_kernel=0)],
            'num_landmarks lepe_kernel',
            [('Laplacian', 4, 3), ('Laplacian', 49, 3), ('Softmax', None, 3), ('Softmax', None, 0)],
        ),
        (
            'PVT',
            dict(per_stage=dict(sr_ratio=(1, 2, 3, 4)), qkv_bias=False),
            'sr_ratio qkv_bias',
            [('Softmax', ratio, False) for ratio in (1, 2, 3, 4)],
        ),
        (
            'SOFT',
            dict(per_stage=dict(num_landmarks=(16, 9, 4, None), pool_ratio=(3, 2, 1, None))),
            'num_landmarks pool_ratio',
            [('SOFT', 16, 3), ('SOFT', 9, 2), ('SOFT', 4, 1), ('Softmax', None, None)],
        ),
        # The rule holds inside of windows, for the attention there, wherever they come from.
        (
            LAP,
            dict(type='WindowAttention', attn_cfg=dict(rope=False)),
            'rope lepe_kernel window_size',
            [('Softmax', False, 3, 7)] * 4,
        ),
        (
            'PolaFormerSwin',
            [dict(attn_cfg=dict(alpha=2)), None, dict(attn_cfg=dict(type='PolaAttention')), None],
            'alpha window_size',
            [('Pola', 2, 56), ('Pola', 4.0, 56), ('Pola', 4.0, 7), ('Softmax', None, 7)],
        ),
    ],
)
def test_options_reach_the_attentions_by_one_rule(backbone, attn_cfg, names, expected):
    assert options(backbone, attn_cfg, *names.split()) == expected


NO_OPTION = 'Attention has no option '


@pytest.mark.parametrize(
    ('backbone', 'attn_cfg', 'quoted'),
    [
        (
            'SOFT',
            dict(per_stage=dict(num_landmarks=(16, 9, 9, 9))),
            f"Softmax{NO_OPTION}'num_landma",
        ),
        (LAP, dict(landmark=4), f"Laplacian{NO_OPTION}'landmark' (did you mean 'num_landmarks'"),
        ('Swin', dict(qkv_bias=False), f"Window{NO_OPTION}'qkv_bias'"),
        ('Swin', dict(attn_cfg=dict(alpha=3)), f"Softmax{NO_OPTION}'alpha'"),
        ('PolaFormerPVT', dict(sr_ratio=(8, 4, 2, 1)), 'attn_cfg=dict(per_stage=dict(sr_ratio=(8,'),
        (
            'PolaFormerSwin',
            dict(attn_cfg=dict(type='PolaAttention', sr_ratio=[2, 1])),
            'got [2, 1]',
        ),
        (LAP, dict(num_heads=4), 'num_heads=4'),
        (
            'SOFT',
            dict(landmark_method='pool', num_landmarks=9),
            'num_landmarks (9) or pool_ratio (8)',
        ),
        (
            LAP,
            dict(per_stage=dict(num_landmarks=(4, 9, 16))),
            "attn_cfg.per_stage['num_landmarks']",
        ),
        ('EfficientViT', dict(per_stage=dict(scales=(None, (3,), (3,), (3,)))), '(3,) for stage 1'),
        (LAP, dict(type='SoftmaxAtention'), "not registered (did you mean 'SoftmaxAttention'?)"),
        (
            'PVT',
            dict(type='WindowAttention', attn_cfg=dict(type='PolaAttention', num_heads=7)),
            'num_heads=7',
        ),
        ('SOFT', dict(relative_bias=True, per_stage=dict(type=['SoftmaxAttention'] * 4)), 'a list'),
        ('PVT', dict(per_stage=[8, 4, 2, 1]), '[8, 4, 2, 1]'),
        ('PVT', ['SoftmaxAttention'] * 4, 'an attention must be a dict'),
        ('PVT', dict(type=['SoftmaxAttention']), 'must be a class or its name, got ['),
        ('PVT', dict(lepe_filters='head'), "lepe_filters='head'"),
        (
            'PVT',
            dict(rope=True, rope_on='features', per_stage=dict(sr_ratio=(1, 1, 1, 1))),
            "rope_on='query_key'",
        ),
        *(
            (LAP, dict(SOFTMAX, first_blocks=count), f'a positive number of blocks, got {count}')
            for count in (0, True)
        ),
        *(
            (LAP, alone, 'alone, which changes nothing')
            for alone in (dict(first_blocks=2), dict(per_stage=dict(first_blocks=(2, 2, 2, 2))))
        ),
        (
            'Swin',
            dict(attn_cfg=dict(type='PolaAttention', first_blocks=2)),
            'first_blocks=2 has no effect in the attn_cfg of',
        ),
    ],
)
def test_values_that_would_be_lost_are_quoted(backbone, attn_cfg, quoted):
    error = TypeError if NO_OPTION in quoted else ValueError
    with pytest.raises(error, match=re.escape(quoted)):
        options(backbone, attn_cfg)


@pytest.mark.sampled(12)
@pytest.mark.parametrize('name', BACKBONES)
@pytest.mark.parametrize('attention', registered(BaseAttention))
def test_every_host_takes_every_attention(name, attention):
    with_token = name in ('SOFT', 'SOFTPlusPlus', 'ViT', 'DINOv2', 'DINOv3')
    takes = not MODELS.get(attention).no_prefix_tokens
    kwargs = dict(with_cls_token=takes) if with_token else {}
    backbone = build(name, attn_cfg=dict(type=attention), **kwargs).eval()
    with torch.no_grad():
        assert all(out.isfinite().all() for out in backbone(torch.randn(1, 3, 50, 70)))


# ---- attentions that users write, with our bases or without


class MeanOfTokens(torch.nn.Module):
    """An attention that knows nothing of this project."""

    def __init__(self, embed_dims, num_heads, input_resolution, gain=1.0):
        super().__init__()
        self.gain = gain

    def forward(self, x, hw_shape):
        return self.gain * x.mean(1, keepdim=True).expand_as(x)


def test_an_attention_of_ones_own_needs_no_base_of_ours():
    images, own = torch.randn(1, 3, 64, 64), dict(type=MeanOfTokens, gain=2.0)
    backbone = build(LAP, attn_cfg=own)
    assert backbone.stages[0]['blocks'][0].attn.gain == 2
    assert backbone(images)[-1].isfinite().all()
    assert build('Swin', attn_cfg=dict(attn_cfg=own))(images)
    with pytest.raises(TypeError, match="MeanOfTokens has no option 'gian' .did you mean 'gain'"):
        build(LAP, attn_cfg=dict(type=MeanOfTokens, gian=2.0))


class Own(QKVAttention):
    def __init__(self, embed_dims, num_heads, input_resolution):
        super().__init__(embed_dims, num_heads, input_resolution)

    def mix(self, q, k, v, hw_shape):
        return v


def test_a_constructor_that_hands_nothing_on_takes_nothing_of_the_frame():
    assert Own.known_options() == ['embed_dims', 'num_heads', 'input_resolution']
    fixed = type('Further', (SOFTAttention,), dict(fixed_options=('gate',))).known_options()
    assert not {'rope', 'sr_ratio', 'gate'} & set(fixed)
    assert build(LAP, attn_cfg=dict(type=Own)).stages[0]['blocks'][0].attn.lepe is None


def test_only_blocks_with_an_attention_count_as_first_blocks():
    """SwiftFormer has one in the last block of a stage alone."""
    softmax = dict(type='SoftmaxAttention', first_blocks=1)
    stages = MODELS.build(dict(type='SwiftFormer', arch='xs', attn_cfg=softmax)).stages
    for stage in stages:
        *local, last = (type(block.attn).__name__ for block in stage['blocks'])
        assert last == 'SoftmaxAttention' and set(local) == {'NoneType'}
