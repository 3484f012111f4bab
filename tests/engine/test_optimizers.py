"""Learning rates by depth, and which parameters weight decay acts on."""

import copy
from unittest import mock

import pytest
import torch
import torch.nn as nn
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from small_backbone import ARCH, build
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from mmlaplace.engine.no_decay import NoDecayOptimWrapperConstructor

RATE, LR, DECAY = 0.5, 0.1, 0.02
LAST = sum(ARCH['depths']) + 1  # the stem and the blocks are before it
SGD = dict(type='SGD', lr=LR, weight_decay=DECAY)
NORMS = (nn.LayerNorm, nn.modules.batchnorm._NormBase, nn.GroupNorm)


class Classifier(nn.Module):
    def __init__(self, **kwargs):
        super().__init__()
        self.backbone = build(out_indices=(3,), **kwargs)
        self.head = nn.Linear(32, 3)


def settings(model, key='lr', layers=True, optimizer=SGD, **paramwise_cfg) -> dict:
    """The setting of each parameter by its name; each must be there once."""
    if layers:
        paramwise_cfg = dict(dict(layer_decay_rate=RATE), **paramwise_cfg)
    config = dict(
        type='OptimWrapper',
        optimizer=optimizer,
        paramwise_cfg=paramwise_cfg,
        constructor=f'{"LayerDecay" if layers else "NoDecay"}OptimWrapperConstructor',
    )
    groups = build_optim_wrapper(model, config).optimizer.param_groups
    names = {param: name for name, param in model.named_parameters()}
    found = [(names[param], group[key]) for group in groups for param in group['params']]
    assert len(found) == len(dict(found))
    return dict(found)


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
    found = {name: rates[prefix + name] for name in DEPTHS}
    assert found == pytest.approx({name: LR * RATE**depth for name, depth in DEPTHS.items()})


@pytest.mark.parametrize('scope', ['mmengine', 'mmpretrain', 'mmdet', 'mmseg'])
def test_rates_rise_from_stem_to_head_in_every_toolbox(scope):
    if scope != 'mmengine':
        pytest.importorskip(f'{scope}.utils').register_all_modules(init_default_scope=False)
    model = Classifier()
    with DefaultScope.overwrite_default_scope(scope):
        rates = settings(model)
    assert set(rates) == {name for name, _ in model.named_parameters()}
    assert_by_depth(rates)
    assert rates['head.weight'] == rates['head.bias'] == LR


def test_parts_of_models_and_wrapped_ones_have_the_rates_of_their_layers():
    model = Classifier()
    assert_by_depth(settings(model.backbone), '')
    blocks = model.backbone.stages[1]['blocks']
    blocks[0] = torch.compile(blocks[0])
    rates = settings(nn.DataParallel(torch.compile(model)))  # as in DDP, the model is .module
    plain_rates = {name.replace('_orig_mod.', ''): rate for name, rate in rates.items()}
    assert_by_depth(plain_rates, 'module.backbone.')
    # The norm of a stage belongs to its last block.
    norms = 'stages.2.norm.weight', 'stages.2.blocks.1.norm1.weight'
    assert len(set(map(build(type='PVTv2', stage_norms=True).get_layer_depth, norms))) == 1


def test_wrapped_stages_have_the_rates_of_their_layers():
    model = Classifier()
    model.backbone.stages[2] = checkpoint_wrapper(model.backbone.stages[2])
    model.backbone.stages[0]['blocks'][0] = checkpoint_wrapper(
        model.backbone.stages[0]['blocks'][0]
    )
    wrapped = {n.replace('_checkpoint_wrapped_module.', ''): r for n, r in settings(model).items()}
    assert wrapped == settings(Classifier())


@pytest.mark.parametrize('layers', [False, True])
def test_frozen_parameters_have_the_settings_that_they_would_have_thawed(layers):
    model, free = Classifier(frozen_stages=2), Classifier()
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert len(frozen) > 20
    for key in ('lr', 'weight_decay'):
        options = dict(custom_keys={'blocks.0.norm': dict(lr_mult=3.0)})
        found, wanted = (settings(m, key, layers, **options) for m in (model, free))
        assert found == wanted
    assert frozen == [name for name, p in model.named_parameters() if not p.requires_grad]


