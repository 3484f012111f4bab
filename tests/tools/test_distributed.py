"""Several processes or machines, and a run that is killed, give what one unbroken process gives."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
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
    cfg.env_cfg.dist_cfg.backend = 'gloo'
    cfg.work_dir = str(tmp_path / name)
    cfg.merge_from_dict(options)
    path = tmp_path / f'{name}.py'
    cfg.dump(path)
    return path


def environment(**variables) -> dict:
    folder = str(ROOT / 'tests/tools')
    paths = [folder, str(ROOT), os.environ.get('PYTHONPATH', '')]
    path = os.pathsep.join(paths)
    return dict(
        os.environ, PYTHONPATH=path, OMP_NUM_THREADS='1', PYTHON=sys.executable, **variables
    )


def train(path: Path, processes: int = 1, *options) -> None:
    command = [sys.executable, ROOT / 'tools/train.py', path]
    if processes > 1:
        command = ['bash', ROOT / 'tools/dist_train.sh', path, processes]
    result = subprocess.run(
        [*map(str, command), *options], env=environment(), capture_output=True, text=True,
        timeout=600, cwd=path.parent,  # where mmengine collects the results of processes
    )  # fmt: skip
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]


def start_machines(path: Path, *options) -> list:
    """Two of them, both this one, with a process each; their output goes beside the config."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = str(free.getsockname()[1])
    machines = []
    for rank in '01':
        variables = dict(NNODES='2', NODE_RANK=rank, MASTER_ADDR='127.0.0.1', PORT=port)
        with open(path.with_suffix(f'.{rank}.log'), 'w') as log:
            machines.append(
                psutil.Popen(
                    ['bash', str(ROOT / 'tools/dist_train.sh'), str(path), '1', *options],
                    env=environment(**variables), stdout=log, stderr=subprocess.STDOUT,
                    cwd=path.parent,
                )
            )  # fmt: skip
    return machines


def finish(machines: list, path: Path) -> None:
    for rank, machine in enumerate(machines):
        status = machine.wait(timeout=600)
        assert status == 0, path.with_suffix(f'.{rank}.log').read_text()[-3000:]


def weights(path: Path) -> dict:
    return torch.load(path, map_location='cpu', weights_only=False)['state_dict']


def assert_same_weights(path: Path, other: Path) -> None:
    """As the same operations in the same order give them."""
    expected, found = weights(path), weights(other)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def wait_for_first_epoch(process, folder: Path) -> None:
    deadline = time.monotonic() + 600
    while not (folder / 'last_checkpoint').is_file():  # in the second epoch, then
        assert process.poll() is None, 'the run ended before it could be killed'
        assert time.monotonic() < deadline
        time.sleep(0.02)


OPTIONS = {'train_cfg.max_epochs': 3, 'train_cfg.val_interval': 3}


@pytest.fixture(scope='module')
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp('runs')


@pytest.fixture(scope='module')
def one(mini_data, folder) -> Path:
    """The work folder of an unbroken run of one process; the losses lie beside it."""
    train(config(mini_data, folder, 'one', 16, **OPTIONS))
    return folder / 'one'


@pytest.fixture(scope='module')
def two_machines(mini_data, folder) -> Path:
    path = config(mini_data, folder, 'two_machines', 8, **OPTIONS)
    finish(start_machines(path), path)
    return folder / 'two_machines'


def assert_same_losses(folder: Path, other: Path) -> None:
    expected, found = (
        json.loads(path.with_suffix('.json').read_text()) for path in (folder, other)
    )
    assert len(found) == len(expected) == 18
    assert len(set(expected)) == 18  # it trains
    # Sums in another order: fp32 rounding, grown over eighteen steps of AdamW.
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.training
def test_two_processes_have_the_losses_of_one(one, mini_data, folder):
    train(config(mini_data, folder, 'two', 8, **OPTIONS), processes=2)
    assert_same_losses(one, folder / 'two')


@pytest.mark.training
def test_two_machines_have_the_losses_of_one_process(one, two_machines):
    assert_same_losses(one, two_machines)


@pytest.mark.training
def test_a_killed_run_resumes_to_the_same_weights(one, mini_data, folder):
    path = config(mini_data, folder, 'killed', 16, **OPTIONS)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / 'tools/train.py'), str(path)], env=environment(),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for_first_epoch(process, folder / 'killed')
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / 'killed/epoch_3.pth').exists()
    train(path, 1, '--resume')
    assert_same_weights(one / 'epoch_3.pth', folder / 'killed/epoch_3.pth')


@pytest.mark.training
def test_when_a_machine_dies_the_other_ends_and_both_resume_to_the_same_weights(
    two_machines, mini_data, folder
):
    path = config(mini_data, folder, 'died', 8, **OPTIONS)
    survivor, dying = start_machines(path)
    wait_for_first_epoch(dying, folder / 'died')
    for process in (*dying.children(recursive=True), dying):
        process.kill()
    # Its connections are closed, which ends the other's next step: in seconds on a machine that is
    # not busy, and long before the 600 s of the config.
    assert survivor.wait(timeout=300) != 0
    log = path.with_suffix('.0.log').read_text()
    assert 'Connection closed by peer' in log or 'Connection reset by peer' in log
    assert 'train.py FAILED' in log
    assert not (folder / 'died/epoch_3.pth').exists()
    finish(start_machines(path, '--resume'), path)
    assert_same_weights(two_machines / 'epoch_3.pth', folder / 'died/epoch_3.pth')
