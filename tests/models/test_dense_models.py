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
# A quarter of the sizes of COCO, and of Cityscapes.
SIZES = [
    (name, shape) for name in CONFIGS for shape in [(200, 333), (333, 200), (160, 107), (128, 128)]
]
SIZES += [(name, (256, 512)) for name in SEGMENTORS]
of_all = pytest.mark.parametrize('name', CONFIGS)
of_detectors = pytest.mark.parametrize('name', DETECTORS)


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
        meta = dict(img_shape=shape, ori_shape=shape, scale_factor=(1.0, 1.0))
        data_sample = DetDataSample(metainfo=meta)
        data_sample.gt_instances = InstanceData(
            bboxes=torch.tensor([[width / 4, height / 4, width / 2, height / 2]]),
            labels=torch.tensor([3]), masks=BitmapMasks(masks.numpy(), height, width),
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


def losses_of(model, data) -> tuple:
    """The sum of the losses, and each of them."""
    data = model.train().data_preprocessor(data, training=True)
    return model.parse_losses(model(**data, mode='loss'))


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'shape'), SIZES, ids=str)
def test_predicts_at_the_size_of_the_image(name, shape, build):
    model = build(name).eval()
    with torch.no_grad():
        (result,) = model.test_step(batch(name, shape))
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


@of_detectors
def test_images_of_many_shapes_in_one_batch(name, build):
    """Padded differently: losses are finite and every weight has a gradient."""
    model, images = build(name), batch(name, (96, 200), (180, 64), (33, 47))
    model.zero_grad()
    loss, log_vars = losses_of(model, images)
    assert all(torch.isfinite(torch.as_tensor(value)) for value in log_vars.values()), log_vars
    loss.backward()
    without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []
    with torch.no_grad():
        assert len(model.eval().test_step(batch(name, (96, 200), (180, 64), (33, 47)))) == 3


@of_all
def test_the_three_modes(name, build):
    model = build(name)
    shapes = [(128, 128)] * 2  # mmseg crops its training images to one size
    assert torch.isfinite(losses_of(model, batch(name, *shapes))[0])
    with torch.no_grad():
        data = model.eval().data_preprocessor(batch(name, *shapes), training=False)
        assert len(model(**data, mode='predict')) == 2
        assert model(**data, mode='tensor') is not None


@of_detectors
def test_an_image_without_objects_has_finite_losses(name, build):
    data = batch(name, (96, 96), (96, 96))
    data['data_samples'][0].gt_instances = data['data_samples'][0].gt_instances[:0]
    assert torch.isfinite(losses_of(build(name), data)[0])


@of_all
def test_a_line_of_pixels_is_padded_and_nothing_at_all_is_refused(name, build):
    model = build(name).eval()
    with torch.no_grad():
        (result,) = model.test_step(batch(name, (1, 60)))
        assert result is not None
        with pytest.raises(ValueError, match=r'at least 4 x 4 pixels, got shape \(1, 3, 0, 64\)'):
            model.backbone(torch.zeros(1, 3, 0, 64))
