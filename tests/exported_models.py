"""Models whose exported forms are tested, with random weights that tell classes apart."""

import torch
from conftest import ROOT, toolbox_model
from mmengine.config import Config

CONFIGS = {
    'laplacianformer': 'classification/laplacianformer/laplacianformer-micro_1xb32_mini',
    'polaformer-pvt': 'classification/polaformer/polaformer-pvt-micro_1xb32_mini',
    'polaformer-swin': 'classification/polaformer/polaformer-swin-micro_1xb32_mini',
    'retinanet': 'detection/laplacianformer/retinanet_laplacianformer-micro_fpn_mini',
    'mask-rcnn': 'detection/laplacianformer/mask-rcnn_laplacianformer-micro_fpn_mini',
    'upernet': 'segmentation/laplacianformer/laplacianformer-micro_upernet_1xb16_mini',
    'semantic-fpn': 'segmentation/laplacianformer/laplacianformer-micro_fpn_1xb16_mini',
}


def config(name: str):
    return ROOT / 'configs' / f'{CONFIGS[name]}.py'


def quick_config(name: str) -> Config:
    cfg = Config.fromfile(config(name))
    cfg.model.backbone.init_cfg = None
    if not CONFIGS[name].startswith('classification'):
        # Its necks and heads are the test here, and this takes a third of the time.
        cfg.model.backbone.attn_cfg = dict(type='SoftmaxAttention')
    return cfg


def build(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = toolbox_model(quick_config(name)).eval().requires_grad_(False)
    for path, part in model.named_modules():
        # Random ones find all classes alike; a detector's would find scores that all round to 1.
        if path.endswith(('conv_seg', 'head.fc')):
            part.weight *= 10
    return model
