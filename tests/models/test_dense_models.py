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
SEGMENTORS = [name for name in CONFIGS if name not in DETECTORS]
SIZES = [(200, 333), (333, 200), (160, 107), (128, 128)]  # a quarter of the sizes of COCO
STREET = (256, 512)  # and of Cityscapes


@pytest.fixture(scope='module')
def build():
    """A model of a mini config with random weights, made once."""
    models = {}

    def build_once(name: str):
        if name not in models:
            pytest.importorskip('mmdet' if name in DETECTORS else 'mmseg')
            cfg = toolbox_config(CONFIGS[name])
            cfg.model.backbone.init_cfg = None
            cfg.model.test_cfg.setdefault('rcnn', {}).update(score_thr=0.0)
            models[name] = toolbox_model(cfg)
            quiet_init(models[name])
        return models[name]

    assert len(DETECTORS) == len(SEGMENTORS) == 2
    return build_once


def sample(name: str, shape: tuple):
    """Random annotations of an image."""
    if name in DETECTORS:
        from mmdet.structures import DetDataSample
        from mmdet.structures.mask import BitmapMasks

        height, width = shape
        masks = torch.zeros(1, height, width, dtype=torch.uint8)
        masks[:, height // 4 : height // 2, width // 4 : width // 2] = 1
        corners = [[width / 4, height / 4, width / 2, height / 2]]
        sizes = dict(img_shape=shape, ori_shape=shape, scale_factor=(1.0, 1.0))
        data_sample = DetDataSample(metainfo=sizes)
        data_sample.gt_instances = InstanceData(
            bboxes=torch.tensor(corners), labels=torch.tensor([3]),
            masks=BitmapMasks(masks.numpy(), height, width),
        )  # fmt: skip
        return data_sample
    from mmseg.structures import SegDataSample

    data_sample = SegDataSample(metainfo=dict(img_shape=shape, ori_shape=shape))
    data_sample.gt_sem_seg = PixelData(data=torch.randint(0, 11, (1, *shape)))
    return data_sample


def batch(name: str, *shapes: tuple) -> dict:
    return dict(
        inputs=[torch.randint(0, 256, (3, *shape), dtype=torch.uint8) for shape in shapes],
        data_samples=[sample(name, shape) for shape in shapes],
    )


def losses_of(model, data):
    loss, log_vars = model.parse_losses(model(**model.data_preprocessor(data, True), mode='loss'))
    assert all(torch.isfinite(torch.as_tensor(value)) for value in log_vars.values()), log_vars
    return loss


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'shape'),
    [*((name, shape) for name in CONFIGS for shape in SIZES), *((n, STREET) for n in SEGMENTORS)],
)
def test_predicts_at_the_size_of_the_image(name, shape, build):
    with torch.no_grad():
        (result,) = build(name).eval().test_step(batch(name, shape))
    if name in DETECTORS:
        boxes = result.pred_instances.bboxes
        assert torch.isfinite(boxes).all()
        limits = boxes.new_tensor([shape[1], shape[0]] * 2)
        assert (boxes >= 0).all() and (boxes <= limits).all()
        if 'masks' in result.pred_instances:
            assert result.pred_instances.masks.shape[1:] == shape
    else:
        assert result.pred_sem_seg.data.shape == (1, *shape)
        assert torch.isfinite(result.seg_logits.data).all()


@pytest.mark.parametrize('name', DETECTORS)
def test_images_of_many_shapes_in_one_batch(name, build):
    """Padded differently: losses are finite, and every weight has a gradient."""
    model, shapes = build(name).train(), [(96, 200), (180, 64), (33, 47)]
    model.zero_grad()
    losses_of(model, batch(name, *shapes)).backward()
    without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []
    with torch.no_grad():
        assert len(model.eval().test_step(batch(name, *shapes))) == 3
    data = batch(name, (96, 96), (96, 96))
    first = data['data_samples'][0]  # of which no object is left
    first.gt_instances = first.gt_instances[torch.zeros(1, dtype=torch.bool)]
    losses_of(model.train(), data)
