"""Shared parts of commands: output files, error messages, scripts, toolboxes."""

import re
import sys
from argparse import Namespace
from functools import partial
from importlib.util import find_spec
from unittest import mock

import pytest
import torch
from conftest import ROOT, micro_config, refusal_of, run_python, run_script
from filelock import FileLock, Timeout
from mmengine.config import Config

from mmlaplace import toolboxes
from mmlaplace.commands import command_line
from mmlaplace.commands.command_line import ToolParser, load_or_exit, positive
from mmlaplace.commands.script_runs import run_script as run_script_apart
from mmlaplace.dependencies import TESTED
from mmlaplace.lab import runner
from mmlaplace.model_zoo import build_model, read_models
from mmlaplace.toolboxes import TOOLBOXES, require_toolbox, toolbox_script


def parser() -> ToolParser:
    tool = ToolParser('What it does.')
    tool.add_output('--out')
    tool.add_output('--picture', suffixes=command_line.PICTURES)
    tool.add_argument('--jobs', type=command_line.positive)
    tool.add_argument('--device')
    return tool


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        ('--out {0}/kept', '{0}/kept is there already; --force replaces it'),
        ('--out {0} --force', '{0} is a folder'),
        ('--out {0}/kept/in/it.json', 'as {0}/kept is a file'),
        ('--picture {0}/a.xyz', 'a.xyz must end with one of .jpeg, .jpg, .pdf, .png'),
        ('--pictures a.png', 'unrecognized arguments: --pictures a.png; see --help'),
        ('--jobs 0', 'at least 1, got 0'),
        ('--device cuda', 'no GPU'),
        ('--device gpu', '--device gpu does not work here'),
    ],
)
def test_a_wrong_argument_is_one_sentence(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    (tmp_path / 'kept').touch()
    with pytest.raises(SystemExit, match='2'):
        parser().parse_args(words.format(tmp_path).split())
    message = capsys.readouterr().err
    assert said.format(tmp_path) in message and message.count('\n') == 1


def test_right_arguments_are_taken(tmp_path):
    (tmp_path / 'kept').touch()
    tool, picture = parser(), f'{tmp_path}/a.PNG'
    tool.add_trained_model('classifier')
    words = f'config.py a.pth --out {tmp_path}/kept --force --picture {picture} --jobs 3'
    args = tool.parse_args([*words.split(), '--device', 'cpu'])
    assert (args.config, args.checkpoint, args.jobs) == ('config.py', 'a.pth', 3)
    assert (args.out, str(args.picture)) == (tmp_path / 'kept', picture)


def test_layers_of_a_trained_model_run_once_whatever_its_training_recomputed(tmp_path):
    pytest.importorskip('mmpretrain')
    path = micro_config('polaformer-pvt')
    weights = tmp_path / 'weights.pth'
    torch.save(build_model(Config.fromfile(path)).state_dict(), weights)
    given = {'model.backbone.with_cp': True}
    args = Namespace(config=str(path), checkpoint=str(weights), device='cpu', cfg_options=given)
    cfg, model = command_line.trained_model(args)
    blocks = [block for stage in model.backbone.stages for block in stage['blocks']]
    assert blocks and not any(block.with_cp for block in blocks)
    assert cfg.model.backbone.with_cp is False and not model.training


@pytest.mark.parametrize('tool', ['make_stand_in', 'make_mini', 'make_lra'])
def test_a_folder_for_data_that_is_a_file_is_one_sentence(tool, tmp_path):
    (tmp_path / 'file').touch()
    script = ROOT / f'tools/dataset_converters/{tool}_datasets.py'
    told = refusal_of(script, '--out', tmp_path / 'file')
    assert told.endswith(f'--out {tmp_path / "file"} is a file; name a folder\n')


def test_a_file_that_is_no_json_of_the_tool_is_one_sentence(tmp_path):
    path = tmp_path / 'a.json'
    for content, said in (
        (None, 'cannot be read as JSON'),
        ('{"a": ', 'cannot be read as JSON'),
        ('{"costs": []}', r"has no \['results'.*of another tool"),
        ('3', r"has no \['results'"),
    ):
        if content:
            path.write_text(content)
        with pytest.raises(SystemExit, match=f'{path} {said}'):
            command_line.read_json(path, 'results')


def test_a_gpu_with_a_number_is_the_one_that_is_measured(monkeypatch):
    chosen = mock.Mock()
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'set_device', chosen)
    monkeypatch.setattr(torch, 'empty', lambda *_, **__: None)
    for device in ('cpu', 'cuda', 'cuda:1'):
        parser().parse_args(['--device', device])
    chosen.assert_called_once_with(torch.device('cuda:1'))


def test_a_file_that_is_not_there_ends_the_tool_with_a_message(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'argv', ['tools/visualization/vis_cam.py'])
    for read in (partial(load_or_exit, torch.nn.Linear(2, 2)), command_line.read_config):
        with pytest.raises(SystemExit, match=r'^vis_cam\.py: error: .*none'):
            read(str(tmp_path / 'none'))


MICRO = micro_config('laplacianformer')
WEIGHTS = ('none.pth',)


