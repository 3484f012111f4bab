"""``python -m mmlaplace.check`` in installations that work and that do not."""

import json
import os
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

import pytest
import torch
from conftest import ROOT, registered

from mmlaplace import check, dependencies, ops
from mmlaplace.check import fixes, library, packages
from mmlaplace.check import report as check_report
from mmlaplace.dependencies import TESTED, installed_distributions
from mmlaplace.ops import _native
from mmlaplace.ops._sources import source_state
from mmlaplace.toolboxes import PACKAGES

FORKS = bool(installed_distributions('mmengine').get('onedl-mmengine'))
MMSEG = 'onedl-mmsegmentation' if FORKS else 'mmsegmentation'


@pytest.fixture
def hide(monkeypatch):
    """Make modules, with what is in them, as if they were not installed."""
    hidden = set()

    def is_hidden(name):
        return any(name == other or name.startswith(f'{other}.') for other in hidden)

    def import_unless_hidden(name):
        if is_hidden(name):
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
        return import_module(name)

    def version_unless_hidden(distribution):
        if any(is_hidden(name) for name, tested in TESTED.items() if distribution in tested):
            raise PackageNotFoundError(distribution)
        return version(distribution)

    monkeypatch.setattr(packages, 'import_module', import_unless_hidden)
    monkeypatch.setattr(
        packages, 'find_spec', lambda name: None if is_hidden(name) else find_spec(name)
    )
    monkeypatch.setattr(dependencies, 'version', version_unless_hidden)
    return lambda *names: hidden.update(names)


@pytest.fixture
def report(capsys):
    """The exit status of a run, and its findings by check and name."""

    def run():
        status = check.main(['--json'])
        findings = json.loads(capsys.readouterr().out)['findings']
        return status, {(f['check'], f['name']): f for f in findings}

    return run


def problems(findings):
    return [name for (_, name), finding in findings.items() if finding['status'] == 'problem']


