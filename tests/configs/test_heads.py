"""Each head of the toolboxes takes the maps of a backbone that its config names in one line."""

import pytest
import torch
from conftest import ROOT
from mmengine.config import Config

from mmlaplace.checkpoints.released import released_place
from mmlaplace.commands.random_images import train_and_predict
from mmlaplace.deployment.deployable import NotDeployableError, deployable
from mmlaplace.engine.first_checks import check_maps
from mmlaplace.model_zoo import build_model
from mmlaplace.models import PyramidBackbone

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


@pytest.mark.sampled(8, 8)
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


PLAIN_HEADS = sorted((ROOT / 'configs/heads/plain').glob('*.py'))
PLAIN_VITS = ('dinov2-small', 'dinov3-small', 'clip-base', 'siglip2-base', 'xcit-s12-p16')


def test_each_config_of_a_plain_vit_is_on_the_page():
    page = (ROOT / 'docs/plain_vits.md').read_text()
    names = [path.name for path in PLAIN_HEADS]
    assert (
        names and [name for name in names if f'(../configs/heads/plain/{name})' not in page] == []
    )


@pytest.mark.parametrize('path', [*HEADS, *PLAIN_HEADS], ids=lambda path: path.stem)
def test_the_rate_of_a_head_falls_to_a_tenth(path, monkeypatch):
    cfg = load(path, 'dinov2-small' if path in PLAIN_HEADS else 'pvtv2-b2', monkeypatch)
    given = cfg.param_scheduler
    last = given if isinstance(given, dict) else given[-1]
    if last.type == 'MultiStepLR':
        assert last.get('gamma', 0.1) <= 0.1 and min(last.milestones) < last.end
    else:
        assert last.get('eta_min', 0) <= cfg.optim_wrapper.optimizer.lr / 10


@pytest.mark.sampled(6, 6)
@pytest.mark.parametrize('backbone', PLAIN_VITS)
@pytest.mark.parametrize('path', PLAIN_HEADS, ids=lambda path: path.stem)
def test_a_head_of_a_plain_vit_gets_the_maps_that_it_reads(path, backbone, monkeypatch):
    cfg = load(path, backbone, monkeypatch)
    check_maps(cfg)
    with torch.device('meta'):
        model = build_model(cfg)
    assert isinstance(model.backbone, PyramidBackbone) and model.backbone.num_stages == 1
    if 'linear' in path.stem:
        assert not any(parameter.requires_grad for parameter in model.backbone.parameters())


@pytest.mark.slow
@pytest.mark.sampled(2, 2)
@pytest.mark.parametrize('path', PLAIN_HEADS, ids=lambda path: path.stem)
def test_a_head_of_a_plain_vit_trains_for_a_step_and_predicts(path, monkeypatch):
    cfg = load(path, 'dinov3-small', monkeypatch)
    cfg.model.backbone.arch = dict(embed_dims=(384,), depths=(2,), num_heads=(6,), ffn_ratios=(1,))
    assert train_and_predict(cfg, (192, 256), 2)['loss'] > 0


# Mask2Former is a model of mmdet and a head of mmseg, and SegNeXt's head draws random numbers.
SAID = {
    'dino-4scale_8xb2-12e_coco': 'a DINO with a DINOHead .* take a RetinaHead',
    'mask2former_8xb2-lsj-50e_coco': 'a Mask2Former cannot be exported; only',
    'mask2former_8xb2-160k_ade20k-512x512': 'a Mask2FormerHead .* has its own predict',
    'segnext_1xb16-160k_ade20k-512x512': 'a LightHamHead .* draws random bases',
}


@pytest.mark.sampled(3, 3)
@pytest.mark.parametrize('path', HEADS, ids=lambda path: path.stem)
def test_the_page_says_which_heads_are_exported_and_the_others_are_refused(path, monkeypatch):
    page = (ROOT / 'docs/heads.md').read_text()
    (row,) = [line for line in page.splitlines() if f'({"../configs/heads/" + path.name})' in line]
    exported = row.split('|')[-3].strip()
    with torch.device('meta'):
        model = build_model(load(path, 'laplacianformer-micro', monkeypatch))
        if exported == 'yes':
            return deployable(model)
        with pytest.raises(
            NotDeployableError, match=SAID.get(path.stem, 'take a RetinaHead')
        ) as no:
            deployable(model)
    assert exported == 'no' and '\n' not in str(no.value)


@pytest.mark.sampled(7, 7)
@pytest.mark.parametrize('path', HEADS, ids=lambda path: path.stem)
@pytest.mark.slow
def test_a_head_trains_for_a_step_and_predicts(path, monkeypatch):
    cfg = load(path, 'laplacianformer-micro', monkeypatch)
    assert train_and_predict(cfg, (192, 256), 2)['loss'] > 0