@pytest.mark.parametrize(
    ('tool', 'arguments', 'missing'),
    [
        ('analysis_tools/get_flops.py', (), 'model'),
        ('analysis_tools/get_flops.py', ('--time',), 'model.backbone'),
        ('deployment/export.py', WEIGHTS, 'default_scope'),
        ('linearize.py', (*WEIGHTS, '--attention', 'FLattenAttention'), 'train_dataloader'),
        ('visualization/vis_predictions.py', WEIGHTS, 'visualizer'),
        ('visualization/vis_predictions.py', WEIGHTS, 'test_dataloader.dataset'),
        ('visualization/vis_cam.py', WEIGHTS, 'default_scope'),
    ],
)
def test_a_config_that_lacks_what_a_tool_reads_is_one_sentence(tool, arguments, missing, tmp_path):
    cfg = Config.fromfile(MICRO).to_dict()
    folder, _, key = missing.rpartition('.')
    del (cfg[folder] if folder else cfg)[key]
    config = tmp_path / 'a.py'
    Config(cfg).dump(config)
    result = run_script(ROOT / 'tools' / tool, config, *arguments)
    assert result.returncode, result.stdout
    message = f'{config} has no {missing}.*; name a whole config, and no base$'
    assert re.search(message, result.stderr.splitlines()[-1])


def test_a_size_that_a_model_refuses_is_one_sentence():
    tool = ROOT / 'tools/analysis_tools/get_flops.py'
    told = refusal_of(tool, MICRO, '--image-size', 1, 1).splitlines()[-1]
    assert str(MICRO) in told and 'at least 4 x 4 pixels, got shape (1, 3, 1, 1)' in told


@pytest.mark.parametrize('start', ['it does not fit;', 'it does not fit; build it …, or,'])
def test_hints_at_arguments_of_python_code_are_left_out(start):
    shown = command_line.without_hint(ValueError(f'{start} if that is meant, …'))
    assert shown == start.removesuffix(';').removesuffix(', or,')


@pytest.mark.slow
def test_a_script_has_its_arguments_threads_and_log(tmp_path):
    script, log = tmp_path / 'script.py', tmp_path / 'logs/a.txt'
    script.write_text("""
import sys, torch
print(sys.argv[1:], torch.get_num_threads())
print(*range(20), sep='\\n', file=sys.stderr)
raise RuntimeError('it broke')
""")
    # Neither one, as environments often say, nor as many as most machines have.
    status, said = run_script_apart(script, ['one', 'two'], log, threads=3)
    assert status == 1 and said.endswith('RuntimeError: it broke') and len(said.splitlines()) == 15
    assert log.read_text().startswith("['one', 'two'] 3\n0\n")


def test_the_toolboxes_have_the_tasks_and_versions_of_the_repository():
    folders = {path.name for path in (ROOT / 'configs').iterdir() if path.is_dir()}
    folders -= {'_base_', 'heads', 'lra', 'own', 'probes', 'tables'}  # of no single toolbox
    assert set(TOOLBOXES) == folders == {model.task for model in read_models()}
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


# Windows has neither module. One process for all commands, as importing torch takes most time.
WITHOUT_UNIX = """
import runpy, sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

sys.modules.update(fcntl=None, resource=None)
*scripts, = map(Path, sys.argv[1:])

def helps(name, start):
    said, status = StringIO(), 0
    try:
        with redirect_stdout(said):
            start()
    except SystemExit as end:
        status = end.code
    assert not status and len(said.getvalue()) > 80, (name, status, said.getvalue()[-300:])

from mmlaplace.__main__ import main
for words in ([], ['list'], ['config'], ['check'], ['compare'], ['compare', 'trainings'],
              ['compare', 'probes']):
    helps(words, lambda: main([*words, '--help']))
path = list(sys.path)
for script in scripts:
    sys.argv, sys.path[:] = [str(script), '--help'], [str(script.parent), *path]
    helps(script, lambda: runpy.run_path(str(script), run_name='__main__'))
"""


@pytest.mark.slow
def test_the_help_of_every_command_needs_no_module_of_unix():
    commands = [*ROOT.glob('tools/**/*.py'), *ROOT.glob('demo/*.py'), *ROOT.glob('studies/*.py')]
    result = run_python('-c', WITHOUT_UNIX, *commands)
    assert result.returncode == 0, result.stderr[-3000:]


def test_without_fcntl_a_folder_is_locked_by_another_way(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, 'fcntl', None)
    with runner.locked(tmp_path) as lock:
        assert lock == -1
        with pytest.raises(Timeout):
            FileLock(tmp_path / 'lock').acquire(timeout=0)
    FileLock(tmp_path / 'lock').acquire(timeout=0)


def test_a_size_of_images_has_one_name_and_takes_the_former_one():
    parser = ToolParser('A tool.')
    parser.add_image_size(former='--size', type=positive, nargs=2, default=(1, 1))
    assert parser.parse_args([]).image_size == (1, 1)
    for name in ('--image-size', '--size'):
        assert parser.parse_args([name, '32', '64']).image_size == [32, 64]
    assert '--size' not in parser.format_help().replace('--image-size', '')


@pytest.mark.parametrize('script', sorted(ROOT.glob('tools/**/*.py')), ids=lambda path: path.name)
def test_no_command_has_another_name_for_a_size_of_images(script):
    other = re.compile(r"'--(sizes?|shape|side|sides|input-size|img-size|resolution)'")
    found = {name[0] for name in other.finditer(script.read_text())}
    allowed = {
        'get_flops.py': {"'--shape'"},  # mmpretrain's name, beside ours
        'make_lra_datasets.py': {"'--size'"},  # of data sets: full or mini
    }
    in_former = set(re.findall(r"former=('--\w+')", script.read_text()))
    assert found - in_former == allowed.get(script.name, set())
