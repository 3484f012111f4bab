"""Learning rates by depth, and which parameters weight decay acts on, in every toolbox."""

import re

import pytest
import torch
import torch.nn as nn
from conftest import CLASSIFICATION, ROOT, toolbox_config
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.optim import LinearLR, build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from saved_weights import ARCH, build

from mmlaplace.engine import LayerDecayOptimWrapperConstructor

RATE, LR, DECAY = 0.5, 0.1, 0.02
LAST = sum(ARCH['depths']) + 1  # the stem and the blocks are before it
SMALL = dict(
    embed_dims=(16, 32, 48, 64), depths=(1,) * 4, num_heads=(1, 2, 3, 4), ffn_ratios=(2,) * 4
)
SGD = dict(type='SGD', lr=0.1, weight_decay=DECAY)
NO_DECAY = dict(constructor='NoDecayOptimWrapperConstructor', optimizer=SGD)
NORMS = (nn.LayerNorm, nn.modules.batchnorm._NormBase, nn.GroupNorm)


class Classifier(BaseModel):
    def __init__(self, **kwargs):
        super().__init__()
        self.backbone = build(out_indices=(3,), **kwargs)
        self.head = nn.Linear(32, 3)

    def forward(self, inputs, mode='tensor'):
        return self.head(self.backbone(inputs)[0].mean((2, 3)))


def wrapper(model, rate=RATE, optimizer=None, **paramwise_cfg):
    if rate is not None:
        paramwise_cfg['layer_decay_rate'] = rate
    config = dict(
        type='OptimWrapper', constructor='LayerDecayOptimWrapperConstructor',
        optimizer=optimizer or dict(type='AdamW', lr=LR, weight_decay=DECAY),
        paramwise_cfg=paramwise_cfg,
    )  # fmt: skip
    return build_optim_wrapper(model, config)


def settings(model, optim_wrapper, key='lr') -> dict:
    """The setting of each parameter by its name; each must be there once."""
    names = {param: name for name, param in model.named_parameters()}
    groups = optim_wrapper.optimizer.param_groups
    found = [names[param] for group in groups for param in group['params']]
    assert len(found) == len(set(found))
    return {names[p]: group[key] for group in groups for p in group['params']}


# Of some parameters of the backbone, by hand: the power of the rate.
DEPTHS = {
    'stages.0.patch_embed.projection.weight': LAST,
    'stages.0.blocks.0.norm1.weight': LAST - 1,
    'stages.2.patch_embed.projection.weight': LAST - 3,
    'stages.2.blocks.1.norm1.bias': LAST - 4,
    'stages.3.blocks.0.norm1.bias': LAST - 5,
    'norm3.weight': 0,
}


def assert_by_depth(rates, prefix='backbone.'):
    for name, depth in DEPTHS.items():
        assert rates[prefix + name] == pytest.approx(LR * RATE**depth), name


@pytest.mark.parametrize('scope', ['mmengine', 'mmpretrain', 'mmdet', 'mmseg'])
def test_rates_rise_from_stem_to_head_in_every_toolbox(scope):
    pytest.importorskip(scope)
    if scope != 'mmengine':
        pytest.importorskip(f'{scope}.utils').register_all_modules(init_default_scope=False)
        registry = pytest.importorskip(f'{scope}.registry').OPTIM_WRAPPER_CONSTRUCTORS
        found = registry.get('LayerDecayOptimWrapperConstructor')
        assert found is LayerDecayOptimWrapperConstructor
    model = Classifier()
    with DefaultScope.overwrite_default_scope(scope):
        rates = settings(model, wrapper(model))
    assert set(rates) == {name for name, _ in model.named_parameters()}
    assert_by_depth(rates)
    assert rates['head.weight'] == rates['head.bias'] == LR


def compiled_backbone(classifier):
    classifier.backbone = torch.compile(classifier.backbone)  # which compiles when it is called
    return classifier


def compiled_block(classifier):
    blocks = classifier.backbone.stages[1]['blocks']
    blocks[0] = torch.compile(blocks[0])
    return classifier


@pytest.mark.parametrize(
    ('change', 'prefix'),
    [
        (lambda m: m.backbone, ''),
        (nn.DataParallel, 'module.backbone.'),  # as in DDP, the model is .module
        (torch.compile, 'backbone.'),
        (compiled_backbone, 'backbone.'),
        (compiled_block, 'backbone.'),
    ],
)
def test_parts_of_models_and_wrapped_ones_have_the_rates_of_their_layers(change, prefix):
    model = change(Classifier())
    rates = settings(model, wrapper(model))
    assert_by_depth({name.replace('_orig_mod.', ''): r for name, r in rates.items()}, prefix)


