"""Attentions that users write, with our bases or without, take their options by the same rule."""

import pytest
import torch
from mmengine.registry import MODELS
from test_attn_cfg import FOUR, options
from test_backbones import build

from mmlaplace.models import LaplacianFormer, QKVAttention, SOFTAttention, XCAttention


def test_a_list_is_the_value_of_an_option_that_takes_one():
    @MODELS.register_module(force=True)
    class ScaledAttention(QKVAttention):
        def __init__(self, *args, scales=(5,), **kwargs):
            super().__init__(*args, **kwargs)
            self.scales = scales

        def mix(self, q, k, v, hw_shape):
            return v

    try:
        cfg = dict(type='ScaledAttention', scales=(3, 5))
        assert options('PVT', cfg, 'scales') == [('Scaled', (3, 5))] * 4
        cfg = dict(type='ScaledAttention', per_stage=dict(scales=[(3,), (5,), (3, 5), (7,)]))
        assert [s for _, s in options('PVT', cfg, 'scales')] == [(3,), (5,), (3, 5), (7,)]
    finally:
        MODELS.module_dict.pop('ScaledAttention')


class MeanOfTokens(torch.nn.Module):
    """An attention that knows nothing of this project."""

    def __init__(self, embed_dims, num_heads, input_resolution, gain=1.0):
        super().__init__()
        self.gain = gain

    def forward(self, x, hw_shape):
        return self.gain * x.mean(1, keepdim=True).expand_as(x)


class Handing(MeanOfTokens):
    def __init__(self, embed_dims, num_heads, input_resolution, **kwargs):
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)


def test_an_attention_of_ones_own_needs_no_base_of_ours():
    images = torch.randn(1, 3, 64, 64)
    for kind in (MeanOfTokens, Handing):
        backbone = build('LaplacianFormer', attn_cfg=dict(type=kind, gain=2.0))
        assert backbone.stages[0]['blocks'][0].attn.gain == 2
        assert backbone(images)[-1].isfinite().all()

        class Family(LaplacianFormer):
            default_attn_cfg = dict(type=kind)

        family = Family(FOUR, attn_cfg=dict(gain=3.0), img_size=64)
        assert family.stages[0]['blocks'][0].attn.gain == 3
        windows = build('Swin', attn_cfg=dict(attn_cfg=dict(type=kind)))
        assert windows(images)[-1].isfinite().all()
    with pytest.raises(
        TypeError, match="MeanOfTokens has no option 'gian'; its options are embed_"
    ):
        build('LaplacianFormer', attn_cfg=dict(type=MeanOfTokens, gian=2.0))


def test_a_constructor_that_hands_nothing_on_takes_nothing_of_the_frame():
    class Own(QKVAttention):
        def __init__(self, embed_dims, num_heads, input_resolution):
            super().__init__(embed_dims, num_heads, input_resolution)

        def mix(self, q, k, v, hw_shape):
            return v

    assert Own.known_options() == ['embed_dims', 'num_heads', 'input_resolution']
    assert (
        build('LaplacianFormer', attn_cfg=dict(type=Own)).stages[0]['blocks'][0].attn.lepe is None
    )


def test_init_cfg_may_be_a_list():
    init_cfg = [dict(type='Constant', layer='Linear', val=0.5), dict(type='Constant', layer='X')]
    backbone = build('LaplacianFormer', attn_cfg=dict(init_cfg=init_cfg[:1]))
    assert (backbone.stages[0]['blocks'][0].attn.qkv.weight == 0.5).all()


def test_options_that_a_base_has_fixed_stay_so():
    class Further(SOFTAttention):
        fixed_options = ('gate',)

    for name in ('rope', 'sr_ratio', 'gate'):
        assert name not in Further.known_options()
    assert 'sr_ratio' not in XCAttention.known_options()
