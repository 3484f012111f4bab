"""``init_cfg=dict(type='Pretrained')``: comes last, and is logged."""

import pytest
import torch
from conftest import quiet_init
from mmengine.logging import MMLogger
from mmengine.model import BaseModule
from saved_weights import build, save, without


def test_pretrained_comes_last_and_once_and_is_logged(tmp_path):
    weights = {k: v + 1 for k, v in without(build().state_dict(), 'norm1.').items()}
    file = save(tmp_path / 'a.pth', weights, 'model.backbone.')
    constant = dict(type='Constant', layer=['LayerNorm', 'Linear'], val=7.0)
    module = build(init_cfg=[dict(type='Pretrained', checkpoint=file), constant])
    parent = BaseModule()
    parent.backbone = module
    log = tmp_path / 'run.log'
    MMLogger.get_instance(tmp_path.name, log_file=str(log), log_level='INFO')
    parent.init_weights()
    assert (module.norm1.weight == 7).all() and len(module.init_cfg) == 2
    assert all(torch.equal(module.state_dict()[k], weights[k]) for k in weights)
    text = log.read_text()
    assert 'norm2.weight - torch.Size([16]): \nLoaded from ' in text
    assert 'norm1.weight - torch.Size([16]): \nConstantInit' in text
    assert not hasattr(module, '_params_init_info')
    with torch.no_grad():
        module.norm2.weight.zero_()
    quiet_init(module)
    assert not module.norm2.weight.any()


@pytest.mark.parametrize(('init_cfg', 'message'), [
    (dict(type='Pretrained', checkpoint='a.pth', strict=True), r"unknown: \['strict'\]"),
    (dict(type='Pretrained', prefix='backbone.'), 'has a checkpoint and the keys.*min_matched'),
    ([dict(type='Pretrained', checkpoint='nowhere.pth')], 'nowhere.pth'),
])  # fmt: skip
def test_a_wrong_pretrained_is_quoted_each_time(init_cfg, message):
    module = build(init_cfg=init_cfg)
    for _ in range(2):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            quiet_init(module)
    assert not module.is_init
