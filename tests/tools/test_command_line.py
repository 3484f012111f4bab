"""What the commands share keeps files, names what is wrong, runs scripts, knows the toolboxes."""

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from unittest import mock

import pytest
import torch
from conftest import ROOT

from mmlaplace import toolboxes
from mmlaplace.commands import command_line
from mmlaplace.commands.command_line import ToolParser, load_or_exit, write_json
from mmlaplace.dependencies import TESTED
from mmlaplace.model_zoo import read_models
from mmlaplace.toolboxes import TOOLBOXES, require_toolbox, toolbox_script


def parser() -> ToolParser:
    parser = ToolParser('What it does.')
    parser.add_trained_model('classifier')
    parser.add_output('--out')
    return parser


def test_a_file_that_is_there_is_kept_unless_forced_and_a_folder_always(tmp_path, capsys):
    kept = tmp_path / 'kept.json'
    kept.touch()
    words = ['config.py', 'a.pth', '--out', str(kept)]
    with pytest.raises(SystemExit, match='2'):
        parser().parse_args(words)
    assert f'{kept} is there already; --force replaces it' in capsys.readouterr().err
    args = parser().parse_args([*words, '--force'])
    assert (args.config, args.checkpoint, args.out) == ('config.py', 'a.pth', kept)
    with pytest.raises(SystemExit, match='2'):
        parser().parse_args(['config.py', 'a.pth', '--out', str(tmp_path), '--force'])
    assert f'{tmp_path} is a folder' in capsys.readouterr().err


def test_json_makes_its_folder_and_leaves_the_file_where_it_cannot_be_written(
    tmp_path, monkeypatch
):
    path = tmp_path / 'a/b.json'
    write_json(path, dict(x=[1, None]))
    assert json.loads(path.read_text()) == dict(x=[1, None])
    assert list(path.parent.iterdir()) == [path]

    full = mock.Mock(side_effect=OSError('No space left on device'))
    monkeypatch.setattr(command_line.os, 'replace', full)
    with pytest.raises(OSError, match='No space'):
        write_json(path, dict(x=2))
    assert json.loads(path.read_text()) == dict(x=[1, None])


@pytest.mark.parametrize(
    ('read', 'message'),
    [
        (lambda path: load_or_exit(torch.nn.Linear(2, 2), path), '.*none'),
        (command_line.read_config, 'there is no config .*none; ch'),
    ],
)
def test_a_file_that_is_not_there_ends_the_tool_with_a_message(
    read, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, 'argv', ['tools/visualization/vis_cam.py'])
    with pytest.raises(SystemExit, match=rf'^vis_cam\.py: error: {message}'):
        read(str(tmp_path / 'none'))


# Scripts that run in processes which have their imports.

CALLER = """
from pathlib import Path
from mmlaplace.commands.script_runs import import_first, run_script

if __name__ == '__main__':
    import_first('mmlaplace.commands', 'wave', 'no_such_module')
    for argument in ('fine', 'wrong', 'broken'):
        script = Path('scripts/script.py')
        print(run_script(script, [argument, '2'], Path('logs', argument, 'log.txt'), threads=1))
"""
SCRIPT = """
import sys
had_it = 'wave' in sys.modules
import beside
if __name__ == '__main__':
    print(sys.argv[1:], had_it, beside.VALUE, sys.modules['torch'].get_num_threads())
    print('to the other stream', file=sys.stderr)
    if sys.argv[1] == 'wrong':
        sys.exit('wrong argument')
    if sys.argv[1] == 'broken':
        print('19\\n' * 20)
        raise RuntimeError('it broke')
"""


def test_scripts_have_their_arguments_imports_and_logs(tmp_path):
    (tmp_path / 'scripts').mkdir()
    for name, text in (('beside', 'VALUE = 7\n'), ('script', SCRIPT), ('../caller', CALLER)):
        (tmp_path / f'scripts/{name}.py').write_text(text)
    command = [sys.executable, 'caller.py']
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    fine, wrong, broken = map(eval, result.stdout.splitlines())
    assert fine == (0, "['fine', '2'] True 7 1\nto the other stream")
    assert wrong[0] == 1 and wrong[1].endswith('to the other stream\nwrong argument')
    assert broken[0] == 1 and broken[1].endswith('RuntimeError: it broke')
    assert len(broken[1].splitlines()) == 15
    assert 'broken' in (tmp_path / 'logs/broken/log.txt').read_text().splitlines()[0]


# The table of the toolboxes.


def test_the_toolboxes_have_the_tasks_figures_and_versions_of_the_repository():
    folders = {path.name for path in (ROOT / 'configs').iterdir() if path.is_dir()}
    folders -= {'_base_', 'lra', 'tables'}  # which belong to no toolbox
    assert set(TOOLBOXES) == folders == {model.task for model in read_models()}
    for model in read_models():
        figures = set(model.metadata['Published']) - {'Parameters', 'MACs'}
        assert figures <= set(TOOLBOXES[model.task].metrics)
    texts = [(ROOT / f'requirements/{name}.txt').read_text() for name in ('openmmlab', 'onedl')]
    pinned = {name: v for text in texts for name, v in re.findall(r'^([\w-]+)==(\S+)$', text, re.M)}
    for toolbox in TOOLBOXES.values():
        assert all(newest == pinned[name] for name, (_, newest) in toolbox.tested.items())
        assert TESTED[toolbox.package] is toolbox.tested


@pytest.mark.parametrize('absent', ['mmcv', 'mmcv._ext'])
def test_toolboxes_that_need_mmcvs_ops_say_so_with_the_command(monkeypatch, absent):
    without = lambda name: None if name == absent else find_spec(name)  # noqa: E731
    monkeypatch.setattr(toolboxes, 'find_spec', without)
    for toolbox in TOOLBOXES.values():
        if not toolbox.needs_mmcv_ops:
            require_toolbox(toolbox.package)
            continue
        with pytest.raises(ImportError, match=f'{toolbox.package} needs mmcv .*tools/setup_env.sh'):
            toolbox_script(toolbox.package, 'train.py')
    with pytest.raises(ModuleNotFoundError, match='needs mmother, .* bash tools/setup_env.sh'):
        require_toolbox('mmother')
