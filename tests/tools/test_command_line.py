"""What the commands share keeps files, names what is wrong, runs scripts, knows the toolboxes."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from conftest import CLASSIFICATION, ROOT

from mmlaplace import toolboxes
from mmlaplace.commands import command_line
from mmlaplace.commands.command_line import ToolParser, build_backbone, load_or_exit, write_json
from mmlaplace.commands.script_runs import run_script
from mmlaplace.dependencies import TESTED
from mmlaplace.model_zoo import read_models
from mmlaplace.toolboxes import PACKAGES, TOOLBOXES, require_toolbox, toolbox_script

MICRO = CLASSIFICATION / 'laplacianformer/laplacianformer-micro_1xb32_mini.py'


def python(code: str, **options) -> str:
    """What a new process prints."""
    command = [sys.executable, '-c', code]
    result = subprocess.run(command, capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def parser() -> ToolParser:
    parser = ToolParser('What it does.\n\nExample:\n  python tool.py')
    parser.add_trained_model('classifier')
    parser.add_output('--out')
    parser.add_output('--plot')
    return parser


def test_a_file_that_is_there_is_kept_unless_forced_and_a_folder_always(tmp_path, capsys):
    kept = tmp_path / 'kept.json'
    kept.touch()
    words = ['config.py', 'a.pth', '--plot', str(kept)]
    with pytest.raises(SystemExit, match='2'):
        parser().parse_args(words)
    assert f'{kept} is there already; --force replaces it' in capsys.readouterr().err
    args = parser().parse_args([*words, '--force'])
    assert (args.config, args.checkpoint, args.out, args.plot) == ('config.py', 'a.pth', None, kept)
    with pytest.raises(SystemExit, match='2'):
        parser().parse_args(['config.py', 'a.pth', '--out', str(tmp_path), '--force'])
    assert f'{tmp_path} is a folder' in capsys.readouterr().err


def test_the_help_is_the_docstring_as_it_stands():
    assert 'What it does.\n\nExample:\n  python tool.py\n' in parser().format_help()
    assert '--force' not in ToolParser('A tool.').format_help()  # which has no outputs


def test_json_makes_its_folder_and_leaves_the_file_where_it_cannot_be_written(
    tmp_path, monkeypatch
):
    path = tmp_path / 'a/b.json'
    write_json(path, dict(x=[1, None]))
    assert json.loads(path.read_text()) == dict(x=[1, None])
    assert list(path.parent.iterdir()) == [path]

    def full(*args):
        raise OSError('No space left on device')

    monkeypatch.setattr(command_line.os, 'replace', full)
    with pytest.raises(OSError, match='No space'):
        write_json(path, dict(x=2))
    assert json.loads(path.read_text()) == dict(x=[1, None])


def test_a_backbone_of_a_config_has_the_weights_of_a_checkpoint(tmp_path):
    first = build_backbone(MICRO)
    assert not first.training
    torch.save(dict(state_dict=first.state_dict()), tmp_path / 'a.pth')
    weights = build_backbone(MICRO, str(tmp_path / 'a.pth')).state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in first.state_dict().items())


@pytest.mark.parametrize(
    ('read', 'message'),
    [
        (lambda path: load_or_exit(torch.nn.Linear(2, 2), path), '.*none'),
        (command_line.read_config, 'there is no config .*none; ch'),
        (build_backbone, 'there is no config .*none; ch'),
    ],
)
def test_a_file_that_is_not_there_ends_the_tool_with_a_message(
    read, message, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, 'argv', ['tools/visualization/vis_cam.py'])
    with pytest.raises(SystemExit, match=rf'^vis_cam\.py: error: {message}'):
        read(str(tmp_path / 'none'))


@pytest.mark.slow
def test_the_shared_modules_import_nothing_heavy():
    assert python(
        'import sys, mmlaplace; before = set(sys.modules)\n'
        'import mmlaplace.commands.command_line, mmlaplace.checkpoints.conversion\n'
        'import mmlaplace.analysis.measuring, mmlaplace.analysis.recording\n'
        'heavy = {"rich", "PIL", "skimage", "sklearn", "matplotlib", "mmcv"}\n'
        'print(sorted(heavy & (set(sys.modules) - before)))'
    ) == '[]\n'  # fmt: skip


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
        for number in range(20):
            print(number)
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


def test_bytes_that_are_no_text_do_not_hide_how_a_script_ended(tmp_path):
    script = tmp_path / 'script.py'
    script.write_text("import sys; sys.stdout.buffer.write(b'caf\\xe9\\n'); sys.exit(3)")
    assert run_script(script, [], tmp_path / 'log.txt') == (3, 'caf\ufffd')


GROUPS = """
import os, torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel
from mmlaplace.commands.toolbox_scripts import end_process_groups

before = os.listdir('/proc/self/task')
dist.init_process_group('gloo', init_method='file://{store}', rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 2))
model.itself = [model]  # as runners are parts of cycles
del model
assert os.listdir('/proc/self/task') != before
end_process_groups()
assert not dist.is_initialized() and os.listdir('/proc/self/task') == before
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir('/proc/self/task'), reason='nothing here lists threads')
def test_process_groups_end_with_their_threads(tmp_path):
    """A thread of gloo that is left to the end of Python may abort a run that is done."""
    python(GROUPS.format(store=tmp_path / 'store'))


# The table of the toolboxes.


def test_the_toolboxes_have_the_tasks_figures_and_versions_of_the_repository():
    folders = {path.name for path in (ROOT / 'configs').iterdir() if path.is_dir()}
    # The papers' tables are no configs, and sequences have one encoder and no toolbox of their own.
    folders -= {'_base_', 'lra', 'tables'}
    assert set(TOOLBOXES) == folders == {model.task for model in read_models()}
    for model in read_models():
        figures = set(model.metadata['Published']) - {'Parameters', 'MACs'}
        assert figures <= set(TOOLBOXES[model.task].metrics)
    texts = [(ROOT / f'requirements/{name}.txt').read_text() for name in ('openmmlab', 'onedl')]
    pinned = {name: v for text in texts for name, v in re.findall(r'^([\w-]+)==(\S+)$', text, re.M)}
    for toolbox in TOOLBOXES.values():
        assert all(newest == pinned[name] for name, (_, newest) in toolbox.tested.items())
        assert TESTED[toolbox.package] is toolbox.tested


@pytest.mark.parametrize('package', PACKAGES)
def test_every_toolbox_brings_its_scripts(package):
    assert toolbox_script(package, 'train.py').is_file()
    with pytest.raises(FileNotFoundError, match=f'{package} is installed without.*no none.py in'):
        toolbox_script(package, 'none.py')
    with pytest.raises(ModuleNotFoundError, match='needs mmother, .* bash tools/setup_env.sh'):
        require_toolbox('mmother')


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
