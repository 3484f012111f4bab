"""Detectors and segmentors of the mini configs on images of every shape."""

import pytest
import torch
from conftest import ROOT, quiet_init, toolbox_config, toolbox_model
from mmengine.structures import InstanceData, PixelData

CONFIGS = {
    path.stem: path
    for task in ('detection', 'segmentation')
    for path in sorted((ROOT / 'configs' / task).rglob('*_mini.py'))
    if '_base_' not in path.parts
}
DETECTORS = [name for name, path in CONFIGS.items() if 'detection' in path.parts]


def build(name):
    pytest.importorskip('mmdet' if name in DETECTORS else 'mmseg')
    cfg = toolbox_config(CONFIGS[name])
    cfg.model.backbone.init_cfg = None
    cfg.model.test_cfg.setdefault('rcnn', {}).update(score_thr=0.0)
    model = toolbox_model(cfg)
    quiet_init(model)
    return model


def sample(name, shape):
    """Random annotations of an image."""
    sizes = dict(img_shape=shape, ori_shape=shape, scale_factor=(1.0, 1.0))
    if name in DETECTORS:
        from mmdet.structures import DetDataSample
        from mmdet.structures.mask import BitmapMasks

        height, width = shape
        data_sample = DetDataSample(metainfo=sizes)
        data_sample.gt_instances = InstanceData(
            bboxes=torch.tensor([[width / 4, height / 4, width / 2, height / 2]]),
            labels=torch.tensor([3]),
            masks=BitmapMasks(torch.ones(1, height, width).numpy(), height, width),
        )
        return data_sample
    from mmseg.structures import SegDataSample

    data_sample = SegDataSample(metainfo=sizes)
    data_sample.gt_sem_seg = PixelData(data=torch.randint(0, 11, (1, *shape)))
    return data_sample


def batch(name, *shapes):
    return dict(
        inputs=[torch.randint(0, 256, (3, *shape), dtype=torch.uint8) for shape in shapes],
        data_samples=[sample(name, shape) for shape in shapes],
    )


@pytest.mark.slow
@pytest.mark.parametrize('name', CONFIGS)
def test_predicts_at_the_size_of_the_image(name):
    model = build(name).eval()
    for shape in ((200, 333), (160, 107), (1, 60)):
        with torch.no_grad():
            (result,) = model.test_step(batch(name, shape))
        if name in DETECTORS:
            boxes = result.pred_instances.bboxes
            limits = boxes.new_tensor([shape[1], shape[0]] * 2)
            assert ((boxes >= 0) & (boxes <= limits)).all()
            if 'masks' in result.pred_instances:
                assert result.pred_instances.masks.shape[1:] == shape
        else:
            assert result.pred_sem_seg.data.shape == (1, *shape)
            assert torch.isfinite(result.seg_logits.data).all()


@pytest.mark.parametrize('name', DETECTORS)
def test_images_of_many_shapes_in_one_batch(name):
    """Padded differently: losses are finite, and every weight has a gradient."""
    model, data = build(name).train(), batch(name, (96, 200), (180, 64), (33, 47))
    last = data['data_samples'][-1]  # of which no object is left
    last.gt_instances = last.gt_instances[torch.zeros(1, dtype=torch.bool)]
    loss, _ = model.parse_losses(model(**model.data_preprocessor(data, True), mode='loss'))
    assert loss.isfinite()
    loss.backward()
    assert [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None] == []
