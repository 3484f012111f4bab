"""What breaks a run from outside, such as a kill or a full disk, is said, and nothing is lost."""

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from conftest import ROOT
from mmengine import fileio
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.registry import DATASETS, DefaultScope
from PIL import Image
from torch.utils.data import DataLoader, Subset

from mmlaplace.engine import AtomicCheckpointHook, WholeFileBackend

TOY = ROOT / 'tests/tools/toy_run.py'
TORCHRUN = ROOT / 'tools/torchrun.sh'
MINI = {
    'mmpretrain': 'classification/laplacianformer/laplacianformer-micro_1xb32_mini.py',
    'mmdet': 'detection/laplacianformer/mask-rcnn_laplacianformer-micro_fpn_mini.py',
    'mmseg': 'segmentation/laplacianformer/laplacianformer-micro_upernet_1xb16_mini.py',
}
# As in our configs, but the next checkpoint replaces the last one, which is the hardest case.
HOOK = dict(Config.fromfile(ROOT / 'configs' / MINI['mmpretrain']).default_hooks.checkpoint)
HOOK['max_keep_ckpts'] = 1


def environment(**variables) -> dict:
    path = os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])
    variables.update(PYTHONPATH=path, OMP_NUM_THREADS='1', PYTHON=sys.executable)
    return {**os.environ, **variables}


def run_toy(folder: Path, what: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, str(TOY), str(folder), json.dumps(HOOK), what],
        env=environment(), capture_output=True, text=True, timeout=600,
    )  # fmt: skip


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
    result = run_toy(tmp_path, 'kill')
    assert (tmp_path / 'kills.json').is_file(), result.stderr[-3000:]
    kills = json.loads((tmp_path / 'kills.json').read_text())
    assert [kill for kill in kills if not kill['same_weights']] == []
    assert len(kills) > 10  # in two epochs the last, the best, and the last again, and their names
    assert not any(name.endswith('.partial') for kill in kills for name in kill['kept'])


@pytest.mark.slow
def test_a_full_disk_is_reported_and_leaves_the_last_checkpoint(tmp_path):
    result = run_toy(tmp_path, 'fill')
    assert result.returncode == 1
    assert f'{tmp_path}/epoch_2.pth could not be saved, 0.5 MiB: File too large' in result.stderr
    assert 'make room on that disk' in result.stderr
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
    assert [p.name for p in tmp_path.iterdir()] == ['epoch_1.pth']
    assert path.read_bytes() == b'whole'
    WholeFileBackend().put(b'new', path)
    assert [p.name for p in tmp_path.iterdir()] == ['epoch_1.pth']
    assert path.read_bytes() == b'new'


def test_whole_files_are_for_local_folders_alone(tmp_path):
    runner = SimpleNamespace(
        work_dir=str(tmp_path), logger=logging.getLogger('quiet'), message_hub=MessageHub('whole')
    )
    (tmp_path / 'epoch_3.pth.partial').touch()  # by a run that was killed
    (tmp_path / 'epoch_2.pth').touch()
    hook = AtomicCheckpointHook()
    hook.before_train(runner)
    assert hook.backend_args == dict(backend='whole')
    assert [path.name for path in tmp_path.iterdir()] == ['epoch_2.pth']


def test_the_best_so_far_is_removed_when_the_new_best_is_whole(tmp_path):
    def save_checkpoint(out_dir, filename, *args, **kwargs):
        there.append(sorted(path.name for path in tmp_path.iterdir()))
        (tmp_path / filename).touch()

    there = []
    runner = SimpleNamespace(
        work_dir=str(tmp_path), epoch=1, iter=8, logger=logging.getLogger('quiet'),
        message_hub=MessageHub('best'), save_checkpoint=save_checkpoint,
    )  # fmt: skip
    hook = AtomicCheckpointHook(save_best=['acc', 'loss'])
    hook.before_train(runner)
    hook.after_val_epoch(runner, dict(acc=1.0, loss=3.0))
    # Again in this epoch: the new file has the name of the old one.
    hook.after_val_epoch(runner, dict(acc=2.0, loss=3.0))
    assert {p.name for p in tmp_path.iterdir()} == {'best_acc_epoch_1.pth', 'best_loss_epoch_1.pth'}
    runner.epoch = 2
    hook.after_val_epoch(runner, dict(acc=3.0, loss=4.0))
    assert {p.name for p in tmp_path.iterdir()} == {'best_acc_epoch_2.pth', 'best_loss_epoch_1.pth'}
    assert there[-1] == ['best_acc_epoch_1.pth', 'best_loss_epoch_1.pth']


