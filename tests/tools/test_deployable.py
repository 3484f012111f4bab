"""The forms of exported models predict what the toolboxes do; run_onnx.py replaces no image."""

import json
import shutil
from unittest import mock

import exported_models
import numpy as np
import pytest
import torch
from conftest import ROOT, output_of, refusal_of, run_python, toolbox_model
from exported_models import build, quick_config
from mmengine.config import Config
from mmengine.registry import MODELS
from PIL import Image

from mmlaplace.checkpoints import PUBLISHED
from mmlaplace.deployment import exporting, verification
from mmlaplace.deployment.deployable import (
    NotDeployableError,
    PoolByProducts,
    UpsampleByWhole,
    deployable,
    with_exportable_parts,
)
from mmlaplace.deployment.detections import pick, region_features
from mmlaplace.deployment.inferencers import licence_of, names_of, number_of_classes
from mmlaplace.models.families import licence_of_backbone


def compare(form, size=(96, 128)) -> tuple:
    """A photograph, and how much a form's predictions for it differ from the toolbox's."""
    photo = verification.photographs(size)[0]
    with torch.no_grad():
        expected = verification.predicted(form.model, form.task, photo)
        made = dict(zip(form.outputs, form(*form.given(photo))))
    found = verification.differences(form, expected, made)
    assert not verification.too_much(found, half=False), found
    return photo, found


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'changes'),
    [
        ('polaformer-swin', {}),
        ('retinanet', {}),
        ('mask-rcnn', {}),
        ('upernet', {}),
        (
            'mask-rcnn',
            {'roi_head.mask_head.class_agnostic': False, 'test_cfg.rcnn.nms.class_agnostic': True},
        ),
        ('semantic-fpn', {'decode_head.align_corners': True}),
    ],
)
def test_the_form_that_is_exported_predicts_what_the_toolbox_does(name, changes, monkeypatch):
    cfg = quick_config(name)
    cfg.merge_from_dict({f'model.{key}': value for key, value in changes.items()})
    monkeypatch.setattr(exported_models, 'quick_config', lambda _: cfg)
    form = deployable(build(name))
    photo, found = compare(form, (48, 48) if form.task == 'classification' else (96, 128))
    assert form.task != 'detection' or found['expected'] > 5
    assert form.task != 'segmentation' or len(form(photo)[0].unique()) > 1


@pytest.mark.slow
@pytest.mark.parametrize('agnostic', [True, False])
def test_a_cascade_refines_regions_and_has_the_means_of_its_stages(agnostic, monkeypatch):
    cfg = quick_config('mask-rcnn')
    head = cfg.model.roi_head.bbox_head
    heads = [
        dict(head, reg_class_agnostic=agnostic, bbox_coder=dict(head.bbox_coder, target_stds=stds))
        for stds in ([0.1, 0.1, 0.2, 0.2], [0.05, 0.05, 0.1, 0.1], [0.3, 0.3, 0.6, 0.6])
    ]
    cfg.model.type = 'CascadeRCNN'
    cfg.model.train_cfg = None
    cfg.model.roi_head.update(
        type='CascadeRoIHead', num_stages=3, stage_loss_weights=[1, 0.5, 0.25], bbox_head=heads
    )
    monkeypatch.setattr(exported_models, 'quick_config', lambda _: cfg)
    model = build('mask-rcnn')
    for number, part in enumerate((*model.roi_head.bbox_head, *model.roi_head.mask_head)):
        torch.manual_seed(number)
        for weight in part.parameters():  # stages that regress little would be all alike
            weight += 0.02 * torch.randn_like(weight)
    form = deployable(model)
    _, found = compare(form)
    assert found['expected'] > 5 and form.outputs[-1] == 'masks'
    names = number_of_classes(model), model.roi_head.bbox_head[0].num_classes
    assert names[0] == names[1]