def test_other_options_multiply():
    model = Classifier()
    optim_wrapper = wrapper(
        model, norm_decay_mult=0.0, bias_decay_mult=0.5, bias_lr_mult=2.0,
        custom_keys={'head': dict(lr_mult=10.0), 'patch_embed.proj': dict(lr_mult=3.0)},
    )  # fmt: skip
    rates = settings(model, optim_wrapper)
    qkv, first = 'stages.2.blocks.1.attn.qkv', 'stages.0.patch_embed.projection.weight'
    assert rates['head.weight'] == pytest.approx(10 * LR)
    for name, times, depth in (
        (first, 3, LAST), (f'{qkv}.bias', 2, LAST - 4), (f'{qkv}.weight', 1, LAST - 4)
    ):  # fmt: skip
        assert rates[f'backbone.{name}'] == pytest.approx(times * LR * RATE**depth)
    decays = settings(model, optim_wrapper, 'weight_decay')
    for name, share in (('norm3.weight', 0), (f'{qkv}.bias', 0.5), (f'{qkv}.weight', 1)):
        assert decays[f'backbone.{name}'] == pytest.approx(share * DECAY)


def test_frozen_parameters_are_left_out_and_shared_ones_in_once():
    model = Classifier(frozen_stages=1)
    model.tied = model.backbone.stages[3]['blocks'][0].norm1  # its second name is outside
    rates = settings(model, wrapper(model, bypass_duplicate=True))
    assert set(rates) == {name for name, param in model.named_parameters() if param.requires_grad}
    assert rates['backbone.stages.3.blocks.0.norm1.weight'] == pytest.approx(LR * RATE)


def test_schedulers_scale_every_rate_and_later_layers_move_more():
    model = Classifier()
    before = {name: param.clone() for name, param in model.named_parameters()}
    optim_wrapper = wrapper(model, optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.0))
    rates = settings(model, optim_wrapper)
    model(torch.randn(2, 3, 32, 32)).square().mean().backward()
    optim_wrapper.step()
    moved = {n: (param - before[n]).abs().max().item() for n, param in model.named_parameters()}
    ratio = moved['backbone.stages.0.patch_embed.projection.weight'] / moved['head.weight']
    # The first step of Adam is as long as the learning rate, whatever the gradient.
    assert ratio == pytest.approx(RATE**LAST, rel=1e-2)
    scheduler = LinearLR(optim_wrapper, start_factor=0.1, begin=0, end=3)
    for factor in (0.1, 0.55, 1.0):
        now = settings(model, optim_wrapper)
        assert now == pytest.approx({name: factor * rate for name, rate in rates.items()})
        scheduler.step()


def test_a_rate_of_one_is_the_default_constructor():
    model = Classifier()
    assert set(settings(model, wrapper(model, rate=1)).values()) == {LR}


@pytest.mark.parametrize('rate', [None, 0, -0.5, 1.5, '0.8', float('nan')])
def test_a_bad_rate_is_quoted(rate):
    with pytest.raises(ValueError, match=rf'layer_decay_rate in \(0, 1\], got {rate!r}'):
        wrapper(Classifier(), rate)


def test_missing_settings_and_models_without_depths_are_named():
    with pytest.raises(ValueError, match='must have a layer_decay_rate'):
        LayerDecayOptimWrapperConstructor(dict(optimizer=dict(type='SGD', lr=1.0)))
    with pytest.raises(ValueError, match="got none: .*'AdamW'"):
        wrapper(Classifier(), optimizer=dict(type='AdamW'))
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(TypeError, match='Sequential has no get_layer_depth'):
        wrapper(model)
    model.backbone = nn.Conv2d(3, 3, 1)
    with pytest.raises(TypeError, match='Conv2d has no get_layer_depth'):
        wrapper(model)


def undecayed(model, optim_wrapper_cfg) -> set:
    """Names of the parameters without decay; every parameter must be in one group."""
    decays = settings(model, build_optim_wrapper(model, optim_wrapper_cfg), 'weight_decay')
    assert set(decays) == {name for name, _ in model.named_parameters()}
    return {name for name, decay in decays.items() if decay == 0}


def plain(model) -> set:
    """Norms and biases."""
    norms = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters()}
    return {n for n, p in model.named_parameters() if id(p) in norms or n.endswith('.bias')}


EXACT = dict(type='KernelAttention', kernel='laplacian', normalization='whitened')


