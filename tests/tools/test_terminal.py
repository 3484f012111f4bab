"""The terminal of a run: without noise of other packages, and with its scores at the end."""

import logging
import sys
import warnings
from pathlib import Path
from unittest import mock

import mmengine.logging
import pytest
from conftest import ROOT
from mmengine.config import Config
from mmengine.logging import HistoryBuffer, MessageHub, MMLogger

from mmlaplace.commands import terminal


def test_noise_is_in_the_log_file_alone(tmp_path, capsys):
    """The texts are those of mmengine's Runner and of the toolboxes' forks, in full."""
    noise = (
        f'\n{"-" * 60}\nSystem environment:\n    sys.platform: linux',
        'Config:\nmodel = dict()',
        'Hooks will be executed in the following order:\nbefore_run:',
        'paramwise_options -- head.fc.bias:weight_decay=0.0',
        *terminal.ALARMS,
    )
    terminal.keep_noise_from_terminal()
    logger = MMLogger(f'of {tmp_path}', log_file=str(tmp_path / 'a.log'))
    for level, message in zip([logging.INFO] * 4 + [logging.WARNING] * 9, noise):
        logger.log(level, message)
    logger.warning('the Config:\n is not at the start')
    shown, kept = capsys.readouterr().out, (tmp_path / 'a.log').read_text()
    assert all(message in kept and message not in shown for message in noise)
    assert f'environment, config and hooks: {tmp_path / "a.log"}' in shown
    assert 'is not at the start' in shown and 'is not at the start' in kept


def test_of_printed_lines_and_warnings_only_known_noise_is_left_out(capsys):
    terminal.keep_noise_from_terminal()
    for message in (*terminal.ONEDL, 'Could not import another'):
        mmengine.logging.print_log(message, level=logging.DEBUG)
    assert capsys.readouterr().out == 'Could not import another\n'
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter('always')
        terminal.keep_noise_from_terminal.__wrapped__()
        for message in (*terminal.WARNINGS, 'pin_memory is slow'):
            warnings.warn(message, stacklevel=1)
    assert [str(warning.message) for warning in shown] == ['pin_memory is slow']


@pytest.fixture
def hub(tmp_path):
    hub = MessageHub.get_instance(f'of {tmp_path}')
    yield hub
    MessageHub._instance_dict.pop(hub.instance_name)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    for name in ('tools', 'demo'):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)


def words(capsys, script: str, cfg: Config, config: str = 'c.py') -> list:
    terminal.last_words(script, Path('tools').absolute(), config, cfg)
    return capsys.readouterr().out.splitlines()


MODEL = dict(backbone=dict(type='LaplacianFormer'))
CFG = Config(dict(model=MODEL, load_from='w.pth', work_dir='d'))


@pytest.mark.usefixtures('clone')
def test_a_training_ends_with_its_scores_and_the_next_commands(hub, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(sys, 'argv', ['train.py', 'c.py'])
    assert words(capsys, 'train', CFG) == ['', 'Trained: without scores.']
    for name in ('train/loss', 'val/data_time', 'val/accuracy/top1', 'val/accuracy/top5'):
        hub.log_scalars[name] = HistoryBuffer([90.0, 97.349], [1, 1])
    hub.update_info('last_ckpt', str(tmp_path / 'epoch_2.pth'))
    _, said, *commands = words(capsys, 'train', CFG)
    assert said == 'Trained: accuracy/top1 97.35. Checkpoint: epoch_2.pth'
    hub.update_info('best_ckpt', str(tmp_path / 'best.pth'))
    hub.update_info('best_score', 98.1)
    _, said, *commands = words(capsys, 'train', CFG)
    assert said.endswith('97.35. Best checkpoint (98.1): best.pth')
    assert [line.split(' ', 2)[2] for line in commands] == [
        'tools/test.py c.py best.pth',
        'demo/image_demo.py IMAGE c.py best.pth',
        'tools/deployment/export.py c.py best.pth --verify',
    ]
    with mock.patch.object(terminal, 'is_main_process', return_value=False):
        assert words(capsys, 'train', CFG) == []


@pytest.mark.usefixtures('clone')
def test_a_test_goes_on_with_the_options_of_its_command_line(hub, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['test.py', 'c.py', 'w.pth', '--cfg-options', 'a=1'])
    hub.log_scalars['test/own'] = HistoryBuffer([0.5], [1])
    _, said, *commands = words(capsys, 'test', CFG, 'configs/c.py')
    assert said == 'Tested: own 0.5. Checkpoint: w.pth'
    ends = [line.split(' ', 3)[3] for line in commands]
    assert ends == ['IMAGE d/c.py w.pth', 'd/c.py w.pth --verify']
    sequences = Config(dict(CFG, model=dict(backbone=dict(type='SequenceEncoder'))))
    assert words(capsys, 'test', sequences)[2:] == []
