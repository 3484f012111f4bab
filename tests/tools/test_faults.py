"""What breaks a run from outside, such as a kill or a full disk, is said, and nothing is lost."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT
from mmengine import fileio
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image
from processes import environment, run, signal_all, start_machines, wait_until
from torch.utils.data import DataLoader, Subset

from mmlaplace.engine import AtomicCheckpointHook, WholeFileBackend

TOY, TORCHRUN = ROOT / 'tests/tools/toy_run.py', ROOT / 'tools/torchrun.sh'
MINI = {
    'mmpretrain': 'classification/laplacianformer/laplacianformer-micro_1xb32_mini.py',
    'mmdet': 'detection/laplacianformer/mask-rcnn_laplacianformer-micro_fpn_mini.py',
    'mmseg': 'segmentation/laplacianformer/laplacianformer-micro_upernet_1xb16_mini.py',
}
# As in our configs, but the next checkpoint replaces the last one, which is the hardest case.
HOOK = dict(Config.fromfile(ROOT / 'configs' / MINI['mmpretrain']).default_hooks.checkpoint)
HOOK['max_keep_ckpts'] = 1
CONFIGS = sorted(path for path in ROOT.glob('configs/*/*/*.py') if '_base_' not in path.parts)


@pytest.mark.sampled(12)
@pytest.mark.parametrize('config', CONFIGS, ids=lambda p: p.stem)
def test_every_config_saves_whole_files_and_names_what_it_cannot_read(config):
    cfg = Config.fromfile(config)
    assert cfg.default_hooks.checkpoint.type == 'AtomicCheckpointHook'
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        for transform in loader.dataset.pipeline:
            masks = transform.type == 'LoadAnnotations' and cfg.default_scope == 'mmseg'
            if transform.type == 'LoadImageFromFile' or masks:
                assert transform.backend_args == dict(backend='whole')


@pytest.mark.slow
def test_a_kill_at_any_moment_of_saving_leaves_a_whole_checkpoint_to_resume_from(tmp_path):
    result = run([sys.executable, TOY, tmp_path, json.dumps(HOOK), 'kill'])
    assert (tmp_path / 'kills.json').is_file(), result.stderr[-3000:]
    kills = json.loads((tmp_path / 'kills.json').read_text())
    assert [kill for kill in kills if not kill['same_weights']] == []
    assert len(kills) > 10  # in two epochs the last, the best, and the last again, and their names
    assert not any(name.endswith('.partial') for kill in kills for name in kill['kept'])


@pytest.mark.slow
def test_a_full_disk_is_reported_and_leaves_the_last_checkpoint(tmp_path):
    result = run([sys.executable, TOY, tmp_path, json.dumps(HOOK), 'fill'])
    assert result.returncode == 1
    assert f'{tmp_path}/epoch_2.pth could not be saved, 0.5 MiB: File too large' in result.stderr
    assert '--resume' in result.stderr
    last = Path((tmp_path / 'last_checkpoint').read_text())
    assert last == tmp_path / 'epoch_1.pth'
    assert torch.load(last, weights_only=False)['meta']['epoch'] == 1
    assert not list(tmp_path.glob('*epoch_2*'))


@pytest.mark.skipif(not Path('/dev/full').exists(), reason='no /dev/full here')
def test_a_file_that_does_not_fit_keeps_what_it_replaces(tmp_path):
    path = tmp_path / 'epoch_1.pth'
    path.write_bytes(b'whole')
    (tmp_path / 'epoch_1.pth.partial').symlink_to('/dev/full')
    with pytest.raises(OSError, match='epoch_1.pth could not be saved, 0.0 MiB: No space left'):
        WholeFileBackend().put(b'new', path)
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b'whole'
    fileio.put(b'new', path, backend_args=dict(backend='whole'))  # by its name in configs
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b'new'


def runner_of(tmp_path, save=Path.touch, **options) -> tuple:
    """A runner whose checkpoints are written by ``save``; what was there before each of them."""

    def save_checkpoint(out_dir, filename, *args, **kwargs):
        there.append(names(tmp_path))
        save(Path(out_dir) / filename)

    there = []
    return there, SimpleNamespace(
        work_dir=str(tmp_path), epoch=1, iter=8, max_epochs=4, logger=logging.getLogger('quiet'),
        message_hub=MessageHub(f'of {tmp_path}'), save_checkpoint=save_checkpoint,
    )  # fmt: skip


def names(folder) -> list:
    return sorted(path.name for path in folder.iterdir() if path.name != 'last_checkpoint')


def test_what_a_killed_run_left_half_written_goes(tmp_path):
    (tmp_path / 'epoch_3.pth.partial').touch()
    (tmp_path / 'epoch_2.pth').touch()
    hook = AtomicCheckpointHook()
    hook.before_train(runner_of(tmp_path)[1])
    assert hook.backend_args == dict(backend='whole')
    assert names(tmp_path) == ['epoch_2.pth']


def test_the_best_so_far_is_removed_when_the_new_best_is_whole(tmp_path):
    there, runner = runner_of(tmp_path)
    hook = AtomicCheckpointHook(save_best=['acc', 'loss'])
    hook.before_train(runner)
    hook.after_val_epoch(runner, dict(acc=1.0, loss=3.0))
    # Again in this epoch: the new file has the name of the old one.
    hook.after_val_epoch(runner, dict(acc=2.0, loss=3.0))
    assert names(tmp_path) == ['best_acc_epoch_1.pth', 'best_loss_epoch_1.pth']
    runner.epoch = 2
    hook.after_val_epoch(runner, dict(acc=3.0, loss=4.0))
    assert names(tmp_path) == ['best_acc_epoch_2.pth', 'best_loss_epoch_1.pth']
    assert there[-1] == ['best_acc_epoch_1.pth', 'best_loss_epoch_1.pth']


def save_folder(path):
    """As DeepSpeed does."""
    path.mkdir()
    (path / 'weights').touch()


@pytest.mark.parametrize('save', [Path.touch, save_folder])
@pytest.mark.parametrize('kept', [2, 4])
def test_what_is_outdated_goes_when_the_new_checkpoint_is_whole(tmp_path, save, kept):
    there, runner = runner_of(tmp_path, save)
    # All are kept by default.
    hook = AtomicCheckpointHook(interval=1, **dict(max_keep_ckpts=kept) if kept < 4 else {})
    hook.before_train(runner)
    for runner.epoch in range(4):
        hook.after_train_epoch(runner)
        assert Path((tmp_path / 'last_checkpoint').read_text()).exists()
    files = [f'epoch_{epoch}.pth' for epoch in range(1, 5)]
    assert [*there, names(tmp_path)] == [files[max(0, n - kept) : n] for n in range(5)]


def test_an_image_of_more_pixels_than_pillow_opens_is_left_to_the_loader(tmp_path, monkeypatch):
    Image.new('L', (40, 30)).save(tmp_path / 'map.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 500)  # it refuses twice as many
    found = fileio.get(tmp_path / 'map.png', backend_args=dict(backend='whole'))
    assert found == (tmp_path / 'map.png').read_bytes()


# Two machines, and ports.


def logs(folder: Path) -> str:
    return '\n'.join(path.read_text()[-3000:] for path in sorted(folder.glob('*.log')))


@pytest.mark.slow
@pytest.mark.parametrize(
    ('number', 'ill', 'timeout'), [(signal.SIGKILL, 0, 600), (signal.SIGSTOP, 1, 20)]
)
def test_when_a_machine_dies_or_falls_silent_the_other_ends(number, ill, timeout, tmp_path):
    """After the timeout of the config, where connections stay open, as when a cable is pulled."""
    toy = [TOY, tmp_path, json.dumps(HOOK), 'spread', 1_000_000, timeout]
    machines = start_machines([TORCHRUN, 1, *toy], tmp_path / 'machine')
    try:
        last = tmp_path / 'last_checkpoint'
        wait_until(last.exists, machines, lambda: logs(tmp_path))
        signal_all(machines[ill], number)
        assert machines[1 - ill].wait(timeout=300) != 0  # torch's own timeout would be 1800 s
        log = (tmp_path / f'machine.{1 - ill}.log').read_text()
        assert 'toy_run.py FAILED' in log, logs(tmp_path)
        assert ill == 0 or '20000ms' in log or '20000 ms' in log, log[-3000:]
    finally:
        for machine in machines:
            if machine.is_running():
                signal_all(machine, signal.SIGKILL)


@pytest.mark.parametrize('missing', ['NODE_RANK', 'MASTER_ADDR', 'PORT'])
@pytest.mark.parametrize('command', ['dist_train.sh config.py 1', 'dist_test.sh config.py a.pth 1'])
def test_several_machines_must_agree_on_a_place_to_meet(command, missing):
    variables = dict(NNODES='2', NODE_RANK='0', MASTER_ADDR='127.0.0.1', PORT='29500')
    variables[missing] = ''
    result = run(['bash', *command.split()], env=environment(**variables), cwd=ROOT / 'tools')
    assert result.returncode == 2
    assert f'NNODES=2, but {missing} is not set' in result.stderr


MEETING = """
import os, sys, time
import torch.distributed as dist
dist.init_process_group('gloo')
open(sys.argv[1] + '.' + os.environ['RANK'], 'w').close()
while len([n for n in os.listdir() if n.startswith('job_')]) < 4:  # both jobs are there
    time.sleep(0.05)
