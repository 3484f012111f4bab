"""Learning rates by depth, in every toolbox."""

import pytest
import torch
import torch.nn as nn
from mmengine.model import BaseModel
from mmengine.optim import LinearLR, build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope

from mmlaplace.engine import LayerDecayOptimWrapperConstructor

ARCH = dict(
    embed_dims=(8, 16, 16, 32), depths=(1, 1, 2, 1), num_heads=(1, 1, 2, 2), ffn_ratios=(2,) * 4
)
RATE, LR, DECAY = 0.5, 0.1, 0.02
LAST = sum(ARCH['depths']) + 1  # the stem and the blocks are before it


class Classifier(BaseModel):
    def __init__(self, **kwargs):
        super().__init__()
        backbone = dict(type='LaplacianFormer', arch=ARCH, img_size=32, out_indices=(3,))
        self.backbone = MODELS.build(dict(backbone, **kwargs))
        self.head = nn.Linear(32, 3)

    def forward(self, inputs, mode='tensor'):
        return self.head(self.backbone(inputs)[0].mean((2, 3)))


def wrapper(model, rate=RATE, optimizer=None, **paramwise_cfg):
    if rate is not None:
        paramwise_cfg['layer_decay_rate'] = rate
    config = dict(
        type='OptimWrapper',
        optimizer=optimizer or dict(type='AdamW', lr=LR, weight_decay=DECAY),
        constructor='LayerDecayOptimWrapperConstructor',
        paramwise_cfg=paramwise_cfg,
    )
    return build_optim_wrapper(model, config)


def settings(model, optim_wrapper, key='lr') -> dict:
    """The setting of each parameter by its name; each must be there once."""
    names = {param: name for name, param in model.named_parameters()}
    groups = optim_wrapper.optimizer.param_groups
    found = [names[param] for group in groups for param in group['params']]
    assert len(found) == len(set(found))
    return {names[p]: group[key] for group in groups for p in group['params']}


def expected(backbone='backbone.') -> dict:
    """Learning rates of some parameters, by hand."""
    return {
        f'{backbone}stages.0.patch_embed.projection.weight': LR * RATE**LAST,
        f'{backbone}stages.0.blocks.0.norm1.weight': LR * RATE ** (LAST - 1),
        f'{backbone}stages.2.patch_embed.projection.weight': LR * RATE ** (LAST - 3),
        f'{backbone}stages.2.blocks.1.norm1.bias': LR * RATE ** (LAST - 4),
        f'{backbone}stages.3.blocks.0.norm1.bias': LR * RATE ** (LAST - 5),
        f'{backbone}norm3.weight': LR,
    }


@pytest.mark.parametrize('scope', ['mmengine', 'mmpretrain', 'mmdet', 'mmseg'])
def test_rates_rise_from_stem_to_head_in_every_toolbox(scope):
    pytest.importorskip(scope)
    if scope != 'mmengine':
        utils = pytest.importorskip(f'{scope}.utils')
        utils.register_all_modules(init_default_scope=False)
        registry = pytest.importorskip(f'{scope}.registry').OPTIM_WRAPPER_CONSTRUCTORS
        found = registry.get('LayerDecayOptimWrapperConstructor')
        assert found is LayerDecayOptimWrapperConstructor
    model = Classifier()
    with DefaultScope.overwrite_default_scope(scope):
        rates = settings(model, wrapper(model))
    assert set(rates) == {name for name, _ in model.named_parameters()}
    for name, rate in {**expected(), 'head.weight': LR, 'head.bias': LR}.items():
        assert rates[name] == pytest.approx(rate), name


@pytest.mark.parametrize(
    ('model', 'prefix'),
    [
        (lambda m: m.backbone, ''),
        (lambda m: nn.DataParallel(m), 'backbone.'),  # as in DDP, the model is .module
    ],
)
def test_a_backbone_alone_and_a_wrapped_model(model, prefix):
    classifier = Classifier()
    rates = settings(model(classifier), wrapper(model(classifier)))
    module = '' if prefix == '' else 'module.'
    for name, rate in expected(prefix).items():
        assert rates[module + name] == pytest.approx(rate), name


