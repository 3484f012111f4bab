"""Which parameters weight decay acts on: as the authors have it, in configs and in the README."""

import re

import pytest
import torch.nn as nn
from conftest import CLASSIFICATION, ROOT, toolbox_config
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope

import mmlaplace.engine  # noqa: F401  (registers)

SMALL = dict(
    embed_dims=(16, 32, 48, 64), depths=(1,) * 4, num_heads=(1, 2, 3, 4), ffn_ratios=(2,) * 4
)
DEIT = {key: values[:1] for key, values in SMALL.items()}
SGD = dict(type='SGD', lr=0.1, weight_decay=0.02)
NORMS = (nn.LayerNorm, nn.modules.batchnorm._NormBase, nn.GroupNorm)


def undecayed(model, optim_wrapper_cfg) -> set:
    """Names of the parameters without decay; every parameter must be in one group."""
    optimizer = build_optim_wrapper(model, optim_wrapper_cfg).optimizer
    names = {id(param): name for name, param in model.named_parameters()}
    decays = {
        names[id(p)]: group['weight_decay']
        for group in optimizer.param_groups
        for p in group['params']
    }
    assert set(decays) == set(names.values())
    return {name for name, decay in decays.items() if decay == 0}


def plain(model) -> set:
    """Norms and biases."""
    norms = {id(p) for m in model.modules() if isinstance(m, NORMS) for p in m.parameters()}
    return {n for n, p in model.named_parameters() if id(p) in norms or n.endswith('.bias')}


@pytest.mark.parametrize('constructor', ['NoDecay', 'LayerDecay'])
@pytest.mark.parametrize(
    ('name', 'kept', 'decayed'),
    [
        # SOFT's code: all but 1-d tensors and cls_token; pos_embed, with its first entry, decays.
        ('SOFT', {'cls_token'}, {'map', 'cls_position'}),
        # PolaFormer's code on PVT: power and scale have more than one axis there and so decay.
        ('PolaFormerPVT', set(), {'map', 'key_positions', 'power', 'scale'}),
        ('PolaFormerPVTv2', set(), {'key_positions', 'power', 'scale'}),
        # Swin's code, which PolaFormer's trains by: no decay of bias tables.
        ('PolaFormerSwin', {'relative_bias'}, {'key_positions', 'power', 'scale'}),
        # DeiT's code: no decay of pos_embed.
        ('PolaFormerDeiT', {'map'}, {'key_positions', 'power', 'scale'}),
        ('LaplacianFormer', {'gamma'}, set()),
    ],
)
def test_what_the_authors_decay_decays(name, kept, decayed, constructor):
    arch = DEIT if name == 'PolaFormerDeiT' else SMALL
    model = nn.Sequential()
    model.backbone = MODELS.build(dict(type=name, arch=arch, img_size=64))
    model.head = nn.Linear(64, 3)
    paramwise_cfg = dict(layer_decay_rate=0.9) if constructor == 'LayerDecay' else None
    found = undecayed(
        model,
        dict(
            constructor=f'{constructor}OptimWrapperConstructor',
            optimizer=SGD,
            paramwise_cfg=paramwise_cfg,
        ),
    )
    assert {n.split('.')[-1] for n in found - plain(model)} == kept
    assert plain(model) <= found
    last = {n.split('.')[-1] for n, _ in model.named_parameters() if n not in found}
    assert decayed <= last and 'weight' in last


def test_the_gamma_of_exact_attention_decays_no_more_than_that_of_its_linear_form():
    attn_cfg = dict(type='KernelAttention', kernel='laplacian', normalization='whitened')
    model = MODELS.build(dict(type='LaplacianFormer', arch=SMALL, img_size=64, attn_cfg=attn_cfg))
    options = dict(constructor='NoDecayOptimWrapperConstructor', optimizer=SGD)
    found = undecayed(model, options) - plain(model)
    assert {n.split('.')[-1] for n in found} == {'gamma'}


def test_multipliers_of_a_user_come_first():
    model = MODELS.build(dict(type='LaplacianFormer', arch=SMALL))
    options = dict(constructor='NoDecayOptimWrapperConstructor', optimizer=SGD)
    some = undecayed(model, dict(options, paramwise_cfg=dict(bias_decay_mult=1.0)))
    biases = {n for n in plain(model) if n.endswith('.bias')}
    norm_parameters = {n for n in plain(model) if 'norm' in n}
    assert some & biases == biases & norm_parameters
    assert any(n.endswith('.gamma') for n in some)


def test_an_optimizer_without_decay_builds():
    model = MODELS.build(dict(type='LaplacianFormer', arch=SMALL))
    options = dict(constructor='NoDecayOptimWrapperConstructor', optimizer=dict(type='SGD', lr=0.1))
    assert undecayed(model, options) == {n for n, _ in model.named_parameters()}


def test_modules_of_others_name_theirs_as_timm_does():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(nn.Linear(2, 2).weight.detach())
            self.inner = nn.Linear(2, 2)

        def no_weight_decay(self):
            return {'table', 'inner.weight'}

    options = dict(constructor='NoDecayOptimWrapperConstructor', optimizer=SGD)
    model = nn.ModuleDict(dict(first=Model(), second=nn.Linear(2, 2)))
    expected = {'first.table', 'first.inner.weight', 'first.inner.bias', 'second.bias'}
    assert undecayed(model, options) == expected


PAGES = ('README.md', 'docs/tutorials/own_config.md')
SNIPPETS = re.findall(
    r'```python\n# (mm\w+): .*?\n(.*?)```',
    ''.join((ROOT / page).read_text() for page in PAGES),
    re.DOTALL,
)


def test_the_pages_have_a_snippet_for_each_toolbox():
    assert [toolbox for toolbox, _ in SNIPPETS] == ['mmpretrain', 'mmdet', 'mmseg']


@pytest.mark.parametrize(('toolbox', 'code'), SNIPPETS, ids=[name for name, _ in SNIPPETS])
def test_the_pages_snippets_decay_what_our_configs_decay(toolbox, code, tmp_path):
    (tmp_path / 'snippet.py').write_text(code)
    cfg = Config.fromfile(tmp_path / 'snippet.py')
    cfg.setdefault('default_scope', toolbox)
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
