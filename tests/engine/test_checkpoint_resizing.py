"""Weights of another resolution, and those under old names, load on every way; others do not."""

import re
from functools import partial

import pytest
import torch
import torch.nn as nn
from conftest import quiet_init
from mmengine.registry import MODELS
from mmengine.runner.checkpoint import load_checkpoint
from saved_weights import ARCH, build, same, save, without

from mmlaplace.engine import load_weights
from mmlaplace.models import BaseAttention, QKVAttention
from mmlaplace.models.backbones.hosts import arch


class TableAttention(BaseAttention):
    """Adds a position table of the training resolution to its tokens."""

    def __init__(self, embed_dims, num_heads, input_resolution, init_cfg=None):
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        self.table = nn.Parameter(torch.randn(1, embed_dims, *input_resolution))
        self.scale = nn.Parameter(torch.ones(embed_dims))

    def resize_weight(self, name, value):
        if name != 'table':
            return value
        return nn.functional.interpolate(value, self.table.shape[-2:], mode='bilinear')

    def forward(self, x, hw_shape):
        return x * self.scale + self.table.flatten(2).transpose(1, 2)


class WordyAttention(QKVAttention):
    """Has parts of its own by the words that version 0.1 had."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.local, self.sample, self.reduction = (nn.Linear(2, 2) for _ in range(3))

    def mix(self, q, k, v, hw_shape):
        return v


@pytest.fixture(autouse=True)
def _registered(monkeypatch):
    for module in (TableAttention, WordyAttention):
        monkeypatch.setitem(MODELS.module_dict, module.__name__, module)


def by_init_cfg(file, **kwargs):
    module = build(init_cfg=dict(type='Pretrained', checkpoint=file), **kwargs)
    quiet_init(module)
    return module


def by(load):
    def build_and_load(file, **kwargs):
        module = nn.ModuleDict(dict(backbone=build(**kwargs)))
        load(module, file)
        return module['backbone']

    return build_and_load


def by_torch(module, file):
    module.load_state_dict(torch.load(file)['state_dict'])


LOADERS = {
    'load_weights': by(load_weights),
    'load_state_dict': by(by_torch),
    'load_from': by(partial(load_checkpoint, logger='silent')),
    'Pretrained': by_init_cfg,
}


@pytest.mark.parametrize('way', LOADERS)
def test_the_shape_decides_on_every_way(tmp_path, way):
    load, attn_cfg = LOADERS[way], dict(type='TableAttention')
    trained = build(attn_cfg=attn_cfg)
    file = save(tmp_path / 'a.pth', trained.state_dict(), 'backbone.')
    module = load(file, attn_cfg=attn_cfg, img_size=(64, 96))
    table, expected = (m.stages[0]['blocks'][0].attn.table for m in (module, trained))
    assert table.shape[-2:] == (16, 24)
    resized = nn.functional.interpolate(expected, (16, 24), mode='bilinear')
    torch.testing.assert_close(table, resized)
    torch.testing.assert_close(module.norm3.weight, trained.norm3.weight)
    # Other shapes are refused as the way of loading does it.
    weights = dict(build().state_dict(), **{'norm2.bias': torch.ones(3)})
    file = save(tmp_path / 'b.pth', weights, 'backbone.')
    if way == 'load_from':  # mmengine's own is lenient to all models alike
        assert not torch.equal(load(file).norm2.bias, weights['norm2.bias'])
        return
    error = (RuntimeError, r'norm2.bias: .*\[3\]\).*\[16\]\)')
    if way != 'load_state_dict':
        error = (ValueError, r'norm2.bias has .*\(3,\), .*16,')
    with pytest.raises(error[0], match=error[1]):
        load(file)


def test_resized_names_are_reported(tmp_path):
    attn_cfg = dict(type='TableAttention')
    file = save(tmp_path / 'a.pth', build(attn_cfg=attn_cfg).state_dict())
    report = load_weights(build(attn_cfg=attn_cfg, img_size=64), file)
    assert report.resized == [n for n in report.matched if n.endswith('attn.table')]
    assert len(report.resized) == 5


def test_errors_are_collected_as_torch_does():
    module = build()
    weights = without(module.state_dict(), 'norm0.')
    weights.update({'norm1.bias': torch.zeros(5), 'norm2.bias': torch.zeros(6)})
    weights['stages.0.blocks.0.extra'] = weights['stages.0.blocks.1.norm1.bias'] = torch.zeros(8)
    sizes = [r'size mismatch for norm1.bias.*\[5\]', r'size mismatch for norm2.bias.*\[6\]']
    names = ['Missing.*norm0.weight', 'Unexpected.*blocks.0.extra', 'Unexpected.*blocks.1.norm1.b']
    for strict in (True, False):
        with pytest.raises(RuntimeError) as error:
            module.load_state_dict(weights, strict=strict)
        quoted = [bool(re.search(pattern, str(error.value))) for pattern in (*sizes, *names)]
        assert quoted == [True] * 2 + [strict] * 3


def test_weights_that_a_user_filtered_load_into_another_arch():
    module = build(arch=dict(ARCH, depths=(2, 1, 1, 1), embed_dims=(8, 16, 32, 32)))
    own, others = module.state_dict(), build().state_dict()
    weights = {k: v for k, v in others.items() if k in own and v.shape == own[k].shape}
    assert 0 < len(weights) < len(own)
    report = module.load_state_dict(weights, strict=False)
    assert (set(report.missing_keys), report.unexpected_keys) == (set(own) - set(weights), [])
    assert all(torch.equal(module.state_dict()[k], weights[k]) for k in weights)


OLD = {'attn.qkv.': 'attn.query_gate.', 'attn.kv.': 'attn.key_value.', '.lepe.': '.local.',
       '.dwconv.': '.local.', '.sr.': '.reduction.'}  # fmt: skip


def old_name(name):
    """The name that 0.1 had for a tensor of a PolaFormerPVTv2."""
    for new, old in OLD.items():
        name = name.replace(new, old) if name.startswith('backbone.') else name
    return name


def detector(backbone, attn_cfg):
    """A model with a backbone of ours and a head of somebody else, with the same words."""
    small = arch((16, 32, 48, 64), (1, 1, 2, 1), (1, 2, 3, 4), (2, 2, 2, 2))
    backbone = MODELS.build(dict(type=backbone, arch=small, img_size=64, attn_cfg=attn_cfg))
    attn = nn.ModuleDict(dict(local=nn.Linear(2, 2), reduction=nn.Linear(2, 2)))
    return nn.ModuleDict(dict(backbone=backbone, head=nn.ModuleDict(dict(attn=attn))))


@pytest.mark.parametrize('wrapped', [False, True])
@pytest.mark.parametrize(
    ('backbone', 'attn_cfg'),
    [
        ('PolaFormerPVTv2', None),
        ('PolaFormerPVTv2', dict(sr_ratio=2)),
        ('PVT', dict(type='WordyAttention', lepe_kernel=3)),  # which may use the old words
    ],
)
def test_old_names_load_and_the_same_words_of_others_are_left_alone(
    backbone, attn_cfg, wrapped, tmp_path
):
    trained = detector(backbone, attn_cfg).state_dict()
    rename = old_name if backbone == 'PolaFormerPVTv2' else str
    old = {rename(name): value for name, value in trained.items()}
    assert (set(old) != set(trained)) == (backbone != 'PVT') and 'head.attn.local.weight' in old
    file = save(tmp_path / 'old.pth', old, 'module.' if wrapped else '')
    for load in (lambda model: model.load_state_dict(dict(old)), lambda m: load_weights(m, file)):
        model = detector(backbone, attn_cfg)
        load(model)
        assert same(model, trained)
