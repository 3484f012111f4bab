"""For test_distributed.py: processes on CPUs, and a hook that writes the global batch's losses."""

import json
from pathlib import Path

import torch
from mmengine.dist import all_reduce, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

torch.cuda.set_device = lambda device: None  # mmengine's launcher gives each process a GPU


@HOOKS.register_module()
class GlobalLossHook(Hook):
    """Averages the loss over the processes, each of which has its part of the batch."""

    def __init__(self, out: str) -> None:
        self.out = Path(out)
        self.losses = []

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        loss = torch.as_tensor(outputs['loss']).detach().double().clone()
        all_reduce(loss, op='mean')
        self.losses.append(loss.item())

    def after_train(self, runner) -> None:
        if is_main_process():
            self.out.write_text(json.dumps(self.losses))
