"""The forms in which models are exported predict what the toolboxes do."""

import pytest
import torch
from conftest import toolbox_model
from exported_models import build, config
from mmengine.config import Config

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
    cfg.model.decode_head.loss_decode.use_sigmoid = True
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
    model.test_cfg.rcnn.nms.max_num = 3
    refused(model, "'max_num': 3.* cannot be exported; keep only the options .*'iou_threshold'")
    model.test_cfg.rcnn.nms = dict(type='soft_nms', iou_threshold=0.5)
    refused(model, "test_cfg.nms.type='soft_nms' cannot be exported")
    refused(torch.nn.Linear(1, 1), 'a Linear cannot be exported; only classifiers')
