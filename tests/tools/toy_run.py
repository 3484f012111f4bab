"""For test_faults.py: a run of mmengine's Runner whose disk is full from its second epoch on.

  python tests/tools/toy_run.py FOLDER HOOK

HOOK is the checkpoint hook of our configs, a dict in JSON.
"""

import json
import resource
import sys
from pathlib import Path

import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner

import mmlaplace  # noqa: F401  (registers)

EPOCHS = 2


class Toy(BaseModel):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.register_buffer('ballast', torch.zeros(2**17))  # half a MiB

    def forward(self, inputs, mode):
        error = (self.linear(torch.stack(inputs)) - 2).square().mean()
        return dict(loss=error) if mode == 'loss' else [error]


class Accuracy(BaseMetric):
    """Better with each epoch, so that there is a new best checkpoint after each."""

    def process(self, data_batch, data_samples) -> None:
        self.results += [1 / (1 + error.item()) for error in data_samples]

    def compute_metrics(self, results) -> dict:
        return dict(accuracy=sum(results) / len(results))


class FullDisk(Hook):
    """From the second epoch on no file can exceed 64 KiB: no checkpoint, but the log can."""

    def before_train_epoch(self, runner) -> None:
        if runner.epoch == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16))


class QuietRunner(Runner):
    def _log_env(self, env_cfg) -> None:
        """Without the versions of compilers, which take longer than the run."""


def train(folder: Path, hook: dict) -> None:
    torch.manual_seed(0)
    loader = dict(
        dataset=[dict(inputs=torch.tensor([float(i)])) for i in range(4)],
        batch_size=2, num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False), collate_fn=dict(type='pseudo_collate'),
    )  # fmt: skip
    QuietRunner(
        Toy(), str(folder), loader, loader, train_cfg=dict(by_epoch=True, max_epochs=EPOCHS),
        val_cfg=dict(), val_evaluator=[Accuracy()], log_level='ERROR',
        optim_wrapper=dict(optimizer=dict(type='Adam', lr=0.05)),
        default_hooks=dict(checkpoint=hook), experiment_name='toy', custom_hooks=[FullDisk()],
    ).train()  # fmt: skip


if __name__ == '__main__':
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), json.loads(sys.argv[2]))