@pytest.mark.slow
def test_all_is_fine_in_an_environment_of_set_up(tmp_path):
    result = subprocess.run(
        [sys.executable, '-m', 'mmlaplace.check', '--json'],
        capture_output=True, text=True, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    content = json.loads(result.stdout)
    assert content['ok']
    assert content['versions'][MMSEG] == installed_distributions('mmseg')[MMSEG]
    findings = {f['name']: f for f in content['findings']}
    assert {f['status'] for f in findings.values()} == {'ok'}
    assert {*TESTED, 'CUDA', 'numpy', 'mmcv._ext', 'mmlaplace._C', 'CPU kernels'} <= set(findings)
    for name in _native.AVAILABLE:
        if not name.startswith('_'):
            assert findings[f'{name}, cpu']['found'].startswith('native, relative error ')
    count = len(registered(torch.nn.Module))
    assert count > 5
    types = [f['found'] for f in content['findings'] if f['check'] == 'types']
    assert types == [f'finds all {count} types of mmlaplace'] * 3


def test_the_table_has_the_fixes_as_lines_to_copy(hide, capsys):
    hide('mmseg')
    assert check.main([]) == 0
    out = capsys.readouterr().out
    assert 'If you want mmseg:' in out
    assert f'install --no-build-isolation {fixes.pinned("mmseg")}\n' in out
    assert 'All right (checked in ' in out


def test_no_native_library(monkeypatch, tmp_path, report):
    monkeypatch.setattr(_native, 'WHY_MISSING', _native.load_library(tmp_path))
    status, findings = report()
    assert status == 1
    assert problems(findings) == ['mmlaplace._C']
    missing = findings['compiled library', 'mmlaplace._C']
    assert 'no compiled library' in missing['found']
    assert (
        missing['fix']
        .splitlines()[-1]
        .endswith(f'install --no-build-isolation --force-reinstall --no-deps --editable {ROOT}')
    )
    op = findings['ops', 'laplacian_kernel, cpu']
    assert op['status'] == 'note'
    assert op['found'].startswith('PyTorch reference, relative error ')


@pytest.mark.parametrize(
    ('entry', 'found'),
    [
        (b'torch=1.13;', 'was compiled for torch 1.13, and this is torch '),
        (b'machine=mips64;', 'was compiled for mips64, and this machine is '),
    ],
)
def test_a_library_for_something_else_is_a_problem(entry, found, monkeypatch, tmp_path):
    key, _, value = entry.partition(b'=')
    built_for = b'mmlaplace built for ' + key + b'='
    file = check.loaded_library()
    before, after = file.read_bytes().split(built_for)
    # The loader of the system says of another machine's library that there is no such file.
    content = before + built_for + value + after[after.index(b';') + 1 :]
    (tmp_path / file.name).write_bytes(content)
    monkeypatch.setattr(_native, 'WHY_MISSING', _native.load_library(tmp_path))
    (finding,) = library.check_library()
    assert finding.status == 'problem'
    assert f'{file.name} {found}' in finding.found
    assert 'install --no-build-isolation --force-reinstall' in finding.fix


def test_the_state_of_sources_tells_names_and_contents(tmp_path):
    states = []
    for name, content in (('a.h', 'x'), ('b.h', 'x'), ('a.h', 'y'), ('a.h', 'x')):
        folder = tmp_path / str(len(states))
        (folder / 'op').mkdir(parents=True)
        (folder / 'op' / name).write_text(content)
        (folder / 'README.md').write_text(str(len(states)))  # no source
        states.append(source_state(folder))
    assert len(set(states)) == 3 and states[0] == states[3]
    assert all(len(state) == 16 and set(state) <= set('0123456789abcdef') for state in states)


@pytest.mark.slow
def test_a_library_of_other_sources_is_a_problem(tmp_path):
    """In a clone whose sources changed after they were compiled."""
    for name in ('mmlaplace', 'ops'):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns('.mim', '__pycache__')
        )
    shutil.copy(ROOT / 'setup.py', tmp_path)
    with (tmp_path / 'ops/common/metrics.h').open('a') as header:
        header.write('// changed\n')
    result = subprocess.run(
        [sys.executable, '-m', 'mmlaplace.check', '--json'], cwd=tmp_path,
        capture_output=True, text=True, env={**os.environ, 'PYTHONPATH': str(tmp_path)},
    )  # fmt: skip
    assert result.returncode == 1, result.stdout + result.stderr
    (problem,) = [f for f in json.loads(result.stdout)['findings'] if f['status'] == 'problem']
    assert problem['name'] == 'mmlaplace._C'
    assert 'was compiled from other sources' in problem['found']
    assert problem['fix'].endswith(f'--no-deps --editable {tmp_path}')


def test_numpy_that_this_torch_does_not_know(monkeypatch, report):
    """As NumPy 2 with torch 2.1."""

    def numpy(tensor):
        raise RuntimeError('Numpy is not available')

    monkeypatch.setattr(torch.Tensor, 'numpy', numpy)
    monkeypatch.setattr('numpy.__version__', '2.3.0')
    status, findings = report()
    assert status == 1
    finding = findings['versions', 'numpy']
    assert finding['status'] == 'problem'
    assert finding['found'] == (
        f'torch {torch.__version__} does not work with NumPy 2.3.0 (Numpy is not available)'
    )
    assert finding['fix'].endswith("-m pip install 'numpy<2'")


def test_the_fix_names_a_compiler_where_there_is_none(monkeypatch):
    monkeypatch.setenv('CXX', '/no/such/compiler')
    assert fixes.build_library().startswith('apt-get install g++')


def test_a_library_without_cuda_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda index: (9, 0))
    monkeypatch.setattr(_native, 'AVAILABLE', {name: {'cpu'} for name in ops.__all__})
    findings = {f.name: f for f in library.check_library()}
    assert findings['CPU kernels'].status == 'ok'
    assert findings['CUDA kernels'].status == 'problem'
    assert (
        'no cholesky_inverse, gaussian_kernel, laplacian_kernel' in findings['CUDA kernels'].found
    )
    assert 'FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST="9.0" ' in findings['CUDA kernels'].fix


