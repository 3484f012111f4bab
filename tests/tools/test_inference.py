"""Inference by the toolboxes' own functions, from any folder, with a config and a checkpoint."""

import numpy as np
import pytest
import torch
from conftest import micro_config, run_python, toolbox_config, toolbox_model
from PIL import Image

from mmlaplace.toolboxes import TOOLBOXES as TABLE

BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {others!r} or name == 'mmcv._ext' and not {with_mmcv_ops}:
            raise ModuleNotFoundError(f'No module named {{name!r}} (blocked)', name=name)

sys.meta_path.insert(0, Blocked())
config, checkpoint, image = sys.argv[1:]
"""
CASES = {
    'mmpretrain': (
        'laplacianformer',
        """
from mmpretrain import ImageClassificationInferencer
result, = ImageClassificationInferencer(config, pretrained=checkpoint, device='cpu')(image)
assert 0 <= result['pred_label'] < 10
""",
    ),
    'mmdet': (
        'mask-rcnn',
        """
from mmdet.apis import inference_detector, init_detector
result = inference_detector(init_detector(config, checkpoint, device='cpu'), image)
assert result.pred_instances.masks.shape[1:] == (90, 120)
""",
    ),
    'mmseg': (
        'semantic-fpn',
        """
from mmseg.apis import inference_model, init_model
result = inference_model(init_model(config, checkpoint, device='cpu'), image)
assert result.pred_sem_seg.data.shape == (1, 90, 120)
""",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    'toolbox', [t if t == 'mmdet' else pytest.param(t, marks=pytest.mark.thorough) for t in CASES]
)
def test_one_toolbox_alone(toolbox, tmp_path):
    """The other two cannot be imported, nor mmcv's compiled ops where the table has no need."""
    name, code = CASES[toolbox]
    config = micro_config(name)
    classes = [str(i) for i in range(11)]
    meta = dict(dataset_meta=dict(classes=classes, CLASSES=classes, palette='random'))
    weights = toolbox_model(toolbox_config(config)).state_dict()
    torch.save(dict(state_dict=weights, meta=meta), tmp_path / 'weights.pth')
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / 'image.png')
    (row,) = (row for row in TABLE.values() if row.package == toolbox)
    block = BLOCK.format(others=CASES.keys() - {toolbox}, with_mmcv_ops=row.needs_mmcv_ops)
    result = run_python('-c', block + code, config, 'weights.pth', 'image.png', cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
