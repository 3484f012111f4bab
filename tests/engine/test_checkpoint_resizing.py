"""Weights that follow the resolution are resized, and other shapes refused, on every way."""

import re
from functools import partial

import pytest
import torch
import torch.nn as nn
from conftest import quiet_init
from mmengine.registry import MODELS
from mmengine.runner.checkpoint import load_checkpoint
from saved_weights import ARCH, build, save, without

from mmlaplace.engine import load_weights
from mmlaplace.models import BaseAttention


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


@pytest.fixture
def table_attention():
    MODELS.register_module(module=TableAttention)
    yield dict(type='TableAttention')
    MODELS.module_dict.pop('TableAttention')


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
    'load_state_dict': by(lambda m, f: m.load_state_dict(torch.load(f)['state_dict'])),
    'load_from': by(partial(load_checkpoint, logger='silent')),
    'Pretrained': by_init_cfg,
}


@pytest.mark.parametrize('load', LOADERS.values(), ids=LOADERS)
def test_what_follows_the_resolution_is_resized_on_every_way(tmp_path, table_attention, load):
    trained = build(attn_cfg=table_attention)
    file = save(tmp_path / 'a.pth', trained.state_dict(), 'backbone.')
    module = load(file, attn_cfg=table_attention, img_size=(64, 96))
    table, expected = (m.stages[0]['blocks'][0].attn.table for m in (module, trained))
    assert table.shape[-2:] == (16, 24)
    resized = nn.functional.interpolate(expected, (16, 24), mode='bilinear')
    torch.testing.assert_close(table, resized)
    torch.testing.assert_close(module.norm3.weight, trained.norm3.weight)


@pytest.mark.parametrize('load', LOADERS.values(), ids=LOADERS)
def test_what_has_another_shape_is_refused_as_the_way_of_loading_does(tmp_path, load):
    weights = dict(build().state_dict(), **{'norm2.bias': torch.ones(3)})
    file = save(tmp_path / 'b.pth', weights, 'backbone.')
    if load is LOADERS['load_from']:  # mmengine's own is lenient to all models alike
        assert not torch.equal(load(file).norm2.bias, weights['norm2.bias'])
    elif load is LOADERS['load_state_dict']:
        with pytest.raises(RuntimeError, match=r'norm2.bias: .*\[3\]\).*\[16\]\)'):
            load(file)
    else:
        with pytest.raises(ValueError, match=r'another arch: its .*norm2.bias has .*\(3,\), .*16,'):
            load(file)


def test_errors_are_collected_as_torch_does():
    module = build()
    weights = without(module.state_dict(), 'norm0.')
    weights.update({'norm1.bias': torch.zeros(5), 'norm2.bias': torch.zeros(6)})
    weights['stages.0.blocks.0.extra'] = weights['stages.0.blocks.1.norm1.bias'] = torch.zeros(8)
    sizes = [r'size mismatch for norm1.bias.*\[5\]', r'size mismatch for norm2.bias.*\[6\]']
    names = ['Missing.*norm0.weight', 'Unexpected.*blocks.0.extra', 'Unexpected.*blocks.1.norm1.b']
    with pytest.raises(RuntimeError) as error:
        module.load_state_dict(weights)
    assert all(re.search(quoted, str(error.value)) for quoted in (*names, *sizes))
    with pytest.raises(RuntimeError) as error:
        module.load_state_dict(weights, strict=False)
    assert all(re.search(quoted, str(error.value)) for quoted in sizes)
    assert not any(re.search(quoted, str(error.value)) for quoted in names)


def test_weights_that_a_user_filtered_load_into_another_arch():
    module = build(arch=dict(ARCH, depths=(2, 1, 1, 1), embed_dims=(8, 16, 32, 32)))
    own = module.state_dict()
    others = build().state_dict()
    weights = {k: v for k, v in others.items() if k in own and v.shape == own[k].shape}
    assert 0 < len(weights) < len(own)
    report = module.load_state_dict(weights, strict=False)
    assert set(report.missing_keys) == set(own) - set(weights)
    assert report.unexpected_keys == []
    assert all(torch.equal(module.state_dict()[k], weights[k]) for k in weights)


def test_resized_names_are_reported(tmp_path, table_attention):
    file = save(tmp_path / 'a.pth', build(attn_cfg=table_attention).state_dict())
    report = load_weights(build(attn_cfg=table_attention, img_size=64), file)
    assert report.resized == [n for n in report.matched if n.endswith('attn.table')]
    assert len(report.resized) == 5
