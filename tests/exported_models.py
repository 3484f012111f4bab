"""Models whose exported forms are tested, with random weights that tell classes apart."""

import torch
from conftest import MICRO, micro_config, toolbox_model
from mmengine.config import Config


def quick_config(name: str) -> Config:
    cfg = Config.fromfile(micro_config(name))
    cfg.model.backbone.init_cfg = None
    if not MICRO[name].startswith('classification'):
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
