"""Each head of the toolboxes takes the maps of a backbone that its config names in one line."""

import pytest
import torch
from conftest import ROOT
from mmengine.config import Config
from test_docs import code_blocks

from mmlaplace.checkpoints.released import released_place
from mmlaplace.commands.random_images import train_and_predict
from mmlaplace.deployment.deployable import NotDeployableError, deployable
from mmlaplace.model_zoo import build_model

HEADS = sorted((ROOT / 'configs/heads').glob('*.py'))
BACKBONES = ('ravlt-tiny', 'mlla-tiny', 'pvtv2-b2')


def load(path, backbone, monkeypatch) -> Config:
    pytest.importorskip('mmdet')
    pytest.importorskip('mmseg')
    monkeypatch.setenv('BACKBONE', backbone)
    return Config.fromfile(path)


def test_each_config_is_on_the_page():
    page = (ROOT / 'docs/heads.md').read_text()
    assert [path.name for path in HEADS if f'(../configs/heads/{path.name})' not in page] == []


@pytest.mark.sampled(5)
@pytest.mark.parametrize('backbone', BACKBONES)
@pytest.mark.parametrize('path', HEADS, ids=lambda path: path.stem)
def test_a_head_is_built_for_each_backbone(path, backbone, monkeypatch):
    cfg = load(path, backbone, monkeypatch)
    assert released_place(cfg.model.backbone.init_cfg.checkpoint).startswith('https://')
    with torch.device('meta'):
        model = build_model(cfg)
    assert type(model.backbone).__module__.startswith('mmlaplace.')
    preprocessor = cfg.model.data_preprocessor
    # RGB, as all of our weights want; some bases have a ResNet's of Caffe.
    assert preprocessor.mean == [123.675, 116.28, 103.53] and preprocessor.bgr_to_rgb


# Mask2Former is a model of mmdet and a head of mmseg, and SegNeXt's head draws random numbers.
SAID = {
    'dino-4scale_8xb2-12e_coco': 'a DINO with a DINOHead .* take a RetinaHead',
    'cascade-mask-rcnn_fpn_1x_coco': 'a CascadeRoIHead .* take a StandardRoIHead',
    'mask2former_8xb2-lsj-50e_coco': 'a Mask2Former cannot be exported; only',
    'mask2former_8xb2-160k_ade20k-512x512': 'a Mask2FormerHead .* has its own predict',
    'segnext_1xb16-160k_ade20k-512x512': 'a LightHamHead .* draws random bases',
}


@pytest.mark.parametrize('path', HEADS, ids=lambda path: path.stem)
def test_the_page_says_which_heads_are_exported_and_the_others_are_refused(path, monkeypatch):
    page = (ROOT / 'docs/heads.md').read_text()
    (row,) = [line for line in page.splitlines() if f'({"../configs/heads/" + path.name})' in line]
    with torch.device('meta'):
        model = build_model(load(path, 'laplacianformer-micro', monkeypatch))
        if row.endswith('| yes |'):
            return deployable(model)
        with pytest.raises(
            NotDeployableError, match=SAID.get(path.stem, 'take a RetinaHead')
        ) as no:
            deployable(model)
    assert row.endswith('| no |') and '\n' not in str(no.value)


@pytest.mark.sampled(7, 4)
@pytest.mark.parametrize('path', HEADS, ids=lambda path: path.stem)
@pytest.mark.slow
def test_a_head_trains_for_a_step_and_predicts(path, monkeypatch):
    cfg = load(path, 'laplacianformer-micro', monkeypatch)
    assert train_and_predict(cfg, (192, 256), 2)['loss'] > 0


@pytest.mark.parametrize('page', ['classify', 'detect', 'segment'])
def test_the_config_of_a_tutorial_starts_from_released_weights(page, tmp_path):
    pytest.importorskip('mmdet')
    pytest.importorskip('mmseg')
    config = tmp_path / 'mine.py'
    config.write_text(code_blocks(ROOT / f'docs/tutorials/{page}.md', 'python')[0])
    cfg = Config.fromfile(config)
    assert cfg.model.backbone.init_cfg.checkpoint == 'mmlaplace://ravlt-tiny'
    with torch.device('meta'):
        model = build_model(cfg)
    assert 2 in {getattr(module, 'num_classes', None) for module in model.modules()}
    roots = [cfg[f'{part}_dataloader'].dataset.data_root for part in ('train', 'val', 'test')]
    assert {root.rstrip('/') for root in roots} == {'data/mine'}