def test_suppression_for_all_classes_leaves_one_of_two_boxes_at_a_place():
    boxes, scores = torch.tensor([[0.0, 0.0, 9.0, 9.0]] * 2), torch.tensor([0.9, 0.8])
    for class_agnostic, expected in ((False, 2), (True, 1)):
        nms = dict(iou_threshold=0.5, class_agnostic=class_agnostic)
        found = pick(boxes, scores, torch.tensor([0, 1]), Config(dict(max_per_img=3, nms=nms)))
        assert int((found[1] > 0).sum()) == expected


def test_boxes_below_the_least_size_are_left_out():
    boxes = torch.tensor([[0.0, 0.0, 9.0, 9.0], [20.0, 20.0, 29.0, 24.0]])
    for least, expected in ((-1, 2), (4, 1)):  # above 4 pixels wide and high
        config = Config(dict(max_per_img=3, nms=dict(iou_threshold=0.5), min_bbox_size=least))
        _, scores, _ = pick(boxes, torch.tensor([0.8, 0.9]), torch.tensor([0, 0]), config)
        assert int((scores > 0).sum()) == expected


@pytest.mark.slow
@torch.no_grad()
def test_the_largest_regions_have_the_last_map_of_the_extractor():
    extractor = build('mask-rcnn').roi_head.bbox_roi_extractor
    strides = [*extractor.featmap_strides, 2 * extractor.featmap_strides[-1]]
    maps = [torch.randn(1, extractor.out_channels, 1024 // s, 1024 // s) for s in strides]
    boxes = torch.tensor([[3.0, 5.0, 33.0, 40.0], [10.0, 10.0, 1000.0, 1000.0]])
    expected = extractor(maps[:-1], torch.nn.functional.pad(boxes, (1, 0)))
    # Sums of some bilinear samples of unit variance in fp32, in another order.
    found = region_features(extractor, maps, boxes)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_a_file_for_any_size_is_verified_at_three():
    sizes = verification.sizes_to_verify((64, 96), 32, dynamic=True)
    assert sizes == [(64, 96), (96, 96), (64, 128)]  # a higher and a wider one
    assert verification.sizes_to_verify((64, 96), 32, dynamic=False) == sizes[:1]


def test_a_detection_that_is_missing_or_has_another_label_is_told():
    found = dict(boxes=np.ones((10, 4)), scores=np.ones(10), labels=np.zeros(10, int))
    expected = dict(found, labels=np.array([0] * 9 + [1]))
    differences = verification.prediction_differences('detection', expected, found)
    assert differences == dict(expected=10, missing=1, extra=0, boxes=0, scores=0)
    assert verification.too_much(differences, half=False) == dict(missing=1)
    assert verification.too_much(differences, half=True) == {}


@pytest.mark.slow
def test_a_segmentor_with_one_channel_marks_what_is_above_its_threshold():
    cfg = quick_config('semantic-fpn')
    cfg.model.decode_head.update(num_classes=2, out_channels=1, threshold=0.3)
    cfg.model.decode_head.loss_decode = dict(type='CrossEntropyLoss', use_sigmoid=True)
    form, photo = deployable(toolbox_model(cfg).eval()), verification.photographs((96, 128))[0]
    last = form.model.decode_head.conv_seg
    with torch.no_grad():
        last.weight.mul_(100)
        # The sigmoid of the middle one is then at the threshold.
        last.bias.sub_(form(photo)[1].median() - torch.logit(torch.tensor(0.3)))
        assert 0 < form(photo)[0].float().mean() < 1
    compare(form)


@pytest.mark.slow
def test_what_no_exported_form_has_is_refused_with_the_reason():
    def refused(model, match):
        with pytest.raises(NotDeployableError, match=match):
            deployable(model)

    model = build('mask-rcnn')
    with mock.patch.object(model.roi_head.bbox_roi_extractor.roi_layers[0], 'pool_mode', 'max'):
        refused(model, "pool_mode='max' in roi_head.bbox_roi_extractor.roi_layers.0")
    with mock.patch.object(model.roi_head.bbox_head.bbox_coder, 'clip_border', False):
        refused(model, 'clip_border=False in roi_head.bbox_head')
    model.test_cfg.rcnn.nms.max_num = 3
    refused(model, "'max_num': 3.* cannot be exported; keep only the options .*'iou_threshold'")
    model.test_cfg.rcnn.nms = dict(type='soft_nms', iou_threshold=0.5)
    refused(model, "test_cfg.nms.type='soft_nms' cannot be exported")
    refused(torch.nn.Linear(1, 1), 'a Linear cannot be exported; only classifiers')


def test_a_prediction_that_a_user_changed_is_no_exported_one():
    model = build('polaformer-swin')
    assert deployable(model).task == 'classification'
    for part, name in ((model, 'model'), (model.head, 'head')):
        with (
            mock.patch.object(part, 'predict', lambda *args: None),
            pytest.raises(NotDeployableError, match=f'has its own predict; take a {name} that'),
        ):
            deployable(model)

    class Calibrated(type(model)):
        """Scores of another temperature."""

        def predict(self, inputs, data_samples=None, **options):
            return super().predict(inputs / 2, data_samples, **options)

    model.__class__ = Calibrated
    with pytest.raises(NotDeployableError, match='a Calibrated cannot .* its own predict'):
        deployable(model)


def test_a_file_gets_names_and_colours_of_as_many_classes_as_it_has_or_none(tmp_path):
    meta = dict(classes=('cat', 'dog'), palette=[(1, 2, 3), (4, 5, 6)])
    dataset = dict(type='CustomDataset', metainfo=meta)
    backbone = dict(type='PolaFormerPVT', arch='tiny')
    config = dict(default_scope='mmpretrain', model=dict(backbone=backbone))
    cfg = Config({**config, 'test_dataloader': dict(dataset=dataset)})
    torch.save(dict(state_dict={}), tmp_path / 'weights.pth')
    model = build('polaformer-pvt')
    for count, names, colours in ((2, ['cat', 'dog'], [[1, 2, 3], [4, 5, 6]]), (10, [], [])):
        model.head.num_classes = count
        found = names_of(cfg, str(tmp_path / 'weights.pth'), model)
        assert found == dict(classes=names, palette=colours, licence='MIT')
    model.head.num_classes, meta['palette'] = 2, [(1, 2, 3)]
    cfg = Config({**config, 'test_dataloader': dict(dataset=dataset)})
    found = names_of(cfg, str(tmp_path / 'weights.pth'), model)
    assert found == dict(classes=['cat', 'dog'], palette=[], licence='MIT')


def test_a_file_has_the_licence_of_those_who_released_its_layers():
    for name, model in PUBLISHED.items():
        backbone = dict(model.backbone, drop_path_rate=0.2)
        assert licence_of(backbone, MODELS.get(backbone['type'])) == model.licence, name
    own = dict(type='Swin', arch='tiny', attn_cfg=dict(type='SOFTAttention'))
    assert licence_of(own, MODELS.get('Swin')) == ''  # nobody released it
    assert licence_of(dict(type='LaplacianFormer'), MODELS.get('LaplacianFormer')) == (
        licence_of_backbone(MODELS.get('LaplacianFormer'))
    )


def test_a_hook_of_a_layer_that_has_an_exportable_form_acts():
    model = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.AdaptiveAvgPool2d(3))
    x = torch.randn(1, 2, 9, 7)
    assert [type(part) for part in with_exportable_parts(model)] == [PoolByProducts] * 2
    for part in model:
        part.register_forward_hook(lambda pool, inputs, out: 10 * out)
    torch.testing.assert_close(with_exportable_parts(model)(x), model(x))


def test_a_hook_of_mmsegs_upsampling_acts():
    Upsample = pytest.importorskip('mmseg.models.utils').Upsample
    model = torch.nn.Sequential(*(Upsample(scale_factor=2, mode='bilinear') for _ in range(2)))
    x = torch.randn(1, 2, 9, 7)
    assert [type(part) for part in with_exportable_parts(model)] == [UpsampleByWhole] * 2
    torch.testing.assert_close(with_exportable_parts(model)(x), model(x))
    model[0].register_forward_hook(lambda upsample, inputs, out: 10 * out)
    exportable = with_exportable_parts(model)
    assert [type(part) for part in exportable] == [Upsample, UpsampleByWhole]
    torch.testing.assert_close(exportable(x), model(x))
    model[1].forward = lambda x: x.square()
    torch.testing.assert_close(with_exportable_parts(model)(x), model[0](x).square())


RUN = ROOT / 'tools/deployment/run_onnx.py'
SIDE = 32


@pytest.fixture
def segmentor(tmp_path):
    """A file as export.py writes it, whose label of a pixel is its brightest colour."""
    onnx = pytest.importorskip('onnx')
    pytest.importorskip('onnxruntime')
    helper, kinds = onnx.helper, onnx.TensorProto
    images = helper.make_tensor_value_info('images', kinds.FLOAT, [1, 3, None, None])
    logits = helper.make_tensor_value_info('logits', kinds.FLOAT, None)
    node = helper.make_node('Identity', ['images'], ['logits'])
    graph = helper.make_graph([node], 'graph', [images], [logits])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    about = dict(
        task='segmentation',
        outputs=['logits'],
        batch=1,
        size=None,
        multiple=1,
        align_corners=False,
        pipeline=[],
        color='color',
        pad=dict(multiple=1, size=None, value=[0, 0, 0]),
    )
    entry = model.metadata_props.add()
    entry.key, entry.value = 'mmlaplace', json.dumps(about)
    onnx.save(model, tmp_path / 'segmentor.onnx')
    return tmp_path / 'segmentor.onnx'


@pytest.mark.parametrize(('asked', 'taken'), [(3, 3), (None, torch.get_num_threads())])
def test_onnx_runtime_has_the_threads_that_are_asked_for(asked, taken, segmentor):
    import onnxruntime

    with mock.patch('onnxruntime.InferenceSession', wraps=onnxruntime.InferenceSession) as session:
        exporting.open_onnx(segmentor, threads=asked)
    assert session.call_args.args[1].intra_op_num_threads == taken


def test_an_image_is_not_replaced_by_its_labels(segmentor, tmp_path):
    photo = tmp_path / 'a/x.png'
    photo.parent.mkdir()
    Image.new('RGB', (SIDE, SIDE)).save(photo)
    before = photo.read_bytes()
    told = refusal_of(RUN, segmentor, photo, '--out', tmp_path / 'a/../a')
    assert 'x.png is already one of the images' in told
    assert photo.read_bytes() == before


def test_labels_of_images_of_one_name_keep_their_folders(segmentor, tmp_path):
    photos = [tmp_path / name / 'x.png' for name in 'ab']
    for photo in photos:
        photo.parent.mkdir()
        Image.new('RGB', (SIDE, SIDE)).save(photo)
    output_of(RUN, segmentor, *photos, '--out', tmp_path / 'labels')
    found = sorted(path.relative_to(tmp_path) for path in (tmp_path / 'labels').rglob('x.png'))
    assert [str(path) for path in found] == ['labels/a/x.png', 'labels/b/x.png']


def test_a_copy_of_three_files_runs_without_the_project_and_without_torch(segmentor, tmp_path):
    for name in (
        'tools/deployment/run_onnx.py',
        'mmlaplace/deployment/image_pipeline.py',
        'mmlaplace/deployment/openvino_runtime.py',
    ):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / 'torch.py').write_text('raise ImportError("no torch here")')
    Image.new('RGB', (SIDE, SIDE), 'blue').save(tmp_path / 'x.png')
    result = run_python('run_onnx.py', segmentor, tmp_path / 'x.png', cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout == f'{tmp_path}/x.png: 32 x 32\n  class 2: 100.0% of the pixels\n'
