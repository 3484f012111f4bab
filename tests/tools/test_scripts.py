"""Every script explains itself, and the shell scripts' failures name the step and the fix."""

import os
import re
import runpy
import shlex
import shutil
import stat
import subprocess
import sys

import pytest
from conftest import ROOT, run_script

from mmlaplace import check
from mmlaplace.check import fixes
from mmlaplace.ops._sources import source_state

FOLDERS = (ROOT / 'tools', ROOT / '.dev_scripts')
PYTHON_TOOLS = sorted(
    path for folder in FOLDERS for path in folder.rglob('*.py') if "'__main__'" in path.read_text()
)
SHELL_TOOLS = sorted(path for folder in FOLDERS for path in folder.glob('*.sh'))


def run(*command, **env) -> subprocess.CompletedProcess:
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, env={**os.environ, **env}
    )


@pytest.mark.parametrize('tool', PYTHON_TOOLS, ids=lambda p: p.name)
def test_help_has_an_example(tool):
    result = run_script(tool, '--help')
    assert result.returncode == 0, result.stderr
    assert f'python {tool.relative_to(ROOT)}' in result.stdout


@pytest.mark.parametrize('tool', SHELL_TOOLS, ids=lambda p: p.name)
def test_shell_scripts_parse_stop_at_errors_and_have_an_example(tool):
    assert run('bash', '-n', tool).returncode == 0
    assert 'set -Eeuo pipefail' in tool.read_text()
    if '--help' in tool.read_text():  # others hand their arguments on to pytest
        result = run('bash', tool, '--help')
        assert result.returncode == 0, result.stderr
        assert f'bash {tool.relative_to(ROOT)}' in result.stdout


TASKS = 'there are: classification detection segmentation'


