"""Released detectors and segmentors convert whole, and what does not fit is told."""

import gzip
import importlib
import json
import re
from functools import cache
from unittest.mock import Mock

import pytest
import torch
from conftest import ROOT, run_script
from mmengine.runner.checkpoint import load_checkpoint
from saved_weights import assert_refused
from test_released_weights import authors, put, website  # noqa: F401, fixtures

from mmlaplace import create_backbone, get_model
from mmlaplace.checkpoints import load_weights
from mmlaplace.checkpoints.dense import DENSE
from mmlaplace.checkpoints.own_names import check_dense
from mmlaplace.commands.converters import convert
from mmlaplace.commands.dense_models import meta_model
from mmlaplace.engine import AtomicCheckpointHook

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


@pytest.mark.sampled(16, 16)
@pytest.mark.parametrize('name', DENSE)
def test_every_released_detector_and_segmentor_converts_whole(name):
    given = released(name)
    own, models = convert(given, None)
    assert name in models
    said = {row[0]: row[1].split(' and ') for row in own.report}
    assert said.keys() == given.keys()
    unused = {key for key in given if re.fullmatch(UNUSED, key)}
    if name.startswith('retinanet_ravlt'):  # which does not take the first map
        unused |= {f'backbone.extra_norms.0.norm.{kind}' for kind in ('weight', 'bias')}
    assert {key for key, to in said.items() if to == ['dropped']} == unused
    assert {key for to in said.values() for key in to} - {'dropped'} == own.weights.keys()
    model = meta_model(DENSE[name].config or name).state_dict()
    assert {k: v.shape for k, v in model.items()} == {k: v.shape for k, v in own.weights.items()}


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
        loaded = load(model, source)
        assert filled(model)
    if load is load_checkpoint:  # what the toolboxes' inferencers read
        assert loaded['meta']['dataset_meta']['classes'] == CLASSES
    backbone = create_backbone('pvtv2-b0', stage_norms=True)
    load_weights(backbone, retinanet)
    given = released(RETINANET, 'cpu')['backbone.norm4.bias']
    assert torch.equal(backbone.stages[3]['norm'].bias, given)
    assert filled(get_model(RETINANET, pretrained=True))


def test_inferencers_take_names_and_download(authors, monkeypatch):  # noqa: F811
    detector = 'retinanet_pvt-tiny_fpn_1x_coco'
    here = DENSE[detector]._replace(weights='https://example.com/a.pth', page='')
    monkeypatch.setitem(DENSE, detector, here)
    given = released(detector, 'cpu')
    put(authors, here.weights, given)
    inferencer = importlib.import_module('mmdet.apis').DetInferencer
    model = inferencer(detector, device='cpu').model
    assert torch.equal(model.bbox_head.retina_cls.weight, given['bbox_head.retina_cls.weight'])
    assert model.dataset_meta['classes'][:2] == ['person', 'bicycle']  # not of the file
    segmentor = SEGHEAD.format(0, 'cityscapes-1024x1024')
    given = released(segmentor, 'cpu')
    put(authors, DENSE[segmentor].weights, given)
    model = importlib.import_module('mmseg.apis').MMSegInferencer(segmentor, device='cpu').model
    last = given['head.output_ops.0.op_list.1.conv.weight']
    assert torch.equal(model.decode_head.conv_seg.weight, last)
    assert model.dataset_meta['classes'][:2] == ['road', 'sidewalk']  # which the file does not have
    with pytest.raises(ValueError, match='by the names of its authors.* give its mmlaplace://'):
        AtomicCheckpointHook().after_load_checkpoint(Mock(model=model), dict(state_dict=given))
    assert len(authors.asked) == 2


def test_inferencers_tell_what_has_no_weights_or_another_task():
    inferencer = importlib.import_module('mmdet.apis').DetInferencer
    with pytest.raises(ValueError, match="no released weights of 'mask-rcnn_flatten-swin-tiny"):
        inferencer('mask-rcnn_flatten-swin-tiny_fpn_ms-1x_coco', device='cpu')
    with pytest.raises(ValueError, match='Cannot find model: ravlt-tiny_fpn_.* in mmdet'):
        inferencer('ravlt-tiny_fpn_8xb2-80k_ade20k-512x512', device='cpu')
    assert RETINANET in inferencer.list_models('mmdet', RETINANET)


def changed(name=RETINANET, drop=(), rename=(), **shapes):
    """The tensors of a file with some changes, without memory for them."""
    given = {k: v for k, v in released(name).items() if not k.startswith(tuple(drop))}
    for old, new in rename:
        given = {new + k[len(old) :] if k.startswith(old) else k: v for k, v in given.items()}
    for key, shape in shapes.items():
        given[key.replace('__', '.')] = torch.empty(shape, device='meta')
    return given


XCIT = 'xcit-t12-p{}_fpn_8xb2-80k_ade20k-512x512'
RAVLT = 'ravlt-tiny_fpn_8xb2-80k_ade20k-512x512'
SEGHEAD = 'efficientvit-b{}_seghead_8xb2-160k_{}'
CITYSCAPES, ADE20K = (SEGHEAD.format(1, d) for d in ('cityscapes-1024x1024', 'ade20k-512x512'))


