"""The options of backbones and attentions that users of the toolboxes and timm expect."""

import copy
import re

import pytest
import torch
import torch.nn as nn
from mmengine import registry
from mmengine.model import BaseModule
from mmengine.registry import MODELS, Registry
from test_attentions import CASES, each, name_of
from test_attentions import build as build_attention
from test_backbones import BACKBONES, SMALL, build, small

from mmlaplace.models import BaseAttention, QKVAttention
from mmlaplace.models.layers.block import Block
from mmlaplace.models.layers.build import ACTIVATIONS

LINEAR_STD = 0.02  # of INIT_CFG
IMAGES = torch.randn(2, 3, 64, 96)


@pytest.mark.parametrize('what', [*CASES, *BACKBONES], ids=name_of)
def test_a_meta_model_filled_by_a_state_dict_is_the_one_it_came_from(what):
    if isinstance(what, str):
        trained, inputs = build(what).eval(), (IMAGES,)
        cfg = dict(type=what, arch=small(what), img_size=64)
    else:
        trained, inputs = build_attention(what), (torch.randn(2, 49, 64), (7, 7))
        cfg = dict(what, embed_dims=64, num_heads=2, input_resolution=(7, 7))
    with torch.device('meta'):
        filled = MODELS.build(cfg)
    filled.to_empty(device='cpu')
    for tensor in (*filled.parameters(), *filled.buffers()):
        # Whatever memory held before: numbers that no computation survives.
        tensor.data.fill_(float('nan') if tensor.is_floating_point() else 2**40)
    filled.load_state_dict(trained.state_dict())
    torch.testing.assert_close(filled.eval()(*inputs), trained(*inputs), rtol=0, atol=0)


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


@pytest.mark.parametrize(
    ('cfg', 'tables'),
    [
        (dict(type='AgentAttention', num_landmarks=49), 'gather_map spread_rows'),
        (dict(type='SoftmaxAttention', relative_bias=True), 'relative_bias'),
        (dict(type='SoftmaxAttention', sr_ratio=2, key_positions=True), 'key_positions'),
        (dict(type='TTTAttention'), 'w1 w2 w3'),
    ],
    ids=name_of,
)
def test_tables_of_attentions_start_as_linears_do(cfg, tables):
    attention = MODELS.build(dict(cfg, embed_dims=64, num_heads=2, input_resolution=(14, 14)))
    attention.init_weights()
    for name in tables.split():
        values = getattr(attention, name)
        assert abs(values.std().item() - LINEAR_STD) < 5 * LINEAR_STD / (2 * values.numel()) ** 0.5


def own_norms(module, kind) -> list:
    """The norms of this class that are no part of an attention."""
    if isinstance(module, BaseAttention):
        return []
    inside = [norm for child in module.children() for norm in own_norms(child, kind)]
    return [module] if isinstance(module, kind) else inside


@pytest.mark.parametrize('name', BACKBONES)
def test_norm_cfg_sets_every_norm_around_the_attentions(name):
    of_maps = MODELS.get(name).host()[0].norm['type'] == 'BN'
    kind = nn.BatchNorm2d if of_maps else nn.LayerNorm
    count = len(own_norms(build(name), kind))
    norm_cfg = dict(type='BN' if of_maps else 'LN', eps=0.125, requires_grad=False)
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