dist.barrier()
"""


@pytest.mark.slow
def test_two_jobs_on_one_machine_do_not_collide(tmp_path):
    (tmp_path / 'train.py').write_text(MEETING)
    for name in ('torchrun.sh', 'dist_train.sh'):
        shutil.copy(ROOT / 'tools' / name, tmp_path)
    env = environment()
    for name in ('PORT', 'NNODES', 'MASTER_PORT'):
        env.pop(name, None)
    jobs = []
    try:
        for i in '01':
            command = ['bash', 'dist_train.sh', f'job_{i}', '2']
            with open(tmp_path / f'{i}.log', 'w') as log:
                job = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log)
            jobs.append(job)
        assert [job.wait(timeout=600) for job in jobs] == [0, 0], logs(tmp_path)
    finally:
        for job in jobs:
            job.terminate()  # torchrun ends its processes


SRUN = """while [[ "$1" == --* ]]; do
    case "$1" in *=*) shift ;; *) shift 2 ;; esac
done
exec "$@"
"""


def slurm_port(tmp_path, job: int, **variables) -> str:
    """The port that a task of a Slurm job gets, from a stand-in for srun and for Python."""
    for name, text in (('srun', SRUN), ('python', 'echo "$MASTER_PORT $*"\n')):
        (tmp_path / name).write_text(f'#!/usr/bin/env bash\n{text}')
        (tmp_path / name).chmod(0o755)
    (tmp_path / 'srun').write_text(
        (tmp_path / 'srun').read_text().replace('exec', f'SLURM_JOB_ID={job} exec')
    )
    env = environment(PATH=f'{tmp_path}:{os.environ["PATH"]}', **variables)
    env.update(PYTHON='python')
    for name in {'PORT', 'MASTER_PORT', 'SLURM_JOB_ID'} - set(variables):
        env.pop(name, None)
    train = ROOT / 'tools/slurm_train.sh'
    result = run(['bash', train, 'gpu', 'job', 'config.py', 'work', '--amp'], env=env)
    assert result.returncode == 0, result.stderr
    port, _, arguments = result.stdout.strip().partition(' ')
    assert arguments.endswith('train.py config.py --work-dir work --launcher slurm --amp')
    return port


def test_a_slurm_job_takes_its_port_from_its_number(tmp_path):
    ports = [int(slurm_port(tmp_path, job)) for job in (41, 42, 2**31)]
    assert len(set(ports)) == 3
    # Below the ports that Linux gives to connections, from 32768 on.
    assert all(1024 < port < 32768 for port in ports)
    assert slurm_port(tmp_path, 41, PORT='29511') == '29511'


@pytest.mark.parametrize(
    ('toolbox', 'kind'),
    [('mmpretrain', 'img'), ('mmdet', 'img'), ('mmseg', 'img'), ('mmseg', 'seg_map')],
)
def test_a_file_that_cannot_be_read_is_named(toolbox, kind, mini_data, tmp_path):
    cfg = Config.fromfile(ROOT / 'configs' / MINI[toolbox])
    name = dict(mmpretrain='classification', mmdet='detection', mmseg='segmentation')[toolbox]
    shutil.copytree(mini_data / name, tmp_path / name)
    dataset_cfg = dict(cfg.train_dataloader.dataset, data_root=str(tmp_path / name))
    with DefaultScope.overwrite_default_scope(toolbox):
        import_module(f'{toolbox}.utils').register_all_modules(init_default_scope=False)
        dataset = DATASETS.build(dataset_cfg)
    paths = [Path(dataset.get_data_info(i)[f'{kind}_path']) for i in range(4)]
    whole = paths[0].read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    damages = (b'', whole[: len(whole) // 2], b'<html>404</html>', bytes(flipped))
    for i, (path, content) in enumerate(zip(paths, damages)):
        path.write_bytes(content)
        with pytest.raises((OSError, AssertionError), match=str(path)):
            dataset[i]
    loader = DataLoader(Subset(dataset, [0]), num_workers=1, collate_fn=list)
    with pytest.raises((OSError, AssertionError), match=str(paths[0])):  # from another process
        next(iter(loader))
