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

# Its matrix of gates has the resolution of training.
SIZED = dict(type='PolaAttention', gate_form='matrix', key_positions=False)


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


LOADERS = {
    'load_weights': by(load_weights),
    'load_state_dict': by(lambda m, file: m.load_state_dict(torch.load(file)['state_dict'])),
    'load_from': by(partial(load_checkpoint, logger='silent')),
    'Pretrained': by_init_cfg,
}


@pytest.mark.parametrize('way', LOADERS)
def test_the_shape_decides_on_every_way(tmp_path, way):
    trained = build(attn_cfg=SIZED)
    file = save(tmp_path / 'a.pth', trained.state_dict(), 'backbone.')
    module = LOADERS[way](file, attn_cfg=SIZED, img_size=(64, 96))
    gates, expected = (m.stages[0]['blocks'][0].attn.gate_matrix for m in (module, trained))
    resized = nn.functional.interpolate(expected, (16, 24), mode='bilinear')
    torch.testing.assert_close(gates, resized)
    torch.testing.assert_close(module.norm3.weight, trained.norm3.weight)


def test_resized_names_are_reported(tmp_path):
    file = save(tmp_path / 'a.pth', build(attn_cfg=SIZED).state_dict())
    report = load_weights(build(attn_cfg=SIZED, img_size=64), file)
    assert report.resized == [n for n in report.matched if n.endswith('attn.gate_matrix')]
    assert len(report.resized) == 5


def test_errors_are_collected_as_torch_does():
    module = build()
    weights = without(module.state_dict(), 'norm0.')
    weights.update({'norm1.bias': torch.zeros(5), 'stages.0.blocks.0.extra': torch.zeros(8)})
    patterns = r'size mismatch.*norm1.bias.*\[5\]', 'Missing.*norm0.weight', 'Unexpected.*extra'
    for strict in (True, False):
        with pytest.raises(RuntimeError) as error:
            module.load_state_dict(weights, strict=strict)
        assert [bool(re.search(p, str(error.value))) for p in patterns] == [True, strict, strict]


OLD = {'attn.qkv.': 'attn.query_gate.', 'attn.kv.': 'attn.key_value.', '.lepe.': '.local.',
       '.dwconv.': '.local.', '.sr.': '.reduction.'}  # fmt: skip


def detector():
    """A model with a backbone of ours and a head of somebody else, with the old words."""
    backbone = dict(type='PolaFormerPVTv2', arch=ARCH, img_size=64, attn_cfg=dict(sr_ratio=2))
    attn = nn.ModuleDict(dict(local=nn.Linear(2, 2), reduction=nn.Linear(2, 2)))
    head = nn.ModuleDict(dict(attn=attn))
    return nn.ModuleDict(dict(backbone=MODELS.build(backbone), head=head))


def test_names_of_version_0_1_load_and_the_same_words_of_others_are_left_alone(tmp_path):
    trained, old = detector().state_dict(), {}
    for name, value in trained.items():
        for now, before in OLD.items():
            name = name.replace(now, before) if name.startswith('backbone.') else name
        old[name] = value
    assert len(set(old) - set(trained)) > 20 and 'head.attn.local.weight' in old
    file = save(tmp_path / 'old.pth', old, 'module.')
    for load in (lambda model: model.load_state_dict(dict(old)), lambda m: load_weights(m, file)):
        model = detector()
        load(model)
        assert same(model, trained)
