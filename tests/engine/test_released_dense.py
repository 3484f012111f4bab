"""Released detectors and segmentors convert whole, and what does not fit is told."""

import gzip
import json
import re
from functools import cache

import pytest
import torch
from conftest import ROOT, run_script
from mmengine.runner.checkpoint import load_checkpoint

from mmlaplace import create_backbone, get_model
from mmlaplace.checkpoints import load_weights
from mmlaplace.checkpoints.dense import DENSE
from mmlaplace.commands.converters import convert
from mmlaplace.commands.dense_models import meta_model
from mmlaplace.model_zoo import read_models

pytest.importorskip('mmdet', reason='no mmdet: bash tools/setup_env.sh')
TOOL = ROOT / 'tools/model_converters/convert.py'
CONTENT = json.loads(gzip.decompress((ROOT / 'tests/data/released_dense.json.gz').read_bytes()))
# Tables of indices and rotations, which are computed here.
UNUSED = r'.*(relative_position_index|RoPE\.angle|rope\.rotations)'
RETINANET, MASK_RCNN = (f'{kind}_pvtv2-b0_fpn_1x_coco' for kind in ('retinanet', 'mask-rcnn'))
CLASSES = [f'thing {i}' for i in range(80)]


@cache
def released(name, device='meta'):
    """The tensors of a file by the authors' names, those of the heads by the toolboxes'."""
    backbone, heads = CONTENT['models'][name]
    shapes = {f'backbone.{key}': shape for key, shape in CONTENT['backbones'][backbone].items()}
    with torch.device(device):
        return {k: torch.randn(shape) for k, shape in {**shapes, **CONTENT['heads'][heads]}.items()}


@cache
def model_of(config):
    return get_model(config).eval()


@pytest.mark.sampled(8)
@pytest.mark.parametrize('name', DENSE)
def test_every_released_detector_and_segmentor_converts_whole(name):
    given = released(name)
    own, models = convert(given, None)
    assert name in models and convert(given, name)[1] == [name]
    said = {row[0]: row[1].split(' and ') for row in own.report}
    assert said.keys() == given.keys()
    unused = {key for key in given if re.fullmatch(UNUSED, key)}
    if name.startswith('retinanet_ravlt'):  # which does not take the first map
        unused |= {f'backbone.extra_norms.0.norm.{kind}' for kind in ('weight', 'bias')}
    assert {key for key, to in said.items() if to == ['dropped']} == unused
    assert {key for to in said.values() for key in to} - {'dropped'} == own.weights.keys()
    model = meta_model(DENSE[name].config or name).state_dict()
    assert {k: v.shape for k, v in model.items()} == {k: v.shape for k, v in own.weights.items()}


def test_each_has_the_config_of_its_name_and_a_published_score():
    published = {model.name: model.metadata['Published'] for model in read_models()}
    assert DENSE.keys() == CONTENT['models'].keys()
    for name, model in DENSE.items():
        assert model.scores or published[name], name
        assert bool(model.scores) == bool(model.config)


@pytest.fixture(scope='module')
def retinanet(tmp_path_factory):
    """A file as mmcv 1 writes it, of PVTv2-B0's RetinaNet."""
    path = tmp_path_factory.mktemp('dense') / 'retinanet.pth'
    meta = dict(mmdet_version='2.13.0', CLASSES=tuple(CLASSES), config='model = dict()', epoch=12)
    state = {f'module.{name}': value for name, value in released(RETINANET, 'cpu').items()}
    state['module.ema_backbone_norm1_weight'] = torch.ones(32)  # as mmdet 2's EMAHook leaves it
    torch.save(dict(meta=meta, state_dict=state, optimizer={}), path)
    return path


def filled(model):
    """Whether a RetinaNet has the weights of the file."""
    given = released(RETINANET, 'cpu')
    own = model.backbone.stages[1]['blocks'][0].ffn.layers[0].weight
    return torch.equal(own, given['backbone.block2.0.mlp.fc1.weight']) and torch.equal(
        model.bbox_head.retina_cls.weight, given['bbox_head.retina_cls.weight']
    )


def test_the_tool_writes_a_file_with_the_classes(retinanet, tmp_path):
    out = tmp_path / 'own.pth'
    result = run_script(TOOL, retinanet, '--out', out)
    assert result.returncode == 0, result.stderr
    assert 'python tools/test.py ' in result.stdout and f'{RETINANET}.py' in result.stdout
    meta = torch.load(out)['meta']
    assert meta['model'] == RETINANET and meta['dataset_meta']['classes'] == CLASSES
    model = get_model(RETINANET)
    load_weights(model, out, min_matched=1)
    assert filled(model)
    assert 'names are those of mmlaplace already' in run_script(TOOL, out).stderr


@pytest.mark.parametrize('load', [load_weights, load_checkpoint])
def test_the_authors_file_loads_by_each_loader(load, retinanet, monkeypatch):
    here = DENSE[RETINANET]._replace(weights=str(retinanet), page='')
    monkeypatch.setitem(DENSE, RETINANET, here)
    for source in (str(retinanet), f'mmlaplace://{RETINANET}'):
        model = get_model(RETINANET)
        load(model, source)
        assert filled(model)
    backbone = create_backbone('pvtv2-b0', stage_norms=True)
    load_weights(backbone, retinanet)
    given = released(RETINANET, 'cpu')['backbone.norm4.bias']
    assert torch.equal(backbone.stages[3]['norm'].bias, given)
    assert filled(get_model(RETINANET, pretrained=True))
