"""The forms of exported models predict what the toolboxes do; run_onnx.py replaces no image."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from conftest import ROOT, load_tool, run_script, toolbox_model
from exported_models import build, config
from mmengine.config import Config
from PIL import Image

from mmlaplace.deployment import verification
from mmlaplace.deployment.deployable import NotDeployableError, deployable


def compare(form, size=(96, 128)) -> dict:
    """How much an exported form's predictions differ from those of the toolbox."""
    photo = verification.photographs(size)[0]
    with torch.no_grad():
        expected = verification.predicted(form.model, form.task, photo)
        found = verification.differences(form, expected, dict(zip(form.outputs, form(photo))))
    assert not verification.too_much(found, half=False), found
    return found


@pytest.mark.slow
@pytest.mark.parametrize('name', ['polaformer-swin', 'retinanet', 'mask-rcnn', 'upernet'])
def test_the_form_that_is_exported_predicts_what_the_toolbox_does(name):
    form = deployable(build(name))
    found = compare(form, (48, 48) if form.task == 'classification' else (96, 128))
    assert form.task != 'detection' or found['expected'] > 5


@pytest.mark.slow
def test_a_segmentor_resizes_as_its_head_does():
    model = build('semantic-fpn')
    model.align_corners = model.decode_head.align_corners = True
    form, photo = deployable(model), verification.photographs((96, 128))[0]
    # Where two classes are equal but for the last digits, either is right.
    compare(form)
    with torch.no_grad():
        assert len(form(photo)[0].unique()) > 1


@pytest.mark.slow
def test_a_segmentor_with_one_channel_marks_what_is_above_its_threshold():
    cfg = Config.fromfile(config('semantic-fpn'))
    cfg.model.backbone.init_cfg = None
    cfg.model.backbone.attn_cfg = dict(type='SoftmaxAttention')
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
    model.roi_head.bbox_roi_extractor.roi_layers[0].pool_mode = 'max'
    refused(model, "pool_mode='max' in roi_head.bbox_roi_extractor.roi_layers.0")
    model.roi_head.bbox_roi_extractor.roi_layers[0].pool_mode = 'avg'
    model.roi_head.bbox_head.bbox_coder.clip_border = False
    refused(model, 'clip_border=False in roi_head.bbox_head')
    model.roi_head.bbox_head.bbox_coder.clip_border = True
    model.test_cfg.rcnn.nms.max_num = 3
    refused(model, "'max_num': 3.* cannot be exported; keep only the options .*'iou_threshold'")
    model.test_cfg.rcnn.nms = dict(type='soft_nms', iou_threshold=0.5)
    refused(model, "test_cfg.nms.type='soft_nms' cannot be exported")
    refused(torch.nn.Linear(1, 1), 'a Linear cannot be exported; only classifiers')


run = partial(run_script, ROOT / 'tools/deployment/run_onnx.py')
SIDE = 32
SIZE = ('--image-size', SIDE, SIDE)


@pytest.fixture
def segmentor(tmp_path):
    """A file as export.py writes it, whose label of a pixel is its brightest colour."""
    onnx = pytest.importorskip('onnx')
    pytest.importorskip('onnxruntime')
    helper, kinds = onnx.helper, onnx.TensorProto
    images = helper.make_tensor_value_info('images', kinds.FLOAT, [1, 3, None, None])
    labels = helper.make_tensor_value_info('labels', kinds.INT64, None)
    node = helper.make_node('ArgMax', ['images'], ['labels'], axis=1, keepdims=0)
    graph = helper.make_graph([node], 'graph', [images], [labels])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    about = dict(task='segmentation', outputs=['labels'], batch=1, size=None, multiple=1)
    entry = model.metadata_props.add()
    entry.key, entry.value = 'mmlaplace', json.dumps(dict(about, mean=[0, 0, 0]))
    onnx.save(model, tmp_path / 'segmentor.onnx')
    return tmp_path / 'segmentor.onnx'


def paint(path, *colours, **options) -> None:
    """Rows of these colours from above, 0 for red, 1 for green and 2 for blue."""
    pixels = np.zeros((SIDE, SIDE, 3), np.uint8)
    for rows, colour in zip(np.array_split(pixels, len(colours)), colours):
        rows[..., colour] = 255
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


@pytest.mark.parametrize('folder', ['a/../a', 'labels'])
def test_an_image_or_the_labels_of_another_are_not_replaced(segmentor, tmp_path, folder):
    photos = [tmp_path / name / 'x.png' for name in 'ab']
    for photo, colour in zip(photos, (1, 2)):
        paint(photo, colour)
    before = photos[0].read_bytes()
    result = run(segmentor, *photos, *SIZE, '--out', tmp_path / folder)
    assert result.returncode == 2 and 'x.png is already one of the images' in result.stderr
    assert photos[0].read_bytes() == before
    if folder == 'labels':
        assert (np.asarray(Image.open(tmp_path / 'labels/x.png')) == 1).all()


def test_a_photo_of_a_phone_is_seen_upright(segmentor, tmp_path):
    mmcv = pytest.importorskip('mmcv')
    turned = Image.Exif()
    turned[0x0112] = 3  # upside down
    photo = tmp_path / 'phone.jpg'
    paint(photo, 0, 2, exif=turned, quality=95)
    result = run(segmentor, photo, *SIZE, '--out', tmp_path / 'labels')
    assert result.returncode == 0, result.stderr
    loaded = mmcv.imread(str(photo), channel_order='rgb').argmax(-1)
    assert (loaded[0] == 2).all()
    assert np.array_equal(np.asarray(Image.open(tmp_path / 'labels/phone.png')), loaded)


def test_grey_of_sixteen_bits_is_not_white(tmp_path):
    levels = np.arange(256, dtype=np.uint16).reshape(16, 16)
    Image.fromarray(257 * levels).save(tmp_path / 'deep.png')
    image = load_tool('tools/deployment/run_onnx.py').read_image(tmp_path / 'deep.png')
    assert np.array_equal(np.asarray(image)[..., 0], levels)
