"""Models by name."""

import subprocess
import sys

import pytest
import torch
from conftest import ROOT

import mmlaplace
from mmlaplace.model_zoo import files_root, get_config, read_models


def test_names_are_those_of_the_configs():
    names = mmlaplace.list_models()
    assert names == sorted(names)
    assert {'laplacianformer-tiny_8xb128_in1k', 'softpp-tiny_8xb128_in1k'} < set(names)
    assert len(set(names)) == len(names) == len(read_models())
    for model in read_models():
        assert model.config.is_file()
        assert model.config.stem == model.name


def test_lists_are_filtered():
    assert mmlaplace.list_models('softpp-tiny', task='classification') == [
        'softpp-tiny_8xb128_in1k'
    ]
    assert mmlaplace.list_models('retinanet_*tiny*', family='laplacianformer') == [
        'retinanet_laplacianformer-tiny_fpn_1x_coco'
    ]
    assert mmlaplace.list_models('no-such') == []
    detectors = mmlaplace.list_models(task='detection', family='polaformer')
    assert detectors and all('coco' in name for name in detectors)
    with pytest.raises(ValueError, match=r"task must be one of .*'detection'.*, got 'tracking'"):
        mmlaplace.list_models(task='tracking')
    with pytest.raises(ValueError, match=r"family must be one of .*'soft'.*, got 'resnet'"):
        mmlaplace.list_models(family='resnet')


def test_lists_are_filtered_blind_to_case_and_by_several_patterns():
    tiny = mmlaplace.list_models('*Tiny*')
    assert tiny == mmlaplace.list_models('TINY') == mmlaplace.list_models('*tiny*') != []
    soft, pola = (mmlaplace.list_models(p) for p in ('SOFTpp-*_in1k', 'polaformer-p[!x]t-*_in1k'))
    assert len(soft) == 12 and 'polaformer-pvt-tiny_8xb128_in1k' in pola
    assert mmlaplace.list_models(['softpp-*_in1k', 'PolaFormer-PVT-*_in1k']) == sorted(soft + pola)
    assert mmlaplace.list_models([]) == []
    small = mmlaplace.list_models('Tiny', exclude_filters=('retinaNet*', '*_ade20k-*'))
    assert small == [n for n in tiny if not n.startswith('retinanet') and '_ade20k-' not in n]
    assert mmlaplace.list_models(exclude_filters='*') == []


def test_pretrained_true_says_that_there_are_no_weights_and_names_the_way():
    name = 'polaformer-pvtv2-b0_8xb128_in1k'
    with pytest.raises(ValueError, match=f"no published weights of '{name}' yet.*path or address"):
        mmlaplace.get_model(name, pretrained=True, backbone_only=True)
    for pretrained in (None, False):
        mmlaplace.get_model(name, pretrained=pretrained, backbone_only=True)


def test_unknown_name_is_quoted_with_near_ones():
    with pytest.raises(ValueError, match="'softpp-tiny'; near are.*'softpp-tiny_8xb128_in1k'"):
        get_config('softpp-tiny')


def test_backbone_alone_takes_options_and_weights(tmp_path):
    name = 'polaformer-pvtv2-b0_8xb128_in1k'
    options = dict(backbone_only=True, out_indices=(0, 3), drop_path_rate=0.0)
    backbone = mmlaplace.get_model(name, **options)
    assert [tuple(m.shape) for m in backbone(torch.zeros(1, 3, 64, 64))] == [
        (1, 32, 16, 16),
        (1, 256, 2, 2),
    ]
    weights = {f'backbone.{k}': torch.randn_like(v) for k, v in backbone.state_dict().items()}
    torch.save(dict(state_dict=weights), tmp_path / 'weights.pth')
    loaded = mmlaplace.get_model(name, pretrained=str(tmp_path / 'weights.pth'), **options)
    assert all(torch.equal(v, weights[f'backbone.{k}']) for k, v in loaded.state_dict().items())
    loaded = mmlaplace.get_model(name, pretrained=tmp_path / 'weights.pth', **options)
    assert all(torch.equal(v, weights[f'backbone.{k}']) for k, v in loaded.state_dict().items())
    with pytest.raises(ValueError, match='cannot be read as a checkpoint'):
        mmlaplace.get_model(name, pretrained=str(ROOT / 'model-index.yml'), **options)


@pytest.mark.parametrize(
    ('name', 'toolbox', 'kind'),
    [
        ('softpp-tiny_8xb128_in1k', 'mmpretrain', 'ImageClassifier'),
        ('retinanet_laplacianformer-tiny_fpn_1x_coco', 'mmdet', 'RetinaNet'),
        ('laplacianformer-tiny_fpn_8xb4-40k_ade20k-512x512', 'mmseg', 'EncoderDecoder'),
    ],
)
def test_whole_models_come_from_their_toolbox(name, toolbox, kind):
    pytest.importorskip(toolbox)
    model = mmlaplace.get_model(name, drop_path_rate=0.0)
    assert type(model).__name__ == kind
    assert type(model).__module__.startswith(f'{toolbox}.')
    assert model.backbone.stages[-1]['blocks'][-1].drop_path.drop_prob == 0


@pytest.mark.slow
def test_missing_toolbox_is_named():
    code = (
        "import sys; sys.modules['mmseg'] = None\n"
        'import mmlaplace\n'
        "mmlaplace.get_model('laplacianformer-tiny_fpn_8xb4-40k_ade20k-512x512')"
    )
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.returncode != 0
    assert 'this needs mmseg, which is not installed; bash tools/setup_env.sh' in result.stderr
    assert 'backbone_only=True' in result.stderr


def test_files_are_found_or_named(monkeypatch, tmp_path):
    assert (files_root() / 'configs').is_dir()
    monkeypatch.setattr('mmlaplace.model_zoo.__file__', str(tmp_path / 'mmlaplace/model_zoo.py'))
    with pytest.raises(FileNotFoundError, match='no .mim folder'):
        files_root()