def of_four_epochs(tmp_path, save, **options):
    """What is there while each checkpoint is written, and at the end, by the hook's names."""

    def names():
        return sorted(path.name for path in tmp_path.iterdir() if path.name != 'last_checkpoint')

    def save_checkpoint(out_dir, filename, *args, **kwargs):
        there.append(names())
        save(Path(out_dir) / filename)

    there = []
    runner = SimpleNamespace(
        work_dir=str(tmp_path), iter=8, max_epochs=4, logger=logging.getLogger('quiet'),
        message_hub=MessageHub(f'kept {tmp_path}'), save_checkpoint=save_checkpoint,
    )  # fmt: skip
    hook = AtomicCheckpointHook(interval=1, **options)
    hook.before_train(runner)
    for runner.epoch in range(4):
        hook.after_train_epoch(runner)
        assert Path((tmp_path / 'last_checkpoint').read_text()).exists()
    return [*there, names()]


def save_folder(path):
    """As DeepSpeed does."""
    path.mkdir()
    (path / 'weights').touch()


@pytest.mark.parametrize('save', [Path.touch, save_folder])
def test_what_is_outdated_goes_when_the_new_checkpoint_is_whole(tmp_path, save):
    first, second, third, fourth = (f'epoch_{epoch}.pth' for epoch in range(1, 5))
    there = of_four_epochs(tmp_path, save, max_keep_ckpts=2)
    assert there == [[], [first], [first, second], [second, third], [third, fourth]]


def test_all_checkpoints_are_kept_by_default(tmp_path):
    assert len(of_four_epochs(tmp_path, Path.touch)[-1]) == 4


def test_the_backend_for_whole_files_has_a_name_for_configs(tmp_path):
    fileio.put(b'new', tmp_path / 'epoch_1.pth', backend_args=dict(backend='whole'))
    assert (tmp_path / 'epoch_1.pth').read_bytes() == b'new'


