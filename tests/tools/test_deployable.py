"""The forms in which models are exported predict what the toolboxes do."""

import pytest
import torch
from conftest import toolbox_model
from exported_models import build, config
from mmengine.config import Config

from mmlaplace.deployment import verification
from mmlaplace.deployment.deployable import NotDeployableError, deployable


@pytest.mark.slow
@pytest.mark.parametrize('name', ['polaformer-swin', 'retinanet', 'mask-rcnn', 'upernet'])
def test_the_form_that_is_exported_predicts_what_the_toolbox_does(name):
    model = build(name)
    form = deployable(model)
    size = (96, 128) if form.task != 'classification' else (48, 48)
    photo = verification.photographs(size)[0]
    with torch.no_grad():
        expected = verification.predicted(model, form.task, photo)
        found = verification.differences(form, expected, dict(zip(form.outputs, form(photo))))
    assert not verification.too_much(found, half=False), found
    assert form.task != 'detection' or found['expected'] > 5


@pytest.mark.slow
def test_a_segmentor_resizes_as_its_head_does():
    model = build('semantic-fpn')
    model.align_corners = model.decode_head.align_corners = True
    photo = verification.photographs((96, 128))[0]
    with torch.no_grad():
        labels, _ = deployable(model)(photo)
        expected = verification.predicted(model, 'segmentation', photo)['labels']
    assert len(labels.unique()) > 1
    # Where two classes are equal but for the last digits, either is right.
    assert (labels != expected).float().mean() < verification.TOLERANCES['labels']


@pytest.mark.slow
def test_a_segmentor_with_one_channel_marks_what_is_above_its_threshold():
    cfg = Config.fromfile(config('semantic-fpn'))
    cfg.model.backbone.init_cfg = None
    cfg.model.backbone.attn_cfg = dict(type='SoftmaxAttention')
    cfg.model.decode_head.update(num_classes=2, out_channels=1, threshold=0.3)
    cfg.model.decode_head.loss_decode.use_sigmoid = True
    form = deployable(toolbox_model(cfg).eval())
    photo = verification.photographs((96, 128))[0]
    with torch.no_grad():
        form.model.decode_head.conv_seg.weight.mul_(100)
        _, logits = form(photo)
        # The sigmoid of the middle one is then at the threshold.
        form.model.decode_head.conv_seg.bias.sub_(logits.median() - torch.logit(torch.tensor(0.3)))
        expected = verification.predicted(form.model, 'segmentation', photo)
        found = dict(zip(form.outputs, form(photo)))
    assert 0 < found['labels'].float().mean() < 1
    difference = verification.differences(form, expected, found)
    assert not verification.too_much(difference, half=False), difference


@pytest.mark.slow
def test_a_detectors_nms_is_among_all_boxes_where_its_config_says_so():
    photo, counts = verification.photographs((96, 128))[0], []
    for agnostic in (False, True):
        model = build('retinanet')
        nms = dict(type='nms', iou_threshold=0.1, class_agnostic=agnostic)
        model.bbox_head.test_cfg.update(nms=nms, max_per_img=1000)
        form = deployable(model)
        expected = verification.predicted(model, 'detection', photo)
        found = verification.differences(form, expected, dict(zip(form.outputs, form(photo))))
        assert not verification.too_much(found, half=False), found
        counts.append(found['expected'])
    assert counts[1] < counts[0]


@pytest.mark.slow
def test_options_that_no_exported_form_has_are_refused():
    def refused(model, match):
        with pytest.raises(NotDeployableError, match=match):
            deployable(model)

    model = build('mask-rcnn')
    model.roi_head.bbox_roi_extractor.roi_layers[0].pool_mode = 'max'
    refused(model, "pool_mode='max' in roi_head.bbox_roi_extractor.roi_layers.0")
    model = build('mask-rcnn')
    model.test_cfg.rcnn.nms.max_num = 3
    refused(model, "'max_num': 3.* cannot be exported; take out all options but .*'iou_threshold'")
    model = build('semantic-fpn')
    head = type(model.decode_head)
    model.decode_head.__class__ = type('OwnHead', (head,), dict(predict=lambda self: None))
    refused(model, 'an? EncoderDecoder with a OwnHead cannot be exported: .* its own predict, and')
