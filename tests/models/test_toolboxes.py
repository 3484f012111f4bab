"""One ``type=`` in all three toolboxes, by the examples of the README and of its page on configs.

Also run on the upstream set by .dev_scripts/check_upstream.sh.
"""

import importlib
import re

import pytest
import torch
from conftest import ROOT, micro_config, quiet_init, registered, toolbox_config, toolbox_model
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, DefaultScope

from mmlaplace.commands.random_images import random_batch
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
    quiet_init(model)
    model.train()
    data = model.data_preprocessor(data, training=True)
    loss, log_vars = model.parse_losses(model(**data, mode='loss'))
    loss.backward()
    # Unused parameters would stop distributed training.
    assert not [n for n, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert all(torch.isfinite(torch.as_tensor(value)) for value in log_vars.values()), log_vars
    return log_vars


def detections(*shapes):
    """Random images of several shapes, the last without an object."""
    batches = [random_batch('mmdet', shape, 1, masks=True) for shape in shapes]
    data = {key: [batch[key][0] for batch in batches] for key in batches[0]}
    data['data_samples'][-1].gt_instances = data['data_samples'][-1].gt_instances[:0]
    return data


@pytest.mark.sampled(8, 8)
@pytest.mark.parametrize(
    ('toolbox', 'settings', 'loss', 'data'),
    [
        (
            'mmpretrain',
            {'head.in_channels': 64},
            'loss',
            lambda: random_batch('mmpretrain', (64, 64), 2, masks=False),
        ),
        (
            'mmdet',
            {'neck.in_channels': [32, 48, 64]},
            'loss_cls',
            lambda: detections((96, 128), (90, 100)),
        ),
        # Padded as to 512 x 512, in a tenth of the time.
        (
            'mmseg',
            {'neck.in_channels': [16, 32, 48, 64], 'data_preprocessor.size': (96, 96)},
            'decode.loss_ce',
            lambda: random_batch('mmseg', (64, 96), 2, masks=False),
        ),
    ],
    ids=['mmpretrain', 'mmdet', 'mmseg'],
)
@pytest.mark.parametrize('backbone', BACKBONES)
def test_the_example_of_a_toolbox_trains(toolbox, settings, loss, data, backbone):
    registry = pytest.importorskip(f'{toolbox}.registry')
    importlib.import_module(f'{toolbox}.utils').register_all_modules(init_default_scope=False)
    config = Config.fromstring(example(toolbox), '.py')
    config.model.backbone.update(type=backbone, arch=SMALL, img_size=64, init_cfg=None)
    config.merge_from_dict({f'model.{key}': value for key, value in settings.items()})
    with DefaultScope.overwrite_default_scope(toolbox):
        # SyncBN needs several processes; a Runner replaces it too.
        model = revert_sync_batchnorm(registry.MODELS.build(config.model))
        assert loss in train_step(model, data())


@pytest.mark.parametrize('name', ['mask-rcnn', 'retinanet'])
def test_mini_detectors_train_on_images_of_many_shapes(name):
    pytest.importorskip('mmdet')
    cfg = toolbox_config(micro_config(name))
    cfg.model.backbone.init_cfg = None
    train_step(toolbox_model(cfg), detections((96, 200), (180, 64), (33, 47)))
