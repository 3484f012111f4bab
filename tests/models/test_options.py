"""The options of backbones and attentions that users of the toolboxes and timm expect."""

import re

import pytest
import torch
import torch.nn as nn
from mmengine.model import BaseModule
from mmengine.registry import MODELS
from test_attentions import CASES, each
from test_attentions import build as build_attention
from test_backbones import BACKBONES, SMALL, build, small

from mmlaplace.models import BaseAttention, QKVAttention
from mmlaplace.models.layers import DropPath
from mmlaplace.models.layers.block import Block
from mmlaplace.models.layers.build import ACTIVATIONS

LINEAR_STD = 0.02  # of INIT_CFG
IMAGES = torch.randn(2, 3, 64, 96)


def filled_from(make, trained: nn.Module) -> nn.Module:
    """A module built on the meta device whose only values are those of a state dict."""
    with torch.device('meta'):
        module = make()
    module.to_empty(device='cpu')
    for tensor in (*module.parameters(), *module.buffers()):
        # Whatever memory held before: numbers that no computation survives.
        tensor.data.fill_(float('nan') if tensor.is_floating_point() else 2**40)
    module.load_state_dict(trained.state_dict())
    return module.eval()


@pytest.mark.parametrize('name', BACKBONES)
def test_a_meta_backbone_filled_by_a_state_dict_is_the_one_it_came_from(name):
    trained = build(name).eval()
    options = dict(type=name, arch=small(name), img_size=64)
    filled = filled_from(lambda: MODELS.build(options), trained)
    for out, expected in zip(filled(IMAGES), trained(IMAGES)):
        assert torch.equal(out, expected)


@each(CASES)
def test_a_meta_attention_filled_by_a_state_dict_is_the_one_it_came_from(cfg):
    trained = build_attention(cfg)
    sizes = dict(embed_dims=64, num_heads=2, input_resolution=(7, 7))
    filled = filled_from(lambda: MODELS.build(dict(cfg, **sizes)), trained)
    x = torch.randn(2, 49, 64)
    assert torch.equal(filled(x, (7, 7)), trained(x, (7, 7)))


@pytest.mark.parametrize('name', BACKBONES)
def test_linears_start_small_and_norms_as_the_identity(name):
    backbone = build(name, 'b0' if 'PVTv2' in name else None)
    for path, module in backbone.named_modules():
        assert getattr(module, 'is_init', True) or not isinstance(module, BaseModule), path
        if isinstance(module, nn.Linear):
            # The error of a standard deviation of n values is std / sqrt(2n): five of them.
            allowed = 5 * LINEAR_STD / (2 * module.weight.numel()) ** 0.5
            assert abs(module.weight.std().item() - LINEAR_STD) < allowed, path
            assert module.bias is None or not module.bias.any(), path
        elif isinstance(module, nn.LayerNorm):
            assert (module.weight == 1).all() and not module.bias.any(), path


def own_norms(backbone, kind) -> list:
    """The norms of this class that are no part of an attention."""
    found = [m for m in backbone.modules() if isinstance(m, BaseAttention)]
    inside = {id(m) for attention in found for m in attention.modules()}
    return [m for m in backbone.modules() if isinstance(m, kind) and id(m) not in inside]


@pytest.mark.parametrize('name', BACKBONES)
def test_norm_cfg_sets_every_norm_around_the_attentions(name):
    of_maps = MODELS.get(name).host()[0].norm['type'] == 'BN'
    kind, norm_cfg = (nn.BatchNorm2d, 'BN') if of_maps else (nn.LayerNorm, 'LN')
    count = len(own_norms(build(name), kind))
    norm_cfg = dict(type=norm_cfg, eps=0.125, requires_grad=False)
    norms = own_norms(build(name, norm_cfg=norm_cfg), kind)
    assert len(norms) == count and all(norm.eps == 0.125 for norm in norms)
    assert not any(p.requires_grad for norm in norms for p in norm.parameters())
    if hasattr(nn, 'RMSNorm') and not of_maps:  # torch >= 2.4
        block = build(name, norm_cfg=dict(type='RMSN')).stages[0]['blocks'][0]
        assert isinstance(block.norm1, nn.RMSNorm)


@pytest.mark.parametrize('name', BACKBONES)
def test_act_cfg_sets_the_activation_of_every_ffn(name):
    other = build(name, act_cfg=dict(type='SiLU'))
    ffns = [m for name, m in other.named_modules() if name.split('.')[-1] == 'ffn']
    found = [m for ffn in ffns for m in ffn.modules() if type(m) in ACTIVATIONS.values()]
    assert found and {type(layer) for layer in found} == {nn.SiLU}