def test_an_op_that_the_library_lacks(monkeypatch):
    monkeypatch.setattr(_native, 'AVAILABLE', {'laplacian_kernel': {'cpu', 'cuda'}})
    cpu = {f.name: f for f in library.check_library()}['CPU kernels']
    assert cpu.status == 'problem'
    assert cpu.found == (
        'the library has no cholesky_inverse, gaussian_kernel, newton_schulz_inverse, '
        'nystrom_attention, pooled_landmarks for cpu'
    )


@pytest.mark.parametrize('factor', [1.001, float('nan')])
def test_an_op_that_computes_wrongly(monkeypatch, factor):
    right = ops.laplacian_kernel

    def wrong(*args, backend):
        return right(*args, backend=backend) * (factor if backend == 'auto' else 1)

    monkeypatch.setattr(ops, 'laplacian_kernel', wrong)
    finding = library.check_op('laplacian_kernel', torch.device('cpu'))
    assert finding.status == 'problem'
    assert 'expected at most 1e-05' in finding.found
    assert '--no-build-isolation' in finding.fix


def test_an_op_that_raises(monkeypatch):
    def broken(*args, backend):
        raise RuntimeError('no kernel image is available')

    monkeypatch.setattr(ops, 'laplacian_kernel', broken)
    finding = library.check_op('laplacian_kernel', torch.device('cpu'))
    assert finding.status == 'problem'
    assert finding.found == 'RuntimeError: no kernel image is available'


def test_every_op_with_a_backend_has_an_example():
    assert set(library.EXAMPLES) == set(library.native_ops())
    assert set(library.EXAMPLES) == {name for name in _native.AVAILABLE if not name.startswith('_')}


def test_mmcv_without_its_ops(hide, report):
    hide('mmcv._ext')
    status, findings = report()
    assert status == 1
    assert problems(findings) == ['mmcv._ext']
    finding = findings['ops of mmcv', 'mmcv._ext']
    assert 'without its compiled ops' in finding['found']
    tools, build, uninstall, install = finding['fix'].splitlines()
    assert "'setuptools>=80,<82' wheel ninja" in tools
    assert 'wheel --no-cache-dir --no-build-isolation --no-deps' in build
    assert build.endswith(fixes.pinned('mmcv'))
    assert 'uninstall -y mmcv onedl-mmcv mmcv-lite' in uninstall
    assert install.endswith('-*.whl')


def test_mmcv_needs_no_ops_for_mmpretrain_alone(hide, report, monkeypatch):
    hide('mmcv._ext', 'mmdet', 'mmseg')
    status, findings = report()
    assert status == 0
    finding = findings['ops of mmcv', 'mmcv._ext']
    assert finding['status'] == 'note'
    assert 'mmpretrain works, mmdet and mmseg need them' in finding['found']
    # In an environment of set-up one command adds the rest.
    monkeypatch.setattr(packages, 'complete_set_up', lambda: 'bash tools/setup_env.sh')
    status, findings = report()
    assert status == 0
    lacking = [name for (_, name), found in findings.items() if 'setup_env.sh' in found['fix']]
    assert lacking == ['mmdet', 'mmseg', 'mmcv._ext']


def test_one_toolbox_missing_is_a_note(hide, report):
    hide('mmseg')
    status, findings = report()
    assert status == 0
    finding = findings['versions', 'mmseg']
    assert (finding['status'], finding['found']) == ('note', 'not installed')
    assert finding['fix'].splitlines()[-1].endswith(f'{MMSEG}=={TESTED["mmseg"][MMSEG][1]}')
    assert ('types', 'mmseg') not in findings
    assert findings['types', 'mmdet']['status'] == 'ok'


def test_no_toolbox_is_a_problem(hide, report):
    hide('mmcv', *PACKAGES)
    status, findings = report()
    assert status == 1
    assert sorted(problems(findings)) == sorted(PACKAGES)
    # Each needs mmcv with its ops first.
    assert ' wheel --no-cache-dir ' in findings['versions', 'mmdet']['fix']
    assert findings['versions', 'mmcv']['status'] == 'note'