def test_an_error_of_a_constructor_leaves_frozen_what_is_frozen():
    model = nn.ModuleDict(dict(backbone=nn.Conv2d(3, 3, 1).requires_grad_(False)))
    model['whole'] = nn.Module()
    model['whole'].table = nn.Parameter(torch.arange(3), requires_grad=False)  # takes no gradient
    with pytest.raises(TypeError, match='no get_layer_depth'):
        settings(model)
    assert not any(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize('constructor', ['NoDecay', 'LayerDecay'])
def test_stages_that_are_thawed_during_a_run_train(constructor):
    model = Classifier(frozen_stages=2).train()
    paramwise = dict(layer_decay_rate=RATE) if constructor == 'LayerDecay' else {}
    wrapper = build_optim_wrapper(
        model,
        dict(
            type='OptimWrapper',
            optimizer=dict(type='AdamW', lr=LR, weight_decay=DECAY),
            constructor=f'{constructor}OptimWrapperConstructor',
            paramwise_cfg=paramwise,
        ),
    )

    def trained() -> set:
        before = copy.deepcopy(dict(model.named_parameters()))
        (maps,) = model.backbone(torch.randn(2, 3, 64, 64))
        wrapper.update_params(model.head(maps.mean((2, 3))).square().sum())
        changed = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
        return {name.split('.')[2] for name in changed if name.startswith('backbone.stages.')}

    assert trained() == {'2', '3'}
    model.backbone.frozen_stages = -1  # as mmdet's documentation does
    model.requires_grad_(True).train()
    assert trained() == {'0', '1', '2', '3'}


def test_other_options_multiply():
    model = Classifier()
    options = dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.5,
        bias_lr_mult=2.0,
        custom_keys={'head': dict(lr_mult=10.0), 'patch_embed.proj': dict(lr_mult=3.0)},
    )
    rates, decays = (settings(model, key, **options) for key in ('lr', 'weight_decay'))
    assert set(settings(model, layer_decay_rate=1).values()) == {LR}
    for name, times, share in (
        ('head.weight', 10, 1),
        ('backbone.norm3.weight', 1, 0),
        ('backbone.stages.2.blocks.1.attn.qkv.bias', 2 * RATE ** (LAST - 4), 0.5),
        ('backbone.stages.0.patch_embed.projection.weight', 3 * RATE**LAST, 1),
    ):
        assert rates[name] == pytest.approx(times * LR)
        assert decays[name] == pytest.approx(share * DECAY)


@pytest.mark.parametrize('rate', [None, 0, 1.5, '0.8', float('nan')])
def test_a_bad_rate_is_quoted_and_a_rate_needs_an_lr_and_depths(rate):
    with pytest.raises(ValueError, match=rf'layer_decay_rate in \(0, 1\], got {rate!r}'):
        settings(Classifier(), layer_decay_rate=rate)
    with pytest.raises(ValueError, match="got none: .*'AdamW'"):
        settings(Classifier(), optimizer=dict(type='AdamW'))
    with pytest.raises(TypeError, match='Conv2d has no get_layer_depth'):
        settings(nn.ModuleDict(dict(backbone=nn.Conv2d(3, 3, 1))))


def undecayed(model, **options) -> set:
    """Names of the parameters without decay; every parameter must be in one group."""
    decays = settings(model, 'weight_decay', layers=False, **options)
    assert set(decays) == {name for name, _ in model.named_parameters()}
    return {name for name, decay in decays.items() if decay == 0}


def plain(model) -> set:
    """Norms and biases."""
    norms = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters()}
    return {n for n, p in model.named_parameters() if id(p) in norms or n.endswith('.bias')}


EXACT = dict(type='KernelAttention', kernel='laplacian', normalization='whitened')


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
def test_the_decay_is_that_of_the_authors(name, attn_cfg, kept, decayed):
    arch = {k: v[:1] for k, v in ARCH.items()} if name == 'PolaFormerDeiT' else ARCH
    model = nn.Sequential()
    model.backbone = MODELS.build(dict(type=name, arch=arch, img_size=64, attn_cfg=attn_cfg))
    found = undecayed(model)
    assert {n.split('.')[-1] for n in found - plain(model)} == kept
    assert plain(model) <= found
    last = {n.split('.')[-1] for n, _ in model.named_parameters() if n not in found}
    assert decayed <= last and 'weight' in last