@pytest.mark.parametrize('constructor', ['NoDecay', 'LayerDecay'])
@pytest.mark.parametrize(
    ('name', 'attn_cfg', 'kept', 'decayed'),
    [
        # SOFT's code: all but 1-d tensors and cls_token; pos_embed, with its first entry, decays.
        ('SOFT', {}, {'cls_token'}, {'map', 'cls_position'}),
        # PolaFormer's code on PVT: power and scale have more than one axis there and so decay.
        ('PolaFormerPVT', {}, set(), {'map', 'key_positions', 'power', 'scale'}),
        ('PolaFormerPVTv2', {}, set(), {'key_positions', 'power', 'scale'}),
        # Swin's code, which PolaFormer's trains by: no decay of bias tables.
        ('PolaFormerSwin', {}, {'relative_bias'}, {'key_positions', 'power', 'scale'}),
        # DeiT's code: no decay of pos_embed.
        ('PolaFormerDeiT', {}, {'map'}, {'key_positions', 'power', 'scale'}),
        ('LaplacianFormer', {}, {'gamma'}, set()),
        ('LaplacianFormer', EXACT, {'gamma'}, set()),
    ],
)
def test_the_decay_is_that_of_the_authors(name, attn_cfg, kept, decayed, constructor):
    arch = {k: v[:1] for k, v in SMALL.items()} if name == 'PolaFormerDeiT' else SMALL
    model = nn.Sequential()
    model.backbone = MODELS.build(dict(type=name, arch=arch, img_size=64, attn_cfg=attn_cfg))
    model.head = nn.Linear(64, 3)
    options = dict(constructor=f'{constructor}OptimWrapperConstructor', optimizer=SGD)
    if constructor == 'LayerDecay':
        options['paramwise_cfg'] = dict(layer_decay_rate=0.9)
    found = undecayed(model, options)
    assert {n.split('.')[-1] for n in found - plain(model)} == kept
    assert plain(model) <= found
    last = {n.split('.')[-1] for n, _ in model.named_parameters() if n not in found}
    assert decayed <= last and 'weight' in last


def test_multipliers_of_a_user_come_first():
    model = MODELS.build(dict(type='LaplacianFormer', arch=SMALL))
    some = undecayed(model, dict(NO_DECAY, paramwise_cfg=dict(bias_decay_mult=1.0)))
    biases = {n for n in plain(model) if n.endswith('.bias')}
    assert some & biases == {n for n in biases if 'norm' in n}
    assert any(n.endswith('.gamma') for n in some)
    without_decay = dict(NO_DECAY, optimizer=dict(type='SGD', lr=0.1))
    assert undecayed(model, without_decay) == {n for n, _ in model.named_parameters()}


def test_modules_of_others_name_theirs_as_timm_does():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(nn.Linear(2, 2).weight.detach())
            self.inner = nn.Linear(2, 2)

        def no_weight_decay(self):
            return {'table', 'inner.weight'}

    model = nn.ModuleDict(dict(first=Model(), second=nn.Linear(2, 2)))
    expected = {'first.table', 'first.inner.weight', 'first.inner.bias', 'second.bias'}
    assert undecayed(model, NO_DECAY) == expected


PAGES = ('README.md', 'docs/tutorials/own_config.md')
SNIPPETS = re.findall(
    r'```python\n# (mm\w+): .*?\n(.*?)```',
    ''.join((ROOT / page).read_text() for page in PAGES),
    re.DOTALL,
)


@pytest.mark.parametrize('toolbox', ['mmpretrain', 'mmdet', 'mmseg'])
def test_the_snippet_of_each_toolbox_decays_as_our_configs_do(toolbox, tmp_path):
    (code,) = (code for name, code in SNIPPETS if name == toolbox)
    (tmp_path / 'snippet.py').write_text(code)
    cfg = Config.fromfile(tmp_path / 'snippet.py')
    if toolbox == 'mmseg':  # SyncBN and the forks' mmseg:: bases aside, the snippet is complete
        cfg.model.decode_head.setdefault('norm_cfg', dict(type='BN'))
    cfg.model.backbone.arch = SMALL
    own = toolbox_config(CLASSIFICATION / 'laplacianformer/laplacianformer-tiny_8xb128_in1k.py')
    model = MODELS.build(cfg.model.backbone)
    with DefaultScope.overwrite_default_scope('mmpretrain'):
        expected = undecayed(model, own.optim_wrapper)
    with DefaultScope.overwrite_default_scope(toolbox):
        assert undecayed(model, cfg.optim_wrapper) == expected
    assert any(name.endswith('.gamma') for name in expected)
    assert cfg.optim_wrapper.optimizer.type == 'AdamW'