@pytest.mark.parametrize('part', ['model', 'backbone', 'block'])
def test_compiled_parts_have_the_rates_of_their_layers(part):
    classifier = model = Classifier()
    blocks = classifier.backbone.stages[1]['blocks']
    if part == 'model':
        model = torch.compile(classifier)  # which compiles nothing until it is called
    elif part == 'backbone':
        classifier.backbone = torch.compile(classifier.backbone)
    else:
        blocks[0] = torch.compile(blocks[0])
    rates = settings(model, wrapper(model))
    rates = {name.replace('_orig_mod.', ''): rate for name, rate in rates.items()}
    for name, rate in expected('backbone.').items():
        assert rates[name] == pytest.approx(rate), name


def test_other_options_multiply():
    model = Classifier()
    optim_wrapper = wrapper(
        model,
        norm_decay_mult=0.0,
        bias_decay_mult=0.5,
        bias_lr_mult=2.0,
        custom_keys={'head': dict(lr_mult=10.0), 'patch_embed.proj': dict(lr_mult=3.0)},
    )
    rates = settings(model, optim_wrapper)
    decays = settings(model, optim_wrapper, 'weight_decay')
    assert rates['head.weight'] == pytest.approx(10 * LR)
    assert rates['backbone.stages.0.patch_embed.projection.weight'] == pytest.approx(
        3 * LR * RATE**LAST
    )
    qkv = 'backbone.stages.2.blocks.1.attn.qkv'
    assert rates[f'{qkv}.bias'] == pytest.approx(2 * LR * RATE ** (LAST - 4))
    assert rates[f'{qkv}.weight'] == pytest.approx(LR * RATE ** (LAST - 4))
    assert decays['backbone.norm3.weight'] == 0
    assert decays[f'{qkv}.bias'] == pytest.approx(DECAY / 2)
    assert decays[f'{qkv}.weight'] == DECAY


def test_frozen_parameters_are_left_out_and_shared_ones_in_once():
    model = Classifier(frozen_stages=1)
    model.tied = model.backbone.stages[3]['blocks'][0].norm1  # its second name is outside
    rates = settings(model, wrapper(model, bypass_duplicate=True))
    assert set(rates) == {name for name, param in model.named_parameters() if param.requires_grad}
    assert rates['backbone.stages.3.blocks.0.norm1.weight'] == pytest.approx(LR * RATE)


def test_schedulers_scale_every_rate():
    model = Classifier()
    optim_wrapper = wrapper(model)
    before = settings(model, optim_wrapper)
    scheduler = LinearLR(optim_wrapper, start_factor=0.1, begin=0, end=3)
    optim_wrapper.step()
    for factor in (0.1, 0.55, 1.0):
        now = settings(model, optim_wrapper)
        for name in before:
            assert now[name] == pytest.approx(factor * before[name])
        scheduler.step()


def test_a_rate_of_one_is_the_default_constructor():
    model = Classifier()
    assert set(settings(model, wrapper(model, rate=1)).values()) == {LR}


@pytest.mark.parametrize('rate', [None, 0, -0.5, 1.5, '0.8', float('nan')])
def test_a_bad_rate_is_quoted(rate):
    with pytest.raises(ValueError, match=rf'layer_decay_rate in \(0, 1\], got {rate!r}'):
        wrapper(Classifier(), rate)


def test_no_paramwise_cfg_is_an_error():
    with pytest.raises(ValueError, match='must have a layer_decay_rate'):
        LayerDecayOptimWrapperConstructor(dict(optimizer=dict(type='SGD', lr=1.0)))


def test_an_optimizer_without_lr_is_quoted():
    with pytest.raises(ValueError, match="scales the lr .* got none: .*'AdamW'"):
        wrapper(Classifier(), optimizer=dict(type='AdamW'))


@pytest.mark.parametrize('name', ['Conv2d', 'Sequential'])
def test_a_backbone_without_depths_is_named(name):
    model = nn.Sequential(nn.Linear(2, 2))
    if name == 'Conv2d':
        model.backbone = nn.Conv2d(3, 3, 1)
    with pytest.raises(TypeError, match=rf'{name} has no get_layer_depth'):
        wrapper(model)


def test_training_moves_later_layers_more():
    model = Classifier()
    before = {name: param.clone() for name, param in model.named_parameters()}
    optim_wrapper = wrapper(model, optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.0))
    model(torch.randn(2, 3, 32, 32)).square().mean().backward()
    optim_wrapper.step()
    moved = {n: (param - before[n]).abs().max().item() for n, param in model.named_parameters()}
    ratio = moved['backbone.stages.0.patch_embed.projection.weight'] / moved['head.weight']
    # The first step of Adam is as long as the learning rate, whatever the gradient.
    assert ratio == pytest.approx(RATE**LAST, rel=1e-2)
