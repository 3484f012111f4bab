"""The configs do as the authors' code does, where that is not in the authors' configs."""

import pytest
import torch
from conftest import ROOT, toolbox_config, toolbox_model
from torch.nn.modules.batchnorm import _BatchNorm


def configs(pattern: str) -> list:
    paths = sorted(ROOT.glob(f'configs/{pattern}.py'))
    assert paths
    return [pytest.param(path, id=path.stem) for path in paths]


@pytest.mark.parametrize('path', configs('segmentation/xcit/*_upernet_*'))
def test_heads_of_xcits_segmentors_have_the_authors_width(path):
    # channels=384 in the authors' configs is a comment; their base says 512.
    assert toolbox_config(path).model.decode_head.channels == 512


@pytest.mark.parametrize('family', ['ravlt', 'mavit'])
def test_synchronised_batch_norms_train(family):
    # The authors' norm_eval freezes nn.BatchNorm2d, and their layers are nn.SyncBatchNorm.
    for case in configs(f'*/{family}/*[0-9]x_coco') + configs(f'segmentation/{family}/*'):
        cfg = toolbox_config(case.values[0])
        assert cfg.sync_bn == 'torch'
        assert not cfg.model.backbone.get('norm_eval')
    with torch.device('meta'):
        backbone = toolbox_model(cfg).train().backbone
    norms = [m for m in backbone.modules() if isinstance(m, _BatchNorm)]
    assert norms and all(norm.training for norm in norms)
