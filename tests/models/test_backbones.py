"""The contract of every registered backbone, and what LaplacianFormer promises beyond it."""

import re
from itertools import accumulate
from operator import mul
from unittest import mock

import pytest
import torch
import torch.nn as nn
import yaml
from conftest import ROOT, quiet_init, registered
from mmcv.cnn import fuse_conv_bn
from mmengine.registry import MODELS
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from mmlaplace.models import PyramidBackbone
from mmlaplace.models.backbones.agent import windows as agent_windows
from mmlaplace.models.backbones.dinov2 import resize_longer
from mmlaplace.models.backbones.inline import windows as inline_windows
from mmlaplace.models.pyramid import arch as size_of

BACKBONES = registered(PyramidBackbone)
SMALL = size_of((16, 32, 48, 64), (1, 1, 2, 1), (1, 2, 3, 4), (2,) * 4)


def small(name):
    """A small arch with as many stages as the family has."""
    stages = len(MODELS.get(name).host())
    return {key: values[:stages] for key, values in SMALL.items()}


def strides(name):
    return tuple(accumulate((stage.stride for stage in MODELS.get(name).host()), mul))


def build(name, arch=None, img_size=64, **kwargs):
    backbone = MODELS.build(dict(type=name, arch=arch or small(name), img_size=img_size, **kwargs))
    quiet_init(backbone)
    for norm in backbone.modules():  # SwinV2's blocks start as identities
        if isinstance(norm, nn.LayerNorm) and not norm.weight.any():
            nn.init.ones_(norm.weight)
    return backbone


def smallest(name):
    zoo = MODELS.get(name).arch_zoo
    return min(zoo, key=lambda arch: sum(zoo[arch]['depths']) * max(zoo[arch]['embed_dims']))


@pytest.fixture(params=BACKBONES)
def name(request):
    """A test that takes a name runs for every backbone."""
    return request.param


