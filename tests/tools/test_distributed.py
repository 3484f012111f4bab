"""Trainings by several processes or machines, and of one that is killed."""

import json
import re
import signal
from pathlib import Path

import pytest
import torch
from conftest import ROOT, micro_config, run_script
from mmengine.config import Config
from processes import PATIENCE, run, signal_all, start_machines, wait_until

pytestmark = pytest.mark.training
MINI = micro_config('laplacianformer')
TRAIN, DIST_TRAIN = ROOT / 'tools/train.py', ROOT / 'tools/dist_train.sh'


def config(mini_data, folder, name: str, batch_size: int) -> Path:
    cfg = Config.fromfile(MINI)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.dataset.data_root = str(mini_data / 'classification')
        loader.update(num_workers=0, persistent_workers=False)
    cfg.train_dataloader.update(batch_size=batch_size)
    cfg.train_dataloader.dataset.update(indices=96, pipeline=cfg.val_dataloader.dataset.pipeline)
    cfg.val_dataloader.dataset.indices = 8
    cfg.custom_imports = dict(imports=['mmlaplace', 'global_loss'])
    cfg.custom_hooks = [dict(type='GlobalLossHook', out=str(folder / f'{name}.json'))]
    # No device_ids, which the Runner sets for GPUs.
    cfg.model_wrapper_cfg = dict(type='MMDistributedDataParallel', device_ids=None)
    cfg.env_cfg.dist_cfg.backend = 'gloo'
    cfg.work_dir = str(folder / name)
    cfg.train_cfg.update(max_epochs=3, val_interval=3)
    path = folder / f'{name}.py'
    cfg.dump(path)
    return path


def train(path: Path, processes: int) -> None:
    if processes == 1:
        result = run_script(TRAIN, path)
    else:
        result = run(['bash', DIST_TRAIN, path, processes], cwd=path.parent)
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    assert result.stdout.count('\nTrained: accuracy/top1 ') == 1  # by the first process alone
    assert 'System environment' not in result.stdout


def train_on_machines(path: Path, *options) -> None:
    log = path.with_suffix('')
    for rank, machine in enumerate(start_machines([DIST_TRAIN, path, 1, *options], log)):
        assert machine.wait(timeout=PATIENCE) == 0, Path(f'{log}.{rank}.log').read_text()[-3000:]


def weights(folder: Path) -> dict:
    found = torch.load(folder / 'epoch_3.pth', map_location='cpu', weights_only=False)
    return {name: value.tolist() for name, value in found['state_dict'].items()}


def test_two_processes_have_the_losses_of_one(mini_data, tmp_path):
    losses = []
    for name, batch_size, processes in (('one', 16, 1), ('two', 8, 2)):
        train(config(mini_data, tmp_path, name, batch_size), processes=processes)
        losses.append(json.loads((tmp_path / f'{name}.json').read_text()))
    assert len(losses[0]) == len(losses[1]) == len(set(losses[0])) == 18  # it trains
    # Sums in another order: fp32 rounding, grown over eighteen steps of AdamW.
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.thorough
def test_two_machines_resume_where_one_died_as_if_unbroken(mini_data, tmp_path):
    train_on_machines(config(mini_data, tmp_path, 'whole', 8))
    path, work_dir = config(mini_data, tmp_path, 'died', 8), tmp_path / 'died'
    survivor, dying = start_machines([DIST_TRAIN, path, 1], work_dir)
    wait_until((work_dir / 'last_checkpoint').is_file, [dying])
    signal_all(dying, signal.SIGKILL)
    # Its connections are closed, which ends the other's next step, and not the 600 s of the config:
    # the log has the reason.
    assert survivor.wait(timeout=PATIENCE) != 0
    log = Path(f'{work_dir}.0.log').read_text()
    assert re.search('Connection (closed|reset) by peer', log) and 'train.py FAILED' in log
    assert not (work_dir / 'epoch_3.pth').exists()
    train_on_machines(path, '--resume')
    assert weights(work_dir) == weights(tmp_path / 'whole')  # the same operations in order
