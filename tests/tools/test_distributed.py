"""Several processes, and a run that is killed, give what one unbroken process gives."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import CLASSIFICATION, ROOT
from mmengine.config import Config

pytestmark = pytest.mark.training

MINI = CLASSIFICATION / 'laplacianformer/laplacianformer-micro_1xb32_mini.py'


def config(mini_data, tmp_path, name: str, batch_size: int, **options) -> Path:
    """The mini classifier without random crops, on a part of its images."""
    cfg = Config.fromfile(MINI)
    data = str(mini_data / 'classification')
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.dataset.data_root = data
        loader.update(num_workers=0, persistent_workers=False)
    cfg.train_dataloader.update(batch_size=batch_size)
    cfg.train_dataloader.dataset.update(indices=96, pipeline=cfg.val_dataloader.dataset.pipeline)
    cfg.val_dataloader.dataset.indices = 8
    cfg.custom_imports = dict(imports=['mmlaplace', 'global_loss'])
    cfg.custom_hooks = [dict(type='GlobalLossHook', out=str(tmp_path / f'{name}.json'))]
    # No device_ids, which the Runner sets for GPUs.
    cfg.model_wrapper_cfg = dict(type='MMDistributedDataParallel', device_ids=None)
    cfg.work_dir = str(tmp_path / name)
    cfg.merge_from_dict(options)
    path = tmp_path / f'{name}.py'
    cfg.dump(path)
    return path


def environment() -> dict:
    folder = str(ROOT / 'tests/tools')
    paths = [folder, str(ROOT), os.environ.get('PYTHONPATH', '')]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS='1')


def train(path: Path, processes: int = 1, *options) -> None:
    command = [sys.executable, ROOT / 'tools/train.py', path]
    if processes > 1:
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = str(free.getsockname()[1])
        command = ['bash', ROOT / 'tools/dist_train.sh', path, processes]
        env = dict(environment(), PORT=port, PYTHON=sys.executable)
    else:
        env = environment()
    result = subprocess.run(
        [*map(str, command), *options], env=env, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]


def weights(path: Path) -> dict:
    return torch.load(path, map_location='cpu', weights_only=False)['state_dict']


def test_two_processes_have_the_losses_of_one(mini_data, tmp_path):
    options = {'train_cfg.max_epochs': 2, 'train_cfg.val_interval': 2}
    train(config(mini_data, tmp_path, 'one', 16, **options))
    train(config(mini_data, tmp_path, 'two', 8, **options), processes=2)
    one, two = (json.loads((tmp_path / f'{name}.json').read_text()) for name in ('one', 'two'))
    assert len(one) == len(two) == 12
    assert len(set(one)) == 12  # it trains
    # Sums in another order: fp32 rounding, grown over twelve steps of AdamW.
    assert two == pytest.approx(one, rel=1e-4)


def test_a_killed_run_resumes_to_the_same_weights(mini_data, tmp_path):
    options = {'train_cfg.max_epochs': 3, 'train_cfg.val_interval': 3}
    train(config(mini_data, tmp_path, 'unbroken', 16, **options))

    path = config(mini_data, tmp_path, 'killed', 16, **options)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / 'tools/train.py'), str(path)], env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    while not (tmp_path / 'killed/last_checkpoint').is_file():  # in the second epoch, then
        assert process.poll() is None, 'the run ended before it could be killed'
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / 'killed/epoch_3.pth').exists()

    train(path, 1, '--resume')
    expected = weights(tmp_path / 'unbroken/epoch_3.pth')
    resumed = weights(tmp_path / 'killed/epoch_3.pth')
    assert resumed.keys() == expected.keys()
    for name, value in expected.items():
        # The same operations in the same order.
        assert torch.equal(resumed[name], value), name
