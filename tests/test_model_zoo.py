"""Models by name."""

from pathlib import Path

import pytest
import torch
from conftest import ROOT

import mmlaplace
from mmlaplace.model_zoo import files_root, get_config, read_models

LAPLACIAN_RETINANET = 'retinanet_laplacianformer-tiny_fpn_1x_coco'
SEMANTIC_FPN = 'laplacianformer-tiny_fpn_8xb4-40k_ade20k-512x512'
B0 = 'polaformer-pvtv2-b0_8xb128_in1k'


def test_names_are_those_of_the_configs():
    names = mmlaplace.list_models()
    assert len(names) == len(set(names)) and set(names) == {model.name for model in read_models()}
    assert all(m.config.is_file() and m.config.stem == m.name for m in read_models())


def test_lists_are_filtered_blind_to_case_and_by_several_patterns():
    retinanets = mmlaplace.list_models('retinanet_*tiny*', family='laplacianformer')
    assert retinanets == [LAPLACIAN_RETINANET]
    assert all('coco' in name for name in mmlaplace.list_models(task='detection'))
    for options in (dict(task='tracking'), dict(family='resnet')):
        ((name, value),) = options.items()
        with pytest.raises(ValueError, match=f"{name} must be one of .*got '{value}'"):
            mmlaplace.list_models(**options)
    tiny = mmlaplace.list_models('*Tiny*')
    assert tiny == mmlaplace.list_models('TINY') == mmlaplace.list_models('*tiny*') != []
    soft, pola = (mmlaplace.list_models(p) for p in ('SOFTpp-*_in1k', 'polaformer-p[!x]t-*_in1k'))
    assert len(soft) == 12 and 'polaformer-pvt-tiny_8xb128_in1k' in pola
    assert mmlaplace.list_models(['softpp-*_in1k', 'PolaFormer-PVT-*_in1k']) == sorted(soft + pola)
    assert mmlaplace.list_models([]) == []
    small = mmlaplace.list_models('Tiny', exclude_filters=('retinaNet*', '*_ade20k-*'))
    assert small == [n for n in tiny if not n.startswith('retinanet') and '_ade20k-' not in n]
    assert mmlaplace.list_models(exclude_filters='*') == []


def test_names_and_weights_that_there_are_not_are_refused():
    with pytest.raises(ValueError, match="'softpp-tiny'; similar .*'softpp-tiny_8xb128_in1k'"):
        get_config('softpp-tiny')
    with pytest.raises(ValueError, match=f"no published weights of '{B0}' yet"):
        mmlaplace.get_model(B0, pretrained=True, backbone_only=True)
    with pytest.raises(ValueError, match='cannot be read as a checkpoint'):
        index = str(ROOT / 'model-index.yml')
        mmlaplace.get_model(B0, pretrained=index, backbone_only=True)


@pytest.mark.parametrize('kind', [str, Path])
def test_backbone_alone_takes_options_and_weights(kind, tmp_path):
    options = dict(backbone_only=True, out_indices=(0, 3), drop_path_rate=0.0)
    backbone = mmlaplace.get_model(B0, pretrained=False, **options)
    maps = backbone(torch.zeros(1, 3, 64, 64))
    assert [tuple(m.shape) for m in maps] == [(1, 32, 16, 16), (1, 256, 2, 2)]
    weights = {f'backbone.{k}': torch.randn_like(v) for k, v in backbone.state_dict().items()}
    torch.save(dict(state_dict=weights), tmp_path / 'weights.pth')
    loaded = mmlaplace.get_model(B0, pretrained=kind(tmp_path / 'weights.pth'), **options)
    assert all(torch.equal(v, weights[f'backbone.{k}']) for k, v in loaded.state_dict().items())


@pytest.mark.parametrize(
    ('name', 'toolbox', 'kind'),
    [
        ('softpp-tiny_8xb128_in1k', 'mmpretrain', 'ImageClassifier'),
        (LAPLACIAN_RETINANET, 'mmdet', 'RetinaNet'),
        (SEMANTIC_FPN, 'mmseg', 'EncoderDecoder'),
    ],
)
def test_whole_models_come_from_their_toolbox(name, toolbox, kind):
    pytest.importorskip(toolbox)
    model = mmlaplace.get_model(name, drop_path_rate=0.0)
    assert type(model).__name__ == kind
    assert type(model).__module__.startswith(f'{toolbox}.')
    assert model.backbone.stages[-1]['blocks'][-1].drop_path.drop_prob == 0


def test_files_are_found_or_named(monkeypatch, tmp_path):
    assert (files_root() / 'configs').is_dir()
    monkeypatch.setattr('mmlaplace.model_zoo.__file__', str(tmp_path / 'mmlaplace/model_zoo.py'))
    with pytest.raises(FileNotFoundError, match='no .mim folder'):
        files_root()
