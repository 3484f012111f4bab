"""One ``type=`` in all three toolboxes, by the examples of the README and of its page on configs.

Also run on the upstream set by .dev_scripts/check_upstream.sh.
"""

import importlib
import re

import numpy as np
import pytest
import torch
from conftest import ROOT, quiet_init, registered, toolbox_config, toolbox_model
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope

from mmlaplace.models import PyramidBackbone

# All that have the four stages of the examples.
BACKBONES = [name for name in registered(PyramidBackbone) if len(MODELS.get(name).host()) == 4]
SMALL = dict(
    embed_dims=(16, 32, 48, 64), depths=(1, 1, 1, 1), num_heads=(1, 2, 3, 4), ffn_ratios=(2,) * 4
)
PAGES = ('README.md', 'docs/tutorials/own_config.md')


def example(toolbox: str) -> str:
    """The example configuration for a toolbox."""
    text = ''.join((ROOT / page).read_text() for page in PAGES)
    blocks = re.findall(r'```python\n(.*?)```', text, flags=re.DOTALL)
    (text,) = [block for block in blocks if block.startswith(f'# {toolbox}')]
    return text


def train_step(model, data: dict) -> dict:
    cfg = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=1e-3))
    optim_wrapper = build_optim_wrapper(model, cfg)
    quiet_init(model)
    model.train()
    data = model.data_preprocessor(data, training=True)
    loss, log_vars = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    without = [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert without == [], 'unused parameters would stop distributed training'
    optim_wrapper.step()
    assert all(torch.isfinite(torch.as_tensor(value)) for value in log_vars.values()), log_vars
    return log_vars


def images(count: int, height: int, width: int) -> list:
    return [torch.randint(0, 256, (3, height, width), dtype=torch.uint8) for _ in range(count)]


def trained(toolbox, backbone, settings, data):
    """The losses of a step of the example, with other settings of the model."""
    registry = pytest.importorskip(f'{toolbox}.registry')
    importlib.import_module(f'{toolbox}.utils').register_all_modules(init_default_scope=False)
    config = Config.fromstring(example(toolbox), '.py')
    config.model.backbone.update(type=backbone, arch=SMALL, img_size=64, init_cfg=None)
    config.merge_from_dict({f'model.{key}': value for key, value in settings.items()})
    with DefaultScope.overwrite_default_scope(toolbox):
        # SyncBN needs several processes; a Runner replaces it too.
        return train_step(revert_sync_batchnorm(registry.MODELS.build(config.model)), data())


@pytest.mark.sampled(3)
@pytest.mark.parametrize('backbone', BACKBONES)
def test_mmpretrain_trains_a_classifier(backbone):
    def data():
        from mmpretrain.structures import DataSample

        samples = [DataSample().set_gt_label(i) for i in range(2)]
        return dict(inputs=images(2, 64, 64), data_samples=samples)

    assert 'loss' in trained('mmpretrain', backbone, {'head.in_channels': 64}, data)


def detections(*shapes):
    """Images with an object each, but the last, which has none."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData

    samples = []
    for shape in shapes:
        sample, (height, width) = DetDataSample(metainfo=dict(img_shape=shape)), shape
        objects = InstanceData(
            bboxes=torch.tensor([[width / 4, height / 4, width / 2, height / 2]]),
            labels=torch.tensor([3]), masks=BitmapMasks(np.ones((1, height, width)), height, width),
        )  # fmt: skip
        sample.gt_instances = objects[torch.tensor([shape != shapes[-1]])]
        samples.append(sample)
    return dict(inputs=[image for s in shapes for image in images(1, *s)], data_samples=samples)


@pytest.mark.sampled(5)  # they take a second each, and differ in nothing but the backbone
@pytest.mark.parametrize('backbone', BACKBONES)
def test_mmdet_trains_a_detector(backbone):
    settings = {'neck.in_channels': [32, 48, 64]}
    data = lambda: detections((96, 128), (90, 100))  # noqa: E731
    assert 'loss_cls' in trained('mmdet', backbone, settings, data)


@pytest.mark.parametrize('name', ['mask-rcnn', 'retinanet'])
def test_mini_detectors_train_on_images_of_many_shapes(name):
    pytest.importorskip('mmdet')
    folder = ROOT / 'configs/detection/laplacianformer'
    cfg = toolbox_config(folder / f'{name}_laplacianformer-micro_fpn_mini.py')
    cfg.model.backbone.init_cfg = None
    train_step(toolbox_model(cfg), detections((96, 200), (180, 64), (33, 47)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize('backbone', BACKBONES)
def test_mmseg_trains_a_segmentor(backbone):
    def data():
        from mmengine.structures import PixelData
        from mmseg.structures import SegDataSample

        samples = [SegDataSample(metainfo=dict(img_shape=(64, 96))) for _ in range(2)]
        for sample in samples:
            sample.gt_sem_seg = PixelData(data=torch.randint(0, 150, (1, 64, 96)))
        return dict(inputs=images(2, 64, 96), data_samples=samples)

    # Padded as to 512 x 512, in a tenth of the time.
    settings = {'neck.in_channels': [16, 32, 48, 64], 'data_preprocessor.size': (96, 96)}
    assert 'decode.loss_ce' in trained('mmseg', backbone, settings, data)
