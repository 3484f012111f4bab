"""For test_faults.py: runs of mmengine's Runner in a second, with a checkpoint hook of our configs.

``python tests/tools/toy_run.py FOLDER HOOK`` kills them in the middle of every change of a file.
HOOK is a dict in JSON. What is found after each kill is written into FOLDER/kills.json.
"""

import builtins
import io
import json
import os
import signal
import sys
from pathlib import Path

import matplotlib.pyplot  # noqa: F401  (here, so that not every child imports it)
import torch
import torch._dynamo  # likewise
from mmengine.evaluator import BaseMetric
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


class QuietRunner(Runner):
    def _log_env(self, env_cfg) -> None:
        """Without the versions of compilers, which take longer than the run."""


def train(folder: Path, hook: dict, resume: bool = False) -> None:
    torch.manual_seed(0)
    loader = dict(
        dataset=[dict(inputs=torch.tensor([float(i)])) for i in range(4)],
        batch_size=2, num_workers=0,
        sampler=dict(type='DefaultSampler', shuffle=False), collate_fn=dict(type='pseudo_collate'),
    )  # fmt: skip
    QuietRunner(
        Toy(), str(folder), loader, loader, train_cfg=dict(by_epoch=True, max_epochs=EPOCHS),
        val_cfg=dict(), val_evaluator=[Accuracy()], resume=resume, log_level='ERROR',
        optim_wrapper=dict(optimizer=dict(type='Adam', lr=0.05)),
        default_hooks=dict(checkpoint=hook), experiment_name='toy',
    ).train()  # fmt: skip


def die_at(moment: int, folder: Path) -> None:
    """Kill this process in the middle of its ``moment``-th change of a checkpoint's file."""
    passed = 0

    def pass_moment(path) -> None:
        nonlocal passed
        if str(path).startswith(str(folder)):
            passed += 1
            if passed == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    class HalfWritten(io.FileIO):
        """A file that is half written when its process dies."""

        def write(self, content) -> int:
            half = len(content) // 2
            super().write(content[:half])
            pass_moment(self.name)
            return half + super().write(content[half:])

    def open_file(path, mode='r', *args, **kwargs):
        if mode in ('w', 'wb') and ('.pth' in str(path) or 'last_checkpoint' in str(path)):
            file = HalfWritten(path, 'w')
            return file if mode == 'wb' else io.TextIOWrapper(file, write_through=True)
        return plain_open(path, mode, *args, **kwargs)

    def after(function):
        def then_pass(path, *args, **kwargs):
            function(path, *args, **kwargs)
            pass_moment(path)

        return then_pass

    plain_open, builtins.open = builtins.open, open_file
    os.remove, os.replace = after(os.remove), after(os.replace)


def in_child(function, *args) -> int:
    """The exit status of a process that does it; minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        function(*args)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def weights(folder: Path) -> dict:
    return torch.load(folder / f'epoch_{EPOCHS}.pth', weights_only=False)['state_dict']


def kill_everywhere(folder: Path, hook: dict) -> None:
    """Kill a run at each moment in turn, resume it, and compare it to one that was not killed."""
    in_child(train, folder / 'unbroken', hook)
    expected = weights(folder / 'unbroken')
    kills, moment, status = [], 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        moment += 1
        run = folder / f'killed_{moment}'
        status = in_child(lambda m, *run: (die_at(m, run[0]), train(*run)), moment, run, hook)
        last = run / 'last_checkpoint'
        named = last.read_text() if last.exists() else None
        for left in run.glob('*.partial'):
            os.utime(left, (0, 0))  # as if the kill was long ago
            for file in left.iterdir():
                os.utime(file, (0, 0))
        resumed = in_child(train, run, hook, True)
        same = resumed == 0 and all(map(torch.equal, weights(run).values(), expected.values()))
        kept = sorted(path.name for path in run.iterdir() if '.pth' in path.name)
        kills.append(dict(last_checkpoint=named, resumed=resumed, same_weights=same, kept=kept))
    (folder / 'kills.json').write_text(json.dumps(kills))


if __name__ == '__main__':
    torch.set_num_threads(1)
    kill_everywhere(Path(sys.argv[1]), json.loads(sys.argv[2]))