@pytest.mark.parametrize(
    ('options', 'quoted'),
    [
        (dict(out_indices=(3, 1)), r'ascending order.*got \(3, 1\).*write \(1, 3\)'),
        (dict(out_indices=(1, 1)), r'write \(1,\)'),
        (dict(out_indices=(3, -1)), r'is \(3, 3\)'),
        (dict(out_indices=-5), 'got -5'),
        (dict(out_indices=('1',)), r"got \('1',\)"),
        (dict(norm_cfg=dict(type='RMSNN')), r"no norm of tokens \(did you mean 'RMSN'\?\)"),
        (dict(arch='tinny'), r"no arch 'tinny' \(did you mean 'tiny'\?\)"),
        *(
            (dict(in_channels=channels), f'in_channels must be a positive .* got {channels}')
            for channels in (0, -3, 1.5, True)
        ),
        (dict(norm_cfg=dict(eps=1e-6)), r"got \{'eps': 1e-06\}"),
        (dict(norm_cfg='LN'), "got 'LN'"),
        (
            dict(act_cfg=dict(type='Swash')),
            "'Swash', which is no activation .did you mean 'HSwish'",
        ),
        (dict(arch=dict(embed_dims=(16,) * 4)), 'missing: .*depths'),
        (dict(arch=dict(SMALL, depths=(1, 1))), r"arch\['depths'\].*\(1, 1\)"),
        (dict(arch=dict(SMALL, ffn_ratios=2)), r"arch\['ffn_ratios'\].*got 2"),
        (dict(arch=dict(SMALL, depths=(0, 1, 1, 1))), r'positive.*\(0,'),
        (dict(arch=dict(SMALL, num_heads=(3, 2, 5, 3))), r'\(16\).*num_heads \(3\)'),
        (dict(img_size=0), 'img_size must be a positive .* got 0'),
        *(
            (dict(strides=bad), rf'4 positive .*{re.escape(repr(bad))}')
            for bad in (2, (2, 2, 0, 2))
        ),
        (dict(out_norms='BN'), r"out_norms must be .*dict\(type='BN'\), got 'BN'"),
        *(
            (dict(drop_path_rate=rate), f'got {re.escape(str(rate))}')
            for rate in (1.0, -0.1, [0.0, 0.1])
        ),
        (dict(out_indices=(0, 4)), r'0 to 3, .*got \(0, 4\)'),
        (dict(frozen_stages=5), 'frozen_stages must be -1 to 4, got 5'),
        (dict(attn_cfg=dict(per_stage=dict(init_cfg=[4] * 5))), r'one entry .*\[4, 4, 4, 4, 4\]'),
        (dict(type='SOFT', out_type='cls_token'), r'=\(3,\), .* got out_indices=\(0, 1, 2, 3\)'),
        (dict(type='SOFT', out_type='cls_token', with_cls_token=False), 'needs a class token'),
        (
            dict(type='ViT', attn_cfg=dict(type='SoftmaxAttention', relative_bias=True)),
            r'_tokens=1 have no offsets .*relative_bias=False \(got True\)',
        ),
        (
            dict(type='SOFT', attn_cfg=dict(type='LargeKernelAttention')),
            "'LargeKernelAttention' does not: it is a convolution of the map",
        ),
        (dict(type='ViT', with_dist_token=True, with_cls_token=False), 'True needs a class token'),
        (dict(type='DINOv2', num_registers=-1), 'num_registers must be .* got -1'),
        (dict(type='SwinV2', pretrained_windows=(12, 12)), r'pretrained_win.* got \(12, 12\)'),
        # As in the authors' configs.
        (dict(type='CSWin', stripe_widths=(1, 2, 7, 7)), r'three widths, .*got \(1, 2, 7, 7\)'),
        (dict(type='ViT', cpe_kernel=3), 'cpe_kernel=3 .* set with_cls_token=False'),
    ],
)
def test_options_that_cannot_be_are_quoted(options, quoted):
    with pytest.raises(ValueError, match=quoted):
        build(**{'name': options.pop('type', 'LaplacianFormer'), **options})


@pytest.mark.parametrize('name', BACKBONES)
def test_maps_have_the_memory_format_of_the_images(name):
    backbone = build(name).eval()
    plain, last = backbone(IMAGES), dict(memory_format=torch.channels_last)
    assert all(out.is_contiguous() for out in plain)
    for model in (backbone, copy.deepcopy(backbone).to(**last)):
        for out, expected in zip(model(IMAGES.to(**last)), plain):
            assert out.is_contiguous(**last)
            # Convolutions in another memory format may sum in another order: rounding of fp32.
            torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize('norm_eval', [False, True])
def test_norm_eval_keeps_the_statistics_of_batch_norms(norm_eval):
    backbone = build('SOFT', norm_eval=norm_eval).train()
    before = {name: value.clone() for name, value in backbone.named_buffers() if 'mean' in name}
    backbone(IMAGES)
    changed = [not torch.equal(a, backbone.get_buffer(name)) for name, a in before.items()]
    assert before and changed == [not norm_eval] * len(before)
    assert backbone.training and all(p.requires_grad for p in backbone.parameters())


@pytest.mark.parametrize('name', BACKBONES)
def test_drop_rate_reaches_every_ffn_and_position(name):
    backbone = build(name, drop_rate=0.25)
    for block in backbone.modules():
        if isinstance(block, Block):
            assert {m.p for m in block.ffn.modules() if isinstance(m, nn.Dropout)} == {0.25}
            assert not block.drop_path.drop_prob
    assert all(stage['position'].drop.p == 0.25 for stage in backbone.stages if 'position' in stage)


def has_projection(cfg):
    cls = MODELS.get(cfg['type'])
    return issubclass(cls, QKVAttention) and cfg.get('proj', cls.frame.proj)


@each(filter(has_projection, CASES))
def test_projections_drop_behind_themselves_and_linears_go_without_a_bias(cfg):
    attention = build_attention(dict(cfg, proj_drop=0.5, qkv_bias=False)).train()
    assert not {'qkv.bias', 'kv.bias'} & {*dict(attention.named_parameters())}
    if 'value_shortcut' in cfg:
        return  # which is added behind the projection
    nn.init.ones_(attention.proj.bias)
    nn.init.zeros_(attention.proj.weight)
    x = torch.randn(4, 49, 64)
    assert attention(x, (7, 7)).unique().tolist() == [0, 2]  # dropped, or kept and scaled up
    assert attention.eval()(x, (7, 7)).unique().tolist() == [1]


def test_names_of_ours_are_ours_alone():
    """All plugins of OpenMMLab share a registry: the later of two modules of one name wins."""
    for toolbox in ('mmpretrain', 'mmdet', 'mmseg'):
        pytest.importorskip(f'{toolbox}.models')

    def names(of):
        own = set(of.module_dict)
        return own.union(*(names(child) for child in of.children.values()))

    for root in (value for value in vars(registry).values() if isinstance(value, Registry)):
        ours = {name for name, cls in root.module_dict.items() if cls.__module__.startswith('mmla')}
        for child in root.children.values():
            assert not ours & names(child), child.scope
