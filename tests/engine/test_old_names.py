"""Weights under the names of version 0.1 load, and the same words of others are left alone."""

import pytest
import torch
import torch.nn as nn
from mmengine.registry import MODELS

from mmlaplace.engine import load_weights
from mmlaplace.models import QKVAttention
from mmlaplace.models.backbones.hosts import arch

OLD = {'attn.qkv.': 'attn.query_gate.', 'attn.kv.': 'attn.key_value.', '.lepe.': '.local.',
       '.dwconv.': '.local.', '.sr.': '.reduction.'}  # fmt: skip


def build(name, attn_cfg=None):
    small = arch((16, 32, 48, 64), (1, 1, 2, 1), (1, 2, 3, 4), (2, 2, 2, 2))
    return MODELS.build(dict(type=name, arch=small, img_size=64, attn_cfg=attn_cfg))


def old_names(state):
    """The state dict of a PolaFormerPVTv2 as 0.1 would have saved it."""
    renamed = {}
    for name, value in state.items():
        for new, old in OLD.items():
            name = name.replace(new, old)
        renamed[name] = value
    return renamed


class Detector(nn.Module):
    """A model with a backbone of ours and a head of somebody else, with the same words."""

    def __init__(self, **attn_cfg):
        super().__init__()
        self.backbone = build('PolaFormerPVTv2', attn_cfg=attn_cfg or None)
        self.head = nn.ModuleDict(
            dict(attn=nn.ModuleDict(dict(local=nn.Linear(2, 2), reduction=nn.Linear(2, 2))))
        )


@pytest.mark.parametrize('wrapped', [False, True])
@pytest.mark.parametrize('attn_cfg', [{}, dict(sr_ratio=2)])
def test_a_whole_model_loads_by_both_ways(attn_cfg, wrapped, tmp_path):
    trained = Detector(**attn_cfg)
    state = trained.state_dict()
    backbone = {k: v for k, v in state.items() if k.startswith('backbone.')}
    old = dict(state)
    for name in backbone:
        del old[name]
    old.update(old_names(backbone))
    assert set(old) != set(state) and 'head.attn.local.weight' in old
    by_torch, by_us = Detector(**attn_cfg), Detector(**attn_cfg)
    by_torch.load_state_dict(dict(old))
    prefix = 'module.' if wrapped else ''
    torch.save({f'{prefix}{name}': value for name, value in old.items()}, tmp_path / 'old.pth')
    load_weights(by_us, tmp_path / 'old.pth')
    for model in (by_torch, by_us):
        for name, value in model.state_dict().items():
            assert torch.equal(value, state[name]), name


def test_an_attention_may_use_the_old_words(tmp_path):
    @MODELS.register_module(force=True)
    class WordyAttention(QKVAttention):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.local, self.sample = nn.Linear(2, 2), nn.Linear(2, 2)
            self.reduction = nn.Linear(2, 2)

        def mix(self, q, k, v, hw_shape):
            return v

    try:
        trained, by_torch, by_us = (
            build('PVT', attn_cfg=dict(type='WordyAttention', lepe_kernel=3)) for _ in range(3)
        )
        by_torch.load_state_dict(trained.state_dict())
        torch.save(trained.state_dict(), tmp_path / 'own.pth')
        load_weights(by_us, tmp_path / 'own.pth')
        for model in (by_torch, by_us):
            for name, value in model.state_dict().items():
                assert torch.equal(value, trained.state_dict()[name]), name
    finally:
        MODELS.module_dict.pop('WordyAttention')