def test_multipliers_of_a_user_come_first():
    model = MODELS.build(dict(type='LaplacianFormer', arch=ARCH))
    some = undecayed(model, bias_decay_mult=1.0)
    biases = {n for n in plain(model) if n.endswith('.bias')}
    assert some & biases == {n for n in biases if 'norm' in n}
    assert any(n.endswith('.gamma') for n in some)
    # A key that changes rates alone leaves the decay as it is.
    rates = dict(stages=dict(lr_mult=0.1))
    assert undecayed(model, custom_keys=rates) == undecayed(model)
    assert set(settings(model, layers=False, custom_keys=rates).values()) == {LR, 0.1 * LR}
    # An optimizer decays by its own default, too.
    for layers, kind in ((True, 'AdamW'), (False, torch.optim.AdamW)):
        decays = settings(model, 'weight_decay', layers, dict(type=kind, lr=LR))
        assert {name for name, decay in decays.items() if not decay} == undecayed(model)
        assert set(decays.values()) == {0.0, 0.01}
    without_decay = dict(type='SGD', lr=LR)
    assert undecayed(model, optimizer=without_decay) == {n for n, _ in model.named_parameters()}


MASK2FORMER = {  # as its config for Swin has them, of whose blocks it names the first alone
    'backbone': dict(lr_mult=0.1, decay_mult=1.0),
    'backbone.stages.0.blocks.0.norm': dict(lr_mult=0.1, decay_mult=0.0),
    'head': dict(lr_mult=1.0, decay_mult=0.5),
}


@pytest.mark.parametrize('layers', [False, True])
def test_a_key_for_a_whole_backbone_gives_norms_and_biases_no_decay(layers):
    model = Classifier()
    decays = settings(model, 'weight_decay', layers, custom_keys=MASK2FORMER)
    assert {name for name in decays if not decays[name]} == undecayed(model)
    assert decays['head.weight'] == DECAY / 2 and decays['head.bias'] == 0
    # Multipliers of kinds and keys act together.
    some = settings(model, 'weight_decay', layers, custom_keys=MASK2FORMER, bias_decay_mult=0.5)
    assert some['head.bias'] == DECAY / 4 and some['backbone.norm3.bias'] == 0


@pytest.mark.parametrize(
    ('key', 'decayed'),
    [
        ('norm', {'weight', 'bias'}),
        ('backbone.norm3', {'weight', 'bias'}),
        ('backbone.norm3.bias', {'bias'}),
        ('bias', {'bias'}),
        ('backbone', set()),
    ],
)
def test_a_key_that_names_a_norm_or_a_bias_comes_first(key, decayed):
    decays = settings(Classifier(), 'weight_decay', False, custom_keys={key: dict(decay_mult=1.0)})
    assert {kind for kind in ('weight', 'bias') if decays[f'backbone.norm3.{kind}']} == decayed


def test_root_mean_square_norms_do_not_decay():
    attention = dict(type='SANAAttention', embed_dims=16, num_heads=2, input_resolution=(4, 4))
    model = nn.ModuleList([MODELS.build(dict(attention, qk_norm=True))])
    if hasattr(nn, 'RMSNorm'):
        model.append(nn.RMSNorm(4))
    norms = {n for n, m in model.named_modules() if type(m).__name__ == 'RMSNorm'}
    assert len(norms) == 2 + hasattr(nn, 'RMSNorm')
    assert {f'{name}.weight' for name in norms} <= undecayed(model)


def test_the_log_has_the_decay_that_acts():
    model = nn.ModuleDict(dict(backbone=nn.Sequential(nn.Linear(2, 2))))
    with mock.patch('mmlaplace.engine.no_decay.print_log') as log:
        settings(model, layers=False, custom_keys=MASK2FORMER)
    lines = [call.args[0] for call in log.call_args_list]
    assert lines == ['paramwise_options -- backbone.0.bias:weight_decay=0.0']


def test_the_longest_of_several_custom_keys_counts():
    model = nn.ModuleDict(dict(backbone=nn.ModuleDict(dict(norm=nn.LayerNorm(2)))))
    keys = {'backbone': dict(decay_mult=1.0), 'backbone.norm': dict(decay_mult=0.5)}
    decays = settings(model, 'weight_decay', False, custom_keys=keys)
    assert set(decays.values()) == {0.5 * DECAY}  # a key for norms holds alone


def test_biases_of_the_offsets_of_deformable_convolutions_decay_as_in_mmengine():
    constructor = NoDecayOptimWrapperConstructor(dict(type='OptimWrapper', optimizer=SGD))
    groups = []
    constructor.add_params(groups, nn.Conv2d(1, 1, 1), is_dcn_module=True)
    assert [group.get('weight_decay', DECAY) for group in groups] == [DECAY, DECAY]