@pytest.mark.parametrize(
    ('command', 'message'),
    [
        *((f'{name}.sh', f'{name}: name a') for name in ('dist_train', 'dist_test', 'slurm_train')),
        *((f'{name}.sh --task tracking', f"no task 'tracking'; {TASKS}")
          for name in ('setup_env', 'quickstart')),
        *((f'{name}.sh --fast', "unknown option '--fast'") for name in ('setup_env', 'quickstart')),
        ('setup_env.sh --set nightly', "no package set 'nightly'"),
        ('setup_env.sh --set nightly', 'requirements/onedl.txt'),
    ],
)  # fmt: skip
def test_a_wrong_call_of_a_shell_script_says_what_there_is(command, message):
    name, *arguments = command.split()
    result = run('bash', ROOT / 'tools' / name, *arguments)
    assert result.returncode == 2 or '_train' in name or '_test' in name
    assert result.returncode != 0 and message in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'scope', 'title'),
    [
        ('train.py', 'mmdet', 'Train a detector'),
        ('test.py', 'mmseg', 'MMSeg test'),
        ('test.py', 'mmpretrain', 'MMPreTrain test'),
    ],
)
def test_the_pair_for_all_tasks_finds_the_toolbox(name, scope, title, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text(f'default_scope = {scope!r}')
    result = run(sys.executable, ROOT / 'tools' / name, config, '--help')
    assert result.returncode == 0, result.stderr
    assert title in result.stdout


@pytest.mark.parametrize('name', ['train.py', 'test.py'])
@pytest.mark.parametrize(
    ('text', 'message'),
    [
        (None, '2'),  # the exit status of a wrong call, after the usage
        ('model = dict()', 'config.py has no default_scope'),
        ("default_scope = 'mmother'", 'needs mmother, which is not installed'),
    ],
)
def test_without_a_toolbox_the_pair_says_what_is_missing(
    name, text, message, tmp_path, monkeypatch, capsys
):
    config = tmp_path / 'config.py'
    config.write_text(text or '')
    monkeypatch.setattr(sys, 'argv', [name, *([] if text is None else [str(config)])])
    with pytest.raises((SystemExit, ModuleNotFoundError), match=message):
        runpy.run_path(str(ROOT / 'tools' / name), run_name='__main__')
    assert text is not None or 'mmpretrain, mmdet or mmseg' in capsys.readouterr().err
    monkeypatch.setattr(sys, 'argv', [name, str(tmp_path / 'none.py')])
    with pytest.raises(SystemExit, match=r'there is no config .*none\.py; check the path'):
        runpy.run_path(str(ROOT / 'tools' / name), run_name='__main__')


def program(path, text) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/bash\n{text}\n')
    path.chmod(0o755)


@pytest.mark.parametrize('says', ['echo killed', 'seq -f "error %g" 100000'])
def test_a_build_for_gpus_that_fails_names_its_log_whatever_is_in_it(says, tmp_path):
    shutil.copytree(ROOT / '.dev_scripts', tmp_path / '.dev_scripts')
    program(tmp_path / '.venv/bin/python', f'{says}; exit 1')
    program(tmp_path / 'bin/nvcc', '')
    script = tmp_path / '.dev_scripts/compile_cuda.sh'
    result = run('bash', script, PATH=f'{tmp_path}/bin:{os.environ["PATH"]}')
    assert result.returncode == 1
    assert 'FAILED, see build/cuda/log.txt' in result.stderr


@pytest.mark.parametrize('fails', [False, True])
def test_fetching_headers_leaves_what_was_in_the_folder(fails, tmp_path):
    folder = tmp_path / 'a folder'
    (folder / 'apt').mkdir(parents=True)
    (folder / 'apt/mine.txt').write_text('keep')
    apt = 'case "$*" in indextargets*) echo mirror ;; *download*) touch "${@: -1}_1.deb" ;; esac'
    program(tmp_path / 'bin/apt-get', apt)
    program(tmp_path / 'bin/dpkg-deb', f'[ -f "$2" ] && exit {int(fails)}')
    script = ROOT / '.dev_scripts/fetch_onnxruntime_headers.sh'
    result = run('bash', script, folder, PATH=f'{tmp_path}/bin:{os.environ["PATH"]}')
    assert result.returncode == int(fails), result.stderr
    assert fails or result.stdout.strip() == f'{folder}/usr/include/onnxruntime'
    assert [path.name for path in folder.iterdir()] == ['apt']
    assert (folder / 'apt/mine.txt').read_text() == 'keep'


def test_a_failed_step_names_itself_and_the_fix(tmp_path):
    set_up, venv = ROOT / 'tools/setup_env.sh', tmp_path / 'venv'
    result = run('bash', set_up, '--venv', venv, PYTHON='/no/such/python')
    assert result.returncode != 0 and not venv.exists()
    assert 'FAILED at: find Python' in result.stderr
    assert 'to fix it: install Python 3.10 to 3.12' in result.stderr
    (venv / 'bin').mkdir(parents=True)
    (venv / '.mmlaplace-set').write_text('openmmlab')  # of the other set
    result = run('bash', set_up, '--venv', venv)
    assert result.returncode != 0
    assert 'for the onedl set' in result.stderr and '--venv FOLDER' in result.stderr


# The Python of an environment that has all but what pip would install there: pip is written down,
# and compiling our ops is copying them. The toolboxes, which take seconds to import, import; mmcv's
# ops do where their wheel was installed.
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
        'bash', clone / 'tools' / script, *arguments,
        CALLS=str(calls), LIBRARY=str(check.loaded_library()), REAL_PYTHON=sys.executable,
        PYTHONPATH='', XDG_CACHE_HOME=str(clone.parent / 'cache'),
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout, calls.read_text()


@pytest.mark.slow
def test_set_up_compiles_again_when_the_library_is_gone_or_foreign(clone):
    library = clone / 'mmlaplace' / check.loaded_library().name
    said, calls = set_up(clone)
    assert '   with compiled ops\n' in said
    assert 'install --quiet --no-deps --no-build-isolation --editable .\n' in calls
    said, calls = set_up(clone)
    assert said.splitlines()[-1] == '== .venv is ready (onedl set)'
    assert not calls

    built = library.read_bytes()
    library.unlink()
    said, calls = set_up(clone)
    assert 'install again: mmlaplace is without compiled ops: ' in said
    assert '--editable .\n' in calls
    assert library.read_bytes() == built

    state = source_state(ROOT / 'ops').encode()
    library.write_bytes(built.replace(state, state[::-1]))
    said, calls = set_up(clone)
    assert 'was compiled from other sources' in said
    assert library.read_bytes() == built


@pytest.mark.slow
def test_set_up_for_classification_builds_no_ops_of_mmcv_until_all_is_asked_for(clone, monkeypatch):
    monkeypatch.setattr(sys, 'prefix', str(clone / '.venv'))
    monkeypatch.setattr(fixes, 'PACKAGE', clone / 'mmlaplace')
    said, calls = set_up(clone, 'setup_env.sh', '--task', 'classification')
    without_ops = '--no-cache-dir --no-deps --build-constraint requirements/build.txt onedl-mmcv=='
    assert without_ops in calls and '--wheel-dir' not in calls
    assert 'onedl-mmpretrain==' in calls and 'scikit-image==' in calls
    assert not any(name in calls for name in ('mmdetection', 'mmsegmentation', 'tests.txt'))
    assert 'for detection and segmentation run this without --task' in said
    command = fixes.complete_set_up()
    assert shlex.split(command) == [
        'bash', f'{clone}/tools/setup_env.sh', '--set', 'onedl', '--venv', f'{clone}/.venv',
    ]  # fmt: skip
    said, calls = set_up(clone, 'setup_env.sh', '--task', 'classification')
    assert said.splitlines()[-1] == '== .venv is ready (onedl set)'
    assert not calls

    _, calls = set_up(clone, 'setup_env.sh', '--task', 'detection')
    assert '--wheel-dir' in calls and without_ops not in calls
    assert re.search('install .*--force-reinstall .*/mmcv.whl', calls)  # the version is the same
    assert '-r requirements/onedl.txt -r requirements/tests.txt' in calls
    assert fixes.complete_set_up() is None
    for arguments in ((), ('--task', 'classification')):
        assert not set_up(clone, 'setup_env.sh', *arguments)[1]
    # An environment that is new takes the wheel that was built.
    (clone / '.venv/bin/python.mmcv_ops').unlink()
    (clone / '.venv/.mmlaplace-state').unlink()
    _, calls = set_up(clone, 'setup_env.sh', '--task', 'classification')
    assert '--wheel-dir' not in calls and '--build-constraint' not in calls
    assert re.search('install .*--force-reinstall .*/mmcv.whl', calls)


@pytest.mark.parametrize('task', ['classification', 'detection', 'segmentation'])
def test_quickstart_sets_up_what_its_task_needs(clone, task):
    (clone / 'tools/setup_env.sh').write_text('echo "set up: $*"; exit 3')
    result = run('bash', clone / 'tools/quickstart.sh', '--task', task)
    assert result.returncode == 3
    assert result.stdout == f'set up: --task {task}\n'


def test_fast_tests_are_those_without_a_marker_and_set_nothing_up(clone):
    _, calls = set_up(clone, 'run_tests.sh', '--fast', '-k', 'kernel')
    (command,) = calls.splitlines()
    markers = re.findall(r'^    "(\w+): ', (ROOT / 'pyproject.toml').read_text(), re.MULTILINE)
    assert len(markers) > 3
    assert command == (f'pytest -n 2 --dist loadgroup -m not ({" or ".join(markers)}) -k kernel')


@pytest.mark.slow
def test_all_tests_run_after_set_up_which_reads_names_with_spaces(clone):
    set_up(clone)
    (clone / 'ops/common/a copy.h').write_text('// new')
    _, calls = set_up(clone, 'run_tests.sh', '-x')
    assert '--editable .\n' in calls
    assert calls.splitlines()[-1] == 'pytest -n 2 --dist loadgroup -x'