@pytest.mark.parametrize(
    ('weights', 'model', 'message'),
    [
        (
            dict(),
            MASK_RCNN,
            'it has bbox_head.retina_cls.weight, so it is a RetinaNet, and this '
            f'model is a Mask R-CNN; take the config {RETINANET}, or .* init_cfg$',
        ),
        (dict(), 'retinanet_pvtv2-b1_fpn_1x_coco', f'of another shape .*; it fits {RETINANET}'),
        (
            dict(
                bbox_head__retina_cls__weight=(180, 256, 3, 3), bbox_head__retina_cls__bias=(180,)
            ),
            None,
            r'retina_cls.weight has 180 rows for its classes, and that of the config 720',
        ),
        (
            dict(drop=['bbox_head.'], bbox_head__atss_cls__weight=(80, 256, 3, 3)),
            None,
            'it is a ATSS .* no config of ours has; load_weights converts it',
        ),
        (
            dict(name=MASK_RCNN, rename=[('roi_head.', '')]),
            None,
            r'those of mmdet 1, \d+ \(bbox_head.fc_cls.*/upgrade_model_version.py of mmdet 2',
        ),
        (
            dict(name=MASK_RCNN, roi_head__mask_head__conv_logits__weight=(81, 256, 1, 1)),
            None,
            'mmdet 1, 81 rows of masks, as of boxes',
        ),
        (dict(drop=['neck.', 'bbox_head.']), RETINANET, 'no head of a detector .* init_cfg'),
        (
            dict(
                drop=['backbone.'], backbone__stages__0__blocks__0__attn__w_msa__qkv__weight=(9, 3)
            ),
            None,
            "those of OpenMMLab's own Swin or PVT, as backbone.stages.0.blocks.0.attn.w_msa",
        ),
        (
            dict(drop=['backbone.'], backbone__conv1__weight=(9, 3)),
            None,
            'those of no released detector or segmentor',
        ),
        (dict(name=XCIT.format(8)), XCIT.format(16), f'it fits {XCIT.format(8)}'),
        (
            dict(name=RAVLT, drop=['backbone.patch_embed.proj.1.running_mean']),
            None,
            r'missing 1 \(backbone.stages.0.patch_embed.layers.1.running_mean\)',
        ),
        (
            dict(drop=['backbone.'], rpn_head__init_proposal_bboxes__weight=(9, 3)),
            None,
            'it is a Sparse R-CNN, and no config here has its heads',
        ),
        (dict(name=ADE20K), CITYSCAPES, f'missing .* of another shape .*; it fits {ADE20K}$'),
        (dict(backbone__block1__0__gate=(1,)), None, r"no place in our model: \['block1.0.gate'\]"),
    ],
)
def test_what_is_no_such_model_is_told(weights, model, message):
    with pytest.raises(ValueError, match=message):
        convert(changed(**weights), model)


@pytest.mark.parametrize(
    'own',
    [
        dict(name=RETINANET, drop=['bbox_head.'], bbox_head__fc_cls__weight=(81, 256)),  # DETR
        dict(name=RETINANET, drop=['bbox_head.'], mask_head__conv_cls__weight=(80, 256)),  # SOLO
        dict(name=MASK_RCNN, roi_head__mask_head__conv_logits__weight=(81, 256, 1, 1)),  # QueryInst
    ],
)
def test_other_detectors_load_their_own_checkpoints(own):
    own = {name: value for name, value in changed(**own).items() if name[:9] != 'backbone.'}
    check_dense(own, own)


def test_a_file_of_other_heads_is_refused_and_one_with_nan(retinanet, tmp_path):
    message = f'so it is a RetinaNet, and this model is a Mask R-CNN; take the config {RETINANET}'
    hook, runner = AtomicCheckpointHook(), Mock(model=get_model(MASK_RCNN))
    own = tmp_path / 'own.pth'
    torch.save(convert(released(RETINANET, 'cpu'), None)[0].weights, own)
    for file in (retinanet, own):
        assert_refused(runner.model, file, message)
        with pytest.raises(ValueError, match=message):
            hook.after_load_checkpoint(runner, torch.load(file))
    backbone = {k[9:]: v for k, v in released(RETINANET).items() if k.startswith('backbone.')}
    with pytest.raises(ValueError, match='is a classifier by the names of its authors'):
        hook.after_load_checkpoint(runner, dict(state_dict=backbone))
    runner.model = get_model(RETINANET)
    hook.after_load_checkpoint(runner, torch.load(retinanet))
    lacking = changed(drop=['backbone.norm4.'])
    with pytest.raises(ValueError, match=r'does not fit this PVTv2: missing 2 \(stages.3.norm'):
        runner.model.load_state_dict(lacking, strict=False)
    broken = torch.full((256,), torch.nan)
    torch.save({**released(RETINANET, 'cpu'), 'neck.fpn_convs.0.conv.bias': broken}, own)
    told = run_script(TOOL, own, '--out', tmp_path / 'out.pth').stderr
    assert 'NaN or infinite values in 1 (neck.fpn_convs.0.conv.bias)' in told
