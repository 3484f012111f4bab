"""Every script explains itself, and the shell scripts' failures name the step and the fix."""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys

import pytest
from conftest import ROOT, micro_config, output_of, run_script
from mmengine.config import Config

from mmlaplace import check, toolboxes
from mmlaplace.check import fixes
from mmlaplace.commands import toolbox_scripts
from mmlaplace.ops._sources import source_state

FOLDERS = (ROOT / 'tools', ROOT / '.dev_scripts')
PYTHON_TOOLS = sorted(
    path for folder in FOLDERS for path in folder.rglob('*.py') if "'__main__'" in path.read_text()
)
SHELL_TOOLS = sorted(path for folder in FOLDERS for path in folder.rglob('*.sh'))


def run(*command, **env) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env={**os.environ, **env}
    )


def test_the_config_is_no_value_of_an_option():
    for line in (
        '--cfg-options a.file=x.json --out r.json c.py w.pth --show-dir d',
        '--amp c.py --cfg-options a=b.py b=c.yml',
        '--cfg-options a=b.py c.py',
    ):
        assert toolbox_scripts.config_arguments(line.split()) == ['c.py']


@pytest.mark.parametrize('tool', PYTHON_TOOLS, ids=lambda p: p.name)
def test_help_has_an_example(tool):
    printed = output_of(tool, '--help')
    assert f'python {tool.relative_to(ROOT)}' in printed


@pytest.mark.parametrize('tool', SHELL_TOOLS, ids=lambda p: p.name)
def test_shell_scripts_parse_stop_at_errors_and_have_an_example(tool):
    assert run('bash', '-n', tool).returncode == 0
    assert 'set -Eeuo pipefail' in tool.read_text()
    if '--help' in tool.read_text():  # others hand their arguments on to pytest
        result = run('bash', tool, '--help')
        assert result.returncode == 0, result.stderr
        assert f'bash {tool.relative_to(ROOT)}' in result.stdout


@pytest.mark.parametrize(
    ('command', 'message'),
    [
        *((f'{name}.sh', f'{name}: name a') for name in ('dist_train', 'dist_test', 'slurm_train')),
        ('dist_test.sh c.py', "got 'c.py'"),
        ('dist_train.sh c.py two', "must be a positive number, got 'two'"),
        ('quickstart.sh --task tracking', "no task 'tracking'; there are: classification detec"),
        ('setup_env.sh --set nightly', "no package set 'nightly'"),
    ],
)
def test_a_wrong_call_of_a_shell_script_says_what_there_is(command, message):
    name, *arguments = command.split()
    result = run('bash', ROOT / 'tools' / name, *arguments)
    assert result.returncode == 2 and result.stderr.count('\n') == 1
    assert message in result.stderr and 'line' not in result.stderr


@pytest.mark.parametrize(
    ('name', 'words', 'text', 'message'),
    [
        ('train', 'README.md --amp', '', 'name a config.*got README.md --amp. --help shows'),
        ('train', 'none.py', '', 'there is no config none.py; check the path'),
        ('test', 'own.py', 'model = dict()', 'own.py has no default_scope'),
        ('train', 'own.py', 'model = dict(', r'own.py cannot be read as a config \(SyntaxError: '),
        (
            'train',
            'own.py',
            "default_scope = 'mmother'",
            "own.py has the default_scope 'mmother'; set it to one of",
        ),
    ],
)
def test_train_and_test_say_what_is_missing(name, words, text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'own.py').write_text(text)
    result = run_script(ROOT / f'tools/{name}.py', *words.split())
    assert result.returncode == 1 and re.search(message, result.stderr)


def test_a_wrong_option_of_the_backbone_ends_a_run_before_it_logs(tmp_path, monkeypatch):
    """In one sentence, and not after the log of the whole config."""
    pytest.importorskip('mmpretrain')
    monkeypatch.chdir(tmp_path)
    wrong = 'model.backbone.attn_cfg.num_landmark=9'
    config = micro_config('laplacianformer')
    result = run_script(ROOT / 'tools/train.py', config, '--cfg-options', wrong)
    assert re.search("no option 'num_landmark' .did you mean 'num_landmarks'", result.stderr)
    assert result.returncode == 1 and result.stdout == '' and not list(tmp_path.iterdir())


def test_a_missing_folder_of_data_is_named_and_other_missing_files_are_not(tmp_path, monkeypatch):
    config = tmp_path / 'config.py'
    (tmp_path / 'train.py').write_text("open('data/imagenet/train/a.jpg')")
    monkeypatch.setattr(toolbox_scripts, 'toolbox_script', lambda *_: tmp_path / 'train.py')
    monkeypatch.setattr(toolbox_scripts, 'check_checkpoints', lambda _: Config.fromfile(config))
    monkeypatch.setattr(sys, 'argv', ['train.py', str(config)])
    for root, raised, message in (
        ('data/imagenet', SystemExit, 'data/imagenet is missing; docs/train_it_yourself.md tells'),
        ('data/mini', SystemExit, 'data/mini is missing; .*make_mini_datasets.py makes it'),
        ('/srv/data/mini/fashion/', SystemExit, '--tasks fashion --out /srv/data/mini makes it'),
        ('data/mini-imagenet', SystemExit, 'imagenet is missing; check data_root;'),
        ('data/mine', SystemExit, 'data/mine is missing; check data_root; .*own_config.md shows'),
        ('data/mini/fashion', SystemExit, 'make_mini_datasets.py --tasks fashion makes it'),
        (str(tmp_path), FileNotFoundError, 'a.jpg'),
        ('s3://bucket/images', FileNotFoundError, 'a.jpg'),  # which is no folder of this machine
    ):
        loader = dict(dataset=dict(type='RepeatDataset', dataset=dict(data_root=root)))
        config.write_text(f"default_scope = 'mmpretrain'\ntrain_dataloader = {loader}\n")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(raised, match=message):
            toolbox_scripts.run_toolbox_script('train.py', '')


