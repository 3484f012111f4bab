"""No option of a config makes our tools run code of a checkpoint, and a run can be resumed."""

import pickle
import re
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn
from conftest import ROOT
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModule
from mmengine.registry import MODELS, PARAM_SCHEDULERS
from mmengine.runner import CheckpointLoader, load_checkpoint
from mmengine.runner import checkpoint as mmengine_checkpoints
from test_hostile_checkpoints import hostile

import mmlaplace.models  # noqa: F401  (registers)
from mmlaplace.checkpoints import UnsafeCheckpointError, refuse_code
from mmlaplace.commands.command_line import ToolParser
from mmlaplace.commands.toolbox_scripts import run_toolbox_script


@pytest.fixture
def their_loaders(monkeypatch):
    """mmengine's own loaders, as before any of our tools ran in this process."""
    own = {'': mmengine_checkpoints.load_from_local}
    monkeypatch.setattr(CheckpointLoader, '_schemes', {**CheckpointLoader._schemes, **own})
    monkeypatch.setattr(mmengine_checkpoints, 'load_from_http', None)


@pytest.fixture
def refusing(their_loaders):
    refuse_code()


class Teacher(nn.Module):
    """As mmdet's distillers, which load a teacher when they are built."""

    def __init__(self, teacher_ckpt) -> None:
        super().__init__()
        load_checkpoint(self, teacher_ckpt, map_location='cpu')


def from_file(file, **options) -> dict:
    return dict(type='Pretrained', checkpoint=file, **options)


ROUTES = {
    'load_from': lambda file: load_checkpoint(nn.Linear(2, 2), file),
    'the model': lambda file: BaseModule(from_file(file)).init_weights(),
    'the backbone': lambda file: MODELS.build(
        dict(type='LaplacianFormer', arch='micro', init_cfg=from_file(file))
    ).init_weights(),
    'a part of the model': lambda file: BaseModule(from_file(file, prefix='neck.')).init_weights(),
    'a teacher': Teacher,
    '~': lambda file: load_checkpoint(nn.Linear(2, 2), f'~/{Path(file).name}'),
    'torchvision': lambda file: load_checkpoint(nn.Linear(2, 2), 'torchvision://resnet'),
}


@pytest.mark.parametrize('route', ROUTES)
def test_no_way_to_name_a_checkpoint_runs_its_code(route, refusing, tmp_path, monkeypatch):
    hostile(tmp_path / 'file.pth')
    monkeypatch.setenv('HOME', str(tmp_path))
    names = dict(resnet=str(tmp_path / 'file.pth'))  # an address in mmengine
    monkeypatch.setattr(mmengine_checkpoints, 'get_torchvision_models', lambda: names)
    with pytest.raises(UnsafeCheckpointError, match=r'file\.pth asks for .*save its weights alone'):
        ROUTES[route](str(tmp_path / 'file.pth'))
    assert not (tmp_path / 'ran').exists()


@pytest.mark.parametrize(
    'start', [lambda: ToolParser(None), lambda: run_toolbox_script('train.py', '')]
)
def test_each_tool_begins_with_it(start, their_loaders, tmp_path, monkeypatch):
    hostile(tmp_path / 'file.pth')
    monkeypatch.setattr(sys, 'argv', ['train.py', '--help'])
    with suppress(SystemExit):
        start()
    with pytest.raises(UnsafeCheckpointError):
        load_checkpoint(nn.Linear(2, 2), str(tmp_path / 'file.pth'))


def test_no_tool_begins_otherwise():
    for path in (path for folder in ('tools', 'demo') for path in (ROOT / folder).rglob('*.py')):
        text = path.read_text(encoding='utf-8')
        if path.name == 'build_onnxruntime_ops.py':
            continue  # a compiler's
        # Programs for other machines import nothing of ours.
        if "'__main__'" in text and re.search('^(from|import) mmlaplace', text, re.MULTILINE):
            assert re.search(r'\b(ToolParser|parser_for|run_toolbox_script)\(', text), path


SCHEDULES = [
    dict(type='MultiStepLR', milestones=[8, 11]), dict(type='OneCycleLR', eta_max=0.1,
    total_steps=9), dict(type='CosineAnnealingLR', T_max=3),
]  # fmt: skip


def test_all_that_a_run_writes_is_read_as_it_was(refusing, tmp_path, monkeypatch):
    # So that texts can be compared, which tell types, too.
    monkeypatch.setattr(HistoryBuffer, '__repr__', lambda b: f'{b.data} {b.statistics("mean")}')
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(2))], 0.1)
    schedulers = [PARAM_SCHEDULERS.build(dict(s, optimizer=optimizer)) for s in SCHEDULES]
    optimizer.param_groups[0]['params'][0].sum().backward()
    for step in (optimizer, *schedulers):
        step.step()
    content = dict(
        state_dict=dict(weight=torch.ones(2)),
        optimizer=optimizer.state_dict(),
        param_schedulers=[scheduler.state_dict() for scheduler in schedulers],
        message_hub=dict(
            log_scalars=dict(loss=HistoryBuffer([1.0, 2.0], [1, 3])),
            runtime_info=dict(best=np.float64(3), array=np.eye(2), name=b'a', out=tmp_path),
        ),
        meta=dict(epoch=3, dataset_meta=dict(classes={'a'}, at=np.array(['a']))),
    )
    torch.save(content, tmp_path / 'a.pth')
    read = CheckpointLoader.load_checkpoint(str(tmp_path / 'a.pth'), 'cpu')
    # Functions are left out. A schedule has its own, from the config.
    assert 'function' in str(content['param_schedulers'][1].pop('anneal_func'))
    assert repr(read) == repr(content)
    for scheduler, state in zip(schedulers, read['param_schedulers']):
        scheduler.load_state_dict(state)
        scheduler.step()
    torch.save(read, tmp_path / 'again.pth')  # as the next epoch does
    again = CheckpointLoader.load_checkpoint(str(tmp_path / 'again.pth'), 'cpu')
    assert repr(again) == repr(content)


def test_a_text_that_mmengine_would_run_is_left_out(refusing, tmp_path):
    """``Runner.resume`` takes ``config`` of ``meta`` for a config in Python."""
    meta = dict(epoch=1, config='raise SystemExit', cfg='raise SystemExit')
    torch.save(dict(state_dict={}, meta=meta), tmp_path / 'a.pth')
    read = CheckpointLoader.load_checkpoint(str(tmp_path / 'a.pth'), 'cpu')
    assert read['meta'] == dict(epoch=1)


@pytest.mark.parametrize(('pickled', 'message'), [
    (b'cmmengine.logging.history_buffer\nHistoryBuffer\n', '__setstate__'),
    (b'ccollections\nCounter\n', 'sets attributes of Counter'),
    (b'cnumpy\nndarray\n', '__setstate__'),
    (b'ccollections\ndeque\n', "immutable type 'collections.deque'"),
])  # fmt: skip
def test_a_pickle_cannot_change_a_class(pickled, message, refusing, tmp_path):
    """A state of (None, dict) sets attributes of what it is given to."""
    (tmp_path / 'a.pth').write_bytes(b'\x80\x02' + pickled + b'N}U\x03popK\x01s\x86b.')
    before = dict(vars(HistoryBuffer))
    with pytest.raises((ValueError, pickle.UnpicklingError), match=message):
        CheckpointLoader.load_checkpoint(str(tmp_path / 'a.pth'), 'cpu')
    assert vars(HistoryBuffer) == before