def test_an_image_of_more_pixels_than_pillow_opens_is_left_to_the_loader(tmp_path, monkeypatch):
    Image.new('L', (40, 30)).save(tmp_path / 'map.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 500)  # it refuses twice as many
    found = fileio.get(tmp_path / 'map.png', backend_args=dict(backend='whole'))
    assert found == (tmp_path / 'map.png').read_bytes()


# Two machines.


@pytest.fixture
def machines(tmp_path):
    """Starts two, both this one, that train without an end; kills what is left of them."""
    started = []

    def start(timeout: float) -> list:
        with socket.socket() as free:
            free.bind(('127.0.0.1', 0))
            port = str(free.getsockname()[1])
        toy = [str(TOY), str(tmp_path), json.dumps(HOOK), 'spread', '1000000', str(timeout)]
        for rank in '01':
            variables = dict(NNODES='2', NODE_RANK=rank, MASTER_ADDR='127.0.0.1', PORT=port)
            with open(tmp_path / f'{rank}.log', 'w') as log:
                started.append(
                    psutil.Popen(
                        ['bash', str(TORCHRUN), '1', *toy], env=environment(**variables),
                        stdout=log, stderr=subprocess.STDOUT,
                        cwd=tmp_path,  # where mmengine collects results
                    )
                )  # fmt: skip
        deadline = time.monotonic() + 600
        while not (tmp_path / 'last_checkpoint').exists():
            assert all(machine.poll() is None for machine in started), logs(tmp_path)
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return started

    yield start
    for machine in started:
        if machine.is_running():
            send_all(machine, signal.SIGKILL)


def logs(folder: Path) -> str:
    return '\n'.join(path.read_text()[-3000:] for path in sorted(folder.glob('?.log')))


def send_all(machine: psutil.Popen, number: int) -> None:
    for process in (*machine.children(recursive=True), machine):
        process.send_signal(number)


@pytest.mark.slow
def test_when_the_first_machine_dies_the_second_ends(machines, tmp_path):
    first, second = machines(timeout=600)
    send_all(first, signal.SIGKILL)
    # As the connections are closed: in seconds, unless the machine is busy.
    assert second.wait(timeout=300) != 0
    assert 'toy_run.py FAILED' in (tmp_path / '1.log').read_text(), logs(tmp_path)


@pytest.mark.slow
def test_when_a_machine_falls_silent_the_other_ends_after_the_timeout_of_the_config(
    machines, tmp_path
):
    first, second = machines(timeout=20)
    send_all(second, signal.SIGSTOP)  # its connections stay open, as when a cable is pulled
    assert first.wait(timeout=300) != 0  # torch's own timeout would be 1800 s
    log = (tmp_path / '0.log').read_text()
    assert '20000ms' in log or '20000 ms' in log, log[-3000:]
    assert 'toy_run.py FAILED' in log


@pytest.mark.parametrize('missing', ['NODE_RANK', 'MASTER_ADDR', 'PORT'])
@pytest.mark.parametrize(
    'command', [('dist_train.sh', 'config.py', '1'), ('dist_test.sh', 'config.py', 'last.pth', '1')]
)
def test_several_machines_must_agree_on_a_place_to_meet(command, missing):
    variables = dict(NNODES='2', NODE_RANK='0', MASTER_ADDR='127.0.0.1', PORT='29500')
    variables[missing] = ''
    result = subprocess.run(
        ['bash', str(ROOT / 'tools' / command[0]), *command[1:]], env=environment(**variables),
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert result.returncode == 2
    assert f'NNODES=2, but {missing} is not set' in result.stderr


# Ports.


@pytest.mark.slow
def test_two_jobs_on_one_machine_do_not_collide(tmp_path):
    (tmp_path / 'train.py').write_text(
        'import os, sys, time\n'
        'import torch.distributed as dist\n'
        "dist.init_process_group('gloo')\n"
        "open(os.path.join(sys.argv[1] + '.' + os.environ['RANK']), 'w').close()\n"
        # Until both jobs are there at the same time.
        "while len([n for n in os.listdir() if n.startswith('job_')]) < 4:\n"
        '    time.sleep(0.05)\n'
        'dist.barrier()\n'
    )
    for name in ('torchrun.sh', 'dist_train.sh'):
        shutil.copy(ROOT / 'tools' / name, tmp_path)
    env = environment()
    for name in ('PORT', 'NNODES', 'MASTER_PORT'):
        env.pop(name, None)
    jobs = []
    try:
        for i in '01':
            with open(tmp_path / f'{i}.log', 'w') as log:
                command = ['bash', 'dist_train.sh', f'job_{i}', '2']
                jobs.append(
                    subprocess.Popen(command, cwd=tmp_path, env=env, stdout=log, stderr=log)
                )
        deadline = time.monotonic() + 600
        while any(job.poll() is None for job in jobs):
            assert not any(job.poll() for job in jobs), logs(tmp_path)
            assert time.monotonic() < deadline, logs(tmp_path)
            time.sleep(0.05)
        assert [job.returncode for job in jobs] == [0, 0], logs(tmp_path)
    finally:
        for job in jobs:
            job.terminate()  # torchrun ends its processes


def slurm_port(tmp_path, job: int, **variables) -> str:
    """The port that a task of a Slurm job gets, from a stand-in for srun and for Python."""
    (tmp_path / 'srun').write_text(
        '#!/usr/bin/env bash\nwhile [[ "$1" == --* ]]; do\n'
        '    case "$1" in *=*) shift ;; *) shift 2 ;; esac\ndone\n'
        f'SLURM_JOB_ID={job} exec "$@"\n'
    )
    (tmp_path / 'python').write_text('#!/usr/bin/env bash\necho "$MASTER_PORT $*"\n')
    for name in ('srun', 'python'):
        (tmp_path / name).chmod(0o755)
    env = environment(PATH=f'{tmp_path}:{os.environ["PATH"]}', **variables)
    env.update(PYTHON='python')
    for name in {'PORT', 'MASTER_PORT', 'SLURM_JOB_ID'} - set(variables):
        env.pop(name, None)
    result = subprocess.run(
        ['bash', str(ROOT / 'tools/slurm_train.sh'), 'gpu', 'job', 'config.py', 'work', '--amp'],
        env=env, capture_output=True, text=True,
    )  # fmt: skip
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


# Images.


def mini_copy(toolbox: str, mini_data: Path, tmp_path: Path, kind: str) -> tuple:
    """A data set, and the paths of its first images, or of their masks."""
    cfg = Config.fromfile(ROOT / 'configs' / MINI[toolbox])
    name = dict(mmpretrain='classification', mmdet='detection', mmseg='segmentation')[toolbox]
    shutil.copytree(mini_data / name, tmp_path / name)
    dataset_cfg = dict(cfg.train_dataloader.dataset, data_root=str(tmp_path / name))
    with DefaultScope.overwrite_default_scope(toolbox):
        import_module(f'{toolbox}.utils').register_all_modules(init_default_scope=False)
        dataset = DATASETS.build(dataset_cfg)
    return dataset, [Path(dataset.get_data_info(i)[f'{kind}_path']) for i in range(4)]


@pytest.mark.parametrize(
    'toolbox, kind',
    [('mmpretrain', 'img'), ('mmdet', 'img'), ('mmseg', 'img'), ('mmseg', 'seg_map')],
)
def test_a_file_that_cannot_be_read_is_named(toolbox, kind, mini_data, tmp_path):
    dataset, paths = mini_copy(toolbox, mini_data, tmp_path, kind)
    whole = paths[0].read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    damages = (b'', whole[: len(whole) // 2], b'<html>404</html>', bytes(flipped))
    for i, (path, content) in enumerate(zip(paths, damages)):
        path.write_bytes(content)
        with pytest.raises((OSError, AssertionError)) as caught:
            dataset[i]
        assert str(path) in str(caught.value), content[:20]
    loader = DataLoader(Subset(dataset, [0]), num_workers=1, collate_fn=list)
    with pytest.raises((OSError, AssertionError), match=str(paths[0])):  # from another process
        next(iter(loader))