def test_a_toolbox_that_is_not_installed_is_named_with_the_command(tmp_path, monkeypatch):
    (tmp_path / 'config.py').write_text("default_scope = 'mmdet'")
    monkeypatch.setattr(toolboxes, 'find_spec', lambda name: None)
    result = run_script(ROOT / 'tools/train.py', tmp_path / 'config.py')
    assert re.search('needs mmdet, which is not installed.*setup_env.sh', result.stderr)


def test_a_failed_step_names_itself_and_the_fix(tmp_path):
    set_up, venv = ROOT / 'tools/setup_env.sh', tmp_path / 'venv'
    result = run('bash', set_up, '--venv', venv, PYTHON='/no/such/python')
    assert result.returncode != 0 and not venv.exists()
    assert 'FAILED at: find Python' in result.stderr
    assert 'to fix it: install Python 3.10 to 3.12' in result.stderr


# The Python of an environment that has all but what pip would install there: pip is written down,
# and compiling our ops is copying them. The toolboxes, which take seconds to import, import (in the
# line before the question for our ops, too); mmcv's ops do where their wheel was installed.
PYTHON = """#!/bin/bash
case "$*" in
    '-m pip '*)
        echo "${*:4}" >>"$CALLS"
        case "$*" in
            *--wheel-dir*) touch "${@: -2:1}/mmcv.whl" ;;
            *mmcv.whl*) touch "$0.mmcv_ops" ;;
            *'--editable .') cp "$LIBRARY" mmlaplace/ ;;
        esac ;;
    '-m pytest '*) echo "${*:2}" >>"$CALLS" ;;
    *library_problem*) exec "$REAL_PYTHON" -c "${2#*$'\\n'}" ;;
    *mmcv.ops*) [ -e "$0.mmcv_ops" ] ;;
    *mmpretrain*) ;;
    *) exec "$REAL_PYTHON" "$@" ;;
esac
"""


@pytest.fixture
def clone(tmp_path):
    """A clone with such an environment; its name has a space."""
    clone = tmp_path / 'a clone'
    for name in ('mmlaplace', 'ops', 'requirements', 'tools'):
        ignored = shutil.ignore_patterns('.mim', '__pycache__', '_C*.so')
        shutil.copytree(ROOT / name, clone / name, ignore=ignored)
    for name in ('pyproject.toml', 'setup.py'):
        shutil.copy(ROOT / name, clone)
    python = clone / '.venv/bin/python'
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(stat.S_IRWXU)
    return clone


def set_up(clone, script='setup_env.sh', *arguments) -> tuple:
    """What set-up, or a script that calls it, says, and what it calls pip and pytest for."""
    calls = clone.parent / 'calls'
    calls.write_text('')
    result = run(
        'bash',
        clone / 'tools' / script,
        *arguments,
        CALLS=str(calls),
        LIBRARY=str(check.loaded_library()),
        REAL_PYTHON=sys.executable,
        PYTHONPATH='',
        XDG_CACHE_HOME=str(clone.parent / 'cache'),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, calls.read_text()


@pytest.mark.thorough
def test_set_up_for_classification_builds_no_ops_of_mmcv_until_all_is_asked_for(clone, monkeypatch):
    monkeypatch.setattr(sys, 'prefix', str(clone / '.venv'))
    monkeypatch.setattr(fixes, 'PACKAGE', clone / 'mmlaplace')
    said, calls = set_up(clone, 'setup_env.sh', '--task', 'classification')
    without_ops = '--no-cache-dir --no-deps --build-constraint requirements/build.txt onedl-mmcv=='
    assert without_ops in calls and '--wheel-dir' not in calls and 'onedl-mmpretrain==' in calls
    assert not any(name in calls for name in ('mmdetection', 'mmsegmentation', 'tests.txt'))
    words = shlex.split(fixes.complete_set_up())
    assert words[:2] == ['bash', f'{clone}/tools/setup_env.sh'] and words[-1] == f'{clone}/.venv'
    assert not set_up(clone, 'setup_env.sh', '--task', 'classification')[1]

    _, calls = set_up(clone, 'setup_env.sh', '--task', 'detection')
    assert '--wheel-dir' in calls and without_ops not in calls
    assert re.search('install .*--force-reinstall .*/mmcv.whl', calls)  # the version is the same
    assert re.search('onedl-mmdetection==.* -r requirements/tests.txt', calls)
    assert fixes.complete_set_up() is None
    said, calls = set_up(clone)
    assert said.splitlines()[-1] == '== .venv is ready (onedl set)' and not calls

    library = clone / 'mmlaplace' / check.loaded_library().name
    built, state = library.read_bytes(), source_state(ROOT / 'ops').encode()
    library.write_bytes(built.replace(state, state[::-1]))
    assert 'was compiled from other sources' in set_up(clone)[0]
    assert library.read_bytes() == built


def test_fast_tests_are_those_without_a_marker_and_set_nothing_up(clone):
    _, calls = set_up(clone, 'run_tests.sh', '--fast', '-k', 'kernel')
    (command,) = calls.splitlines()
    markers = re.findall(r'^    "(\w+): ', (ROOT / 'pyproject.toml').read_text(), re.MULTILINE)
    markers.remove('gpu')  # it says where a test runs, and not how long
    assert len(markers) > 3
    assert command == (f'pytest -n 2 --dist loadgroup -m not ({" or ".join(markers)}) -k kernel')