@pytest.mark.sampled(4)
@pytest.mark.parametrize('size', [(224, 224), (256, 309), (4, 4), (5, 70)])
def test_maps_of_any_image_have_the_strides(name, size):
    size = tuple(max(side, strides(name)[0]) for side in size)
    backbone = build(name, smallest(name), img_size=224).eval()
    with torch.no_grad():
        outs = backbone(torch.randn(1, 3, *size))
    assert isinstance(outs, tuple)
    for out, dims, stride in zip(outs, backbone.embed_dims, strides(name), strict=True):
        assert out.shape == (1, dims, *(-(-side // stride) for side in size))
        assert out.isfinite().all()


@pytest.mark.parametrize('out_indices', [(0, 1, 2, 3), (3,), (1, 2)])
def test_every_parameter_gets_a_gradient(name, out_indices):
    out_indices = tuple(sorted({min(i, len(strides(name)) - 1) for i in out_indices}))
    backbone = build(name, out_indices=out_indices)
    outs = backbone(torch.randn(2, 3, 64, 64))
    channels = tuple(backbone.embed_dims[i] for i in out_indices)
    assert tuple(out.shape[1] for out in outs) == backbone.out_channels == channels
    sum((out * torch.randn_like(out)).sum() for out in outs).backward()
    assert [n for n, p in backbone.named_parameters() if p.grad is None] == []


def test_checkpointing_computes_blocks_again_and_changes_nothing(name):
    plain, saving = build(name), build(name, with_cp=True)
    saving.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 64, 64)
    for backbone, passes in ((plain, 1), (saving, 2)):
        blocks = [block for stage in backbone.stages for block in stage['blocks']]
        for block in blocks:  # what may be computed again
            block._forward = mock.Mock(wraps=block._forward)
        sum(out.square().mean() for out in backbone.train()(images)).backward()
        assert {block._forward.call_count for block in blocks} == {passes}
    grads = ({n: p.grad for n, p in model.named_parameters()} for model in (plain, saving))
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize('frozen_stages', [-1, 0, 2, 4])
def test_frozen_stages_stay_frozen(name, frozen_stages):
    frozen_stages = min(frozen_stages, len(strides(name)))
    backbone = build(name, frozen_stages=frozen_stages, drop_path_rate=0.5).train()
    starts = ['stages.0.patch_embed.', 'stages.0.position.'] * (frozen_stages >= 0)
    for i in range(frozen_stages):
        starts += [f'stages.{i}.', f'norm{i}.']
        assert not backbone.stages[i].training
    for parameter_name, parameter in backbone.named_parameters():
        frozen = parameter_name.startswith(tuple(starts))
        assert parameter.requires_grad != frozen, parameter_name


def test_attentions_start_for_the_maps_that_training_images_have(name):
    backbone = build(name, img_size=(70, 91)).eval()  # no stride divides these
    maps = [tuple(out.shape[2:]) for out in backbone(torch.randn(1, 3, 70, 91))]
    found = [(s['blocks'][-1].attn, size) for s, size in zip(backbone.stages, maps)]
    assert all(attn is None or attn.input_resolution == size for attn, size in found)
    assert found[-1][0] is not None


# Attentions with weights for each place.
OPTIONS = {
    'Agent': {},
    'FLatten': {},
    'SLAB': {},
    'Linformer': {},
    'Pola': dict(gate_form='matrix'),
    'Softmax': dict(relative_bias=True),
}
SIZED = [
    ('LaplacianFormer', dict(options, type=f'{name}Attention', rope=False))
    for name, options in OPTIONS.items()
]
SIZED += [('Swin', agent_windows(12, (4, 4, 9))), ('Swin', inline_windows(12, 3, 1))]


@pytest.mark.parametrize(('name', 'attn_cfg'), [*((name, None) for name in BACKBONES), *SIZED])
def test_checkpoint_round_trip_at_another_resolution(name, attn_cfg, tmp_path):
    # Else the windows of small maps would give other biases.
    options = dict(pretrained_windows=(8, 8, 4, 2)) if name == 'SwinV2' else {}
    trained = build(name, img_size=64, attn_cfg=attn_cfg, **options).eval()
    torch.save(dict(state_dict=trained.state_dict()), tmp_path / 'trained.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'trained.pth'))
    loaded = build(name, img_size=96, init_cfg=init_cfg, attn_cfg=attn_cfg, **options).eval()
    # Positions that were resized on loading are the forward's at the size of the model alone.
    sized = any(hasattr(module, 'resize_weight') for module in trained.modules())
    images = torch.randn(1, 3, 96, 96 if sized else 128)
    torch.testing.assert_close(loaded(images), trained(images))


def test_layer_depths_rise_from_stem_to_end(name):
    backbone, depths = build(name, out_norms=True), {}
    for n, _ in backbone.named_parameters():
        depths[n], total = backbone.get_layer_depth(f'backbone.{n}', 'backbone.')
    in_order = [depth for n, depth in depths.items() if n.startswith('stages.')]
    assert in_order == sorted(in_order) and {*depths.values()} == {*range(total)}
    assert backbone.get_layer_depth('head.fc.weight', 'backbone.') == (total - 1, total)

    def of(start):
        return {depth for n, depth in depths.items() if n.startswith(start)}

    ends = [*accumulate(len(stage['blocks']) for stage in backbone.stages)]
    assert of('stages.0.patch_embed.') == {0} and total == ends[-1] + 2
    for i, end in enumerate(ends):
        assert of(f'norm{i}.') == {end if end < ends[-1] else total - 1}
        assert of(f'stages.{i}.blocks.0.') == {end - len(backbone.stages[i]['blocks']) + 1}


def test_drop_path_rises_to_its_rate_and_only_trains(name):
    arch = dict(small(name), depths=(2,) * len(strides(name)))
    backbone = build(name, arch, drop_path_rate=0.4)
    rates = [b.drop_path.drop_prob for stage in backbone.stages for b in stage['blocks']]
    assert (rates[0], rates[-1]) == (0, pytest.approx(0.4))
    images = torch.randn(4, 3, 32, 32)
    for trains in (True, False):
        backbone.train(trains)
        assert torch.equal(backbone(images)[-1], backbone(images)[-1]) != trains


def test_fusing_convolutions_and_batch_norms_changes_no_map():
    """mmcv merges a BatchNorm into the convolution that is registered before it."""
    backbone, images = build('XCiTBackbone', norm_cfg=dict(type='BN')), torch.randn(1, 3, 64, 64)
    for module in backbone.eval().modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for value in (module.running_mean, module.bias, module.running_var):
                nn.init.uniform_(value, 0.5, 2.0)
    with torch.no_grad():
        expected = backbone(images)
        # The BatchNorm's scale is multiplied into rounded weights.
        fused = fuse_conv_bn(backbone)(images)
    torch.testing.assert_close(fused, expected, atol=1e-4, rtol=1e-4)


def test_a_stem_has_no_norm_of_its_stage():
    stage = build('PVTv2', stage_norms=True, frozen_stages=0).stages[0]
    assert all(parameter.requires_grad for parameter in stage['norm'].parameters())


def test_a_graph_of_any_size_refuses_positions_that_are_resized_by_a_factor():
    side = ShapeEnv().create_unbacked_symint()
    with pytest.raises(ValueError, match='export it for one size'):
        resize_longer(torch.randn(1, 8, 5, 5), (side, side))


def test_images_that_are_too_small_or_no_batch_are_quoted(name):
    backbone, side = build(name), strides(name)[0]
    for shape in ((1, 3, 3, 64), (1, 3, 64, 1)):
        quoted = f'{side} x {side} pixels, got shape {shape}'
        with pytest.raises(ValueError, match=re.escape(quoted)):
            backbone(torch.randn(shape))
    with pytest.raises(ValueError, match=rf'{name} needs images .*\(3, 64, 96\)'):
        backbone(torch.randn(3, 64, 96))


def test_small_images_take_smaller_strides():
    backbone = build('LaplacianFormer', strides=(2, 2, 2, 2), img_size=28)
    maps = backbone(torch.randn(1, 3, 28, 30))
    assert [tuple(x.shape[2:]) for x in maps] == [(14, 15), (7, 8), (4, 4), (2, 2)]


SIZES = yaml.safe_load((ROOT / 'tests/data/backbone_sizes.yml').read_text())


@pytest.mark.sampled(4, 4)
# The sizes of a newer backbone are in the metafile of its classifiers, which their test counts.
@pytest.mark.parametrize('recorded', SIZES)
def test_sizes_have_their_parameters_and_heads(recorded):
    assert set(SIZES[recorded]) == set(MODELS.get(recorded).arch_zoo)
    for arch, expected in SIZES[recorded].items():
        with torch.device('meta'):
            backbone = MODELS.build(dict(type=recorded, arch=arch))
        heads = []
        for stage, depth in zip(backbone.stages, backbone.depths, strict=True):
            assert len(stage['blocks']) == depth
            modules = stage['blocks'][-1].modules()
            heads.append(next((m.num_heads for m in modules if hasattr(m, 'num_heads')), None))
        assert [sum(p.numel() for p in backbone.parameters()), heads] == expected, arch


def test_tools_of_mmpretrain_learn_how_many_tokens_are_before_the_map():
    # mmpretrain's vis_cam.py --vit-like takes 1 where a backbone does not say.
    assert build('SOFT').num_extra_tokens == 1
    assert build('SOFT', out_indices=(0, 1)).num_extra_tokens == 0
    assert build('LaplacianFormer').num_extra_tokens == 0