def test_fork_and_upstream_at_once(monkeypatch, report):
    both = {'mmengine': '0.10.7', 'onedl-mmengine': '0.10.12'}
    monkeypatch.setattr(dependencies, 'version', lambda name: both.get(name) or version(name))
    status, findings = report()
    assert status == 1
    assert problems(findings) == ['mmengine']
    finding = findings['versions', 'mmengine']
    assert 'mmengine 0.10.7 and onedl-mmengine 0.10.12 are both installed' in finding['found']
    uninstall, install = finding['fix'].splitlines()[-2:]
    assert uninstall.endswith('uninstall -y mmengine onedl-mmengine')
    # That of the torch that is here, as the engines do not tell.
    assert install.endswith('onedl-mmengine==0.10.12' if FORKS else ' mmengine==0.10.7')


def test_a_distribution_whose_modules_are_gone(hide, monkeypatch):
    hide('mmdet')
    monkeypatch.setattr(dependencies, 'version', version)
    finding = packages.package_version('mmdet')
    assert finding.status == 'problem'
    assert 'its modules are gone' in finding.found


def test_untested_versions_are_notes(monkeypatch):
    def newer(distribution):
        if distribution == 'mmdet':
            return '4.0.0'
        raise PackageNotFoundError(distribution)

    monkeypatch.setattr(dependencies, 'version', newer)
    finding = packages.package_version('mmdet')
    assert finding.status == 'note'
    assert finding.found == 'mmdet 4.0.0, upstream; tested: 3.3.0'
    assert 'tools/setup_env.sh' in finding.fix


@pytest.mark.parametrize(
    ('error', 'fix'),
    [
        (ModuleNotFoundError("No module named 'ftfy'", name='ftfy'), 'pip install ftfy'),
        (ModuleNotFoundError("No module named 'mmcv._ext'", name='mmcv._ext'), 'pip wheel'),
        (AssertionError('MMCV==2.2.0 is used but incompatible.'), 'pip wheel'),
        (ImportError('libGL.so.1: cannot open shared object file'), 'apt-get install libgl1'),
        (ImportError('cannot import name', name='mmengine.utils'), 'mmengine=='),
        (RuntimeError('operator torchvision::nms does not exist'), 'tools/setup_env.sh'),
    ],
)
def test_a_toolbox_that_does_not_import(monkeypatch, error, fix):
    def fail(name):
        raise error

    monkeypatch.setattr(packages, 'import_module', fail)
    finding = packages.check_types_in('mmdet')
    assert finding.status == 'problem'
    assert finding.found == f'does not import: {type(error).__name__}: {error}'
    assert fix in finding.fix


def test_a_toolbox_with_a_type_of_the_same_name(monkeypatch):
    models = import_module('mmdet.registry').MODELS
    monkeypatch.setitem(models.module_dict, 'SOFT', torch.nn.Identity)
    finding = packages.check_types_in('mmdet')
    assert finding.status == 'problem'
    assert 'has its own SOFT' in finding.found
    assert "type='mmengine.SOFT'" in finding.fix
    from mmlaplace.models import SOFT

    assert models.get('mmengine.SOFT') is SOFT


def test_a_check_that_fails_is_a_problem(monkeypatch, report):
    def fail():
        raise OSError('disk full')

    monkeypatch.setitem(check_report.CHECKS, 'ops', fail)
    status, findings = report()
    assert status == 1
    assert findings['ops', 'ops']['found'] == 'the check failed: OSError: disk full'


def test_the_build_tools_are_those_of_set_up():
    lines = (ROOT / 'requirements/build.txt').read_text().splitlines()
    assert list(fixes.BUILD_TOOLS) == [line for line in lines if not line.startswith('#')]


def test_nothing_but_the_report_goes_to_stdout(monkeypatch, capsys):
    def chatty():
        sys.stdout.write('a toolbox says hello\n')
        return []

    monkeypatch.setitem(check_report.CHECKS, 'types', chatty)
    check.main(['--json'])
    assert 'hello' not in capsys.readouterr().out


def test_help_has_an_example(capsys):
    with pytest.raises(SystemExit, match='0'):
        check.main(['--help'])
    assert 'python -m mmlaplace.check --json' in capsys.readouterr().out