@pytest.mark.parametrize(('options', 'quoted'), [
    (dict(out_indices=(3, 1)), r'ascending order.*got \(3, 1\).*write \(1, 3\)'),
    (dict(out_indices=(1, 1)), r'write \(1,\)'), (dict(out_indices=(3, -1)), r'is \(3, 3\)'),
    (dict(out_indices=-5), 'got -5'), (dict(out_indices=('1',)), r"got \('1',\)"),
    (dict(norm_cfg=dict(type='Norm')), "'Norm', which is no norm of tokens"),
    (dict(norm_cfg=dict(type='RMSNN')), r"no norm of tokens \(did you mean 'RMSN'\?\)"),
    (dict(arch='tinny'), r"no arch 'tinny' \(did you mean 'tiny'\?\)"),
    *((dict(in_channels=channels), f'in_channels must be a positive .* got {channels}')
      for channels in (0, -3, 1.5, True)),
    (dict(norm_cfg=dict(eps=1e-6)), r"got \{'eps': 1e-06\}"), (dict(norm_cfg='LN'), "got 'LN'"),
    (dict(act_cfg=dict(type='Swash')), "'Swash', which is no activation .did you mean 'HSwish'"),
    (dict(arch='gigantic'), "no arch 'gigantic'; give one of .*"),
    (dict(arch=dict(embed_dims=(16,) * 4)), 'missing: .*depths'),
    (dict(arch=dict(SMALL, depths=(1, 1))), r"arch\['depths'\].*\(1, 1\)"),
    (dict(arch=dict(SMALL, ffn_ratios=2)), r"arch\['ffn_ratios'\].*got 2"),
    (dict(arch=dict(SMALL, depths=(0, 1, 1, 1))), r'positive.*\(0,'),
    (dict(arch=dict(SMALL, num_heads=(3, 2, 5, 3))), r'\(16\).*num_heads \(3\)'),
    (dict(img_size=0), 'img_size must be a positive .* got 0'),
    (dict(out_norms='BN'), r"out_norms must be .*dict\(type='BN'\), got 'BN'"),
    *((dict(drop_path_rate=rate), f'got {re.escape(str(rate))}')
      for rate in (1.0, -0.1, [0.0, 0.1])),
    (dict(out_indices=(0, 4)), r'0 to 3, .*got \(0, 4\)'),
    (dict(frozen_stages=5), 'frozen_stages must be -1 to 4, got 5'),
    (dict(attn_cfg=dict(per_stage=dict(init_cfg=[4] * 5))), r'one entry .*\[4, 4, 4, 4, 4\]'),
    (dict(type='ViT', with_dist_token=True, with_cls_token=False), 'True needs a class token'),
    (dict(type='DINOv2', num_registers=-1), 'num_registers must be .* got -1'),
    (dict(type='SwinV2', pretrained_windows=(12, 12)), r'pretrained_win.* got \(12, 12\)'),
    # As in the authors' configs.
    (dict(type='CSWin', stripe_widths=(1, 2, 7, 7)), r'three widths, .*got \(1, 2, 7, 7\)'),
    (dict(type='ViT', cpe_kernel=3), 'cpe_kernel=3 .* set with_cls_token=False'),
])  # fmt: skip
def test_options_that_cannot_be_are_quoted(options, quoted):
    with pytest.raises(ValueError, match=quoted):
        build(**{'name': options.pop('type', 'LaplacianFormer'), **options})


def test_convolutions_may_be_in_the_place_of_positions():
    backbone = build('ViT', cpe_kernel=3, with_cls_token=False)
    assert 'position' not in backbone.stages[0]
    assert backbone(torch.randn(1, 3, 32, 50))[0].shape[2:] == (2, 4)


@pytest.mark.parametrize('name', BACKBONES)
def test_maps_have_the_memory_format_of_the_images(name):
    backbone = build(name).eval()
    plain = backbone(IMAGES)
    for out in plain:
        assert out.is_contiguous()
    channels_last = IMAGES.to(memory_format=torch.channels_last)
    converted = build(name).eval().to(memory_format=torch.channels_last)
    converted.load_state_dict(backbone.state_dict())
    for model in (backbone, converted):
        for out, expected in zip(model(channels_last), plain):
            assert out.is_contiguous(memory_format=torch.channels_last)
            # Convolutions in another memory format may sum in another order: rounding of fp32.
            torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('norm_eval', [False, True])
def test_norm_eval_keeps_the_statistics_of_batch_norms(norm_eval):
    backbone = build('SOFT', norm_eval=norm_eval).train()
    norms = [m for m in backbone.modules() if isinstance(m, nn.BatchNorm2d)]
    before = [norm.running_mean.clone() for norm in norms]
    backbone(IMAGES)
    changed = [not torch.equal(a, norm.running_mean) for a, norm in zip(before, norms)]
    assert norms and changed == [not norm_eval] * len(norms)
    assert all(p.requires_grad for norm in norms for p in norm.parameters())
    assert backbone.training


@pytest.mark.parametrize('name', BACKBONES)
def test_drop_rate_reaches_every_ffn_and_position(name):
    backbone = build(name, drop_rate=0.25)
    blocks = [m for m in backbone.modules() if isinstance(m, Block)]
    for block in blocks:
        assert {m.p for m in block.ffn.modules() if isinstance(m, nn.Dropout)} == {0.25}
    positions = [stage['position'] for stage in backbone.stages if 'position' in stage]
    assert [position.drop.p for position in positions] == [0.25] * len(positions)
    assert not any(m.drop_prob for m in backbone.modules() if isinstance(m, DropPath))
    assert not torch.equal(backbone.train()(IMAGES)[-1], backbone(IMAGES)[-1])
    assert torch.equal(backbone.eval()(IMAGES)[-1], backbone(IMAGES)[-1])


def has_projection(cfg):
    cls = MODELS.get(cfg['type'])
    return issubclass(cls, QKVAttention) and cfg.get('proj', cls.frame.proj)


WITH_PROJECTION = [cfg for cfg in CASES if has_projection(cfg)]


@each(WITH_PROJECTION)
def test_projections_drop_behind_themselves_and_linears_go_without_a_bias(cfg):
    for qkv_bias in (True, False):
        attention = build_attention(dict(cfg, proj_drop=0.5, qkv_bias=qkv_bias)).train()
        names = dict(attention.named_parameters())
        assert bool({'qkv.bias', 'kv.bias'} & set(names)) == qkv_bias
    if 'value_shortcut' in cfg:
        return  # which is added behind the projection
    nn.init.ones_(attention.proj.bias)
    nn.init.zeros_(attention.proj.weight)
    x = torch.randn(4, 49, 64)
    assert attention(x, (7, 7)).unique().tolist() == [0, 2]  # dropped, or kept and scaled up
    assert attention.eval()(x, (7, 7)).unique().tolist() == [1]
