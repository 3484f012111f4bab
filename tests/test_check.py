"""``python -m mmlaplace check`` in installations that work and that do not."""

import json
import math
import re
import shutil
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from unittest import mock

import pytest
import torch
from conftest import ROOT, registered, run_python
from mmengine.registry import MODELS

from mmlaplace import check, dependencies, ops, toolboxes
from mmlaplace.check import library, packages
from mmlaplace.check import report as check_report
from mmlaplace.check.packages import AFTER_TOOLBOXES
from mmlaplace.dependencies import TESTED, installed_distributions
from mmlaplace.ops import _native
from mmlaplace.toolboxes import PACKAGES

FORKS = bool(installed_distributions('mmengine').get('onedl-mmengine'))
MMSEG = 'onedl-mmsegmentation' if FORKS else 'mmsegmentation'
AGAIN = 'install --no-build-isolation --force-reinstall --no-deps'


@pytest.fixture
def report(capsys):
    """The exit status of a run, its findings by check and name, and the names of the problems."""

    def run():
        status = check.main(['--json'])
        findings = json.loads(capsys.readouterr().out)['findings']
        problems = [f['name'] for f in findings if f['status'] == 'problem']
        return status, {(f['check'], f['name']): f for f in findings}, problems

    return run


@pytest.mark.slow
def test_all_is_fine_in_an_environment_of_set_up(tmp_path):
    result = run_python('-m', 'mmlaplace', 'check', '--json', cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    content = json.loads(result.stdout)
    findings = {f['name']: f for f in content['findings']}
    assert content['ok'] and {f['status'] for f in findings.values()} == {'ok'}
    assert {*TESTED, 'CUDA', 'numpy', 'mmcv._ext', 'mmlaplace._C', 'CPU kernels'} <= set(findings)
    for name in _native.AVAILABLE:
        if not name.startswith('_'):
            assert findings[f'{name}, cpu']['found'].startswith('native, relative error ')
    types = sum(MODELS.get(name).__module__ not in AFTER_TOOLBOXES for name in registered(object))
    types = f'finds all {types} types of mmlaplace'
    assert all(findings[package]['found'] == types for package in PACKAGES)


def test_no_native_library(monkeypatch, tmp_path, report):
    monkeypatch.setattr(_native, 'WHY_MISSING', _native.load_library(tmp_path))
    status, findings, problems = report()
    assert (status, problems) == (1, ['mmlaplace._C'])
    fix = findings['compiled library', 'mmlaplace._C']['fix']
    assert fix.splitlines()[-1].endswith(f'{AGAIN} --editable {ROOT}')
    op = findings['ops', 'laplacian_kernel, cpu']
    assert op['status'] == 'note' and op['found'].startswith('PyTorch reference, relative error ')


@pytest.mark.parametrize(
    ('entry', 'other', 'named'),
    [
        (rb'torch(_from)?=[\d.]+', b'torch=1.13', 'torch 1.13, and this is torch '),
        (rb'torch(_from)?=[\d.]+', b'torch_from=9.1', 'torch 9.1 and later, and this is torch '),
        (rb'machine=\w+', b'machine=mips64', 'mips64'),
    ],
)
def test_a_library_for_something_else_is_a_problem(entry, other, named, monkeypatch, tmp_path):
    file = check.loaded_library()
    content, found = re.subn(b'(mmlaplace built for )' + entry, rb'\1' + other, file.read_bytes())
    assert found == 1
    # The loader of the system says of another machine's library that there is no such file.
    (tmp_path / file.name).write_bytes(content)
    monkeypatch.setattr(_native, 'WHY_MISSING', _native.load_library(tmp_path))
    (finding,) = library.check_library()
    assert finding.status == 'problem' and AGAIN in finding.fix
    assert f'{file.name} was compiled for {named}' in finding.found


def test_a_library_of_other_sources_is_a_problem(monkeypatch, tmp_path):
    """In a clone whose sources changed after they were compiled."""
    package, file = tmp_path / 'mmlaplace', check.loaded_library()
    package.mkdir()
    (package / file.name).symlink_to(file)
    shutil.copytree(ROOT / 'ops', tmp_path / 'ops')
    shutil.copy(ROOT / 'setup.py', tmp_path)
    with (tmp_path / 'ops/common/metrics.h').open('a') as header:
        header.write('// changed\n')
    monkeypatch.setattr(library, 'PACKAGE', package)
    (finding,) = library.check_library()
    assert finding.status == 'problem' and 'was compiled from other sources' in finding.found


def test_a_library_that_lacks_ops_for_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 2)
    monkeypatch.setattr(torch.cuda, 'get_device_capability', lambda index: (9, 0))
    monkeypatch.setattr(_native, 'AVAILABLE', {name: {'cpu'} for name in ops.__all__})
    findings = {f.name: f for f in library.check_library()}
    finding = findings['CUDA kernels']
    assert (findings['CPU kernels'].status, finding.status) == ('ok', 'problem')
    assert (
        'the library has no cholesky_inverse, gaussian_kernel, kernel_attention, lapl'
        in finding.found
    )
    assert 'FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST="9.0" ' in finding.fix


def test_a_library_for_gpus_is_fine_where_there_is_none(monkeypatch):
    no_driver = mock.Mock(side_effect=RuntimeError('Found no NVIDIA driver on your system'))
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 0)
    monkeypatch.setattr(torch.cuda, 'current_device', no_driver)
    monkeypatch.setattr(_native, 'AVAILABLE', {name: {'cpu', 'cuda'} for name in ops.__all__})
    findings = {f.name: f for f in library.check_library()}
    finding = findings['CUDA kernels']
    assert finding.status == 'ok' and finding.found.startswith('compiled by CUDA')


@pytest.mark.parametrize(
    ('wrong', 'found'),
    [
        (lambda right: right * 1.001, 'expected at most 1e-05'),
        (lambda right: right * math.nan, 'expected at most 1e-05'),
        (mock.Mock(side_effect=RuntimeError('no kernel image')), 'RuntimeError: no kernel image'),
    ],
)
def test_an_op_that_computes_wrongly_or_raises(monkeypatch, wrong, found):
    right = ops.laplacian_kernel

    def op(*tensors, backend, **options):
        computed = right(*tensors, backend=backend, **options)
        return wrong(computed) if backend == 'auto' else computed

    monkeypatch.setattr(ops, 'laplacian_kernel', op)
    finding = library.check_op('laplacian_kernel', torch.device('cpu'))
    assert finding.status == 'problem' and found in finding.found and AGAIN in finding.fix


def test_odd_versions_are_no_error():
    assert dependencies.tested_instead('mmcv', 'mmcv', '2.1-local_build') == '2.1.0'
    assert dependencies.tested_instead('mmcv', 'mmcv', '2.1.5') is None


@pytest.mark.parametrize(
    ('hidden', 'problems', 'name', 'found', 'fix'),
    [
        (['mmcv._ext'], ['mmcv._ext'], 'mmcv._ext', 'mmpretrain works', '-*.whl'),
        (
            ['mmcv._ext', 'mmdet', 'mmseg'],
            [],
            'mmcv._ext',
            'mmpretrain works, mmdet and mmseg need them',
            '-*.whl',
        ),
        (['mmseg'], [], 'mmseg', 'not installed', f'{MMSEG}=={TESTED["mmseg"][MMSEG][1]}'),
        (['mmcv', *PACKAGES], [], 'mmcv', 'not installed', '-*.whl'),
        (['mmcv'], ['mmcv'], 'mmcv', 'not installed', '-*.whl'),
    ],
)
def test_missing_packages(monkeypatch, report, hidden, problems, name, found, fix):
    def import_unless_hidden(module):
        if module.startswith(tuple(hidden)):
            raise ModuleNotFoundError(f'No module named {module!r}', name=module)
        return import_module(module)

    def version_unless_hidden(distribution):
        if any(distribution in TESTED.get(package, ()) for package in hidden):
            raise PackageNotFoundError(distribution)
        return version(distribution)

    spec = toolboxes.find_spec
    monkeypatch.setattr(packages, 'import_module', import_unless_hidden)
    monkeypatch.setattr(toolboxes, 'find_spec', lambda n: None if n in hidden else spec(n))
    monkeypatch.setattr(dependencies, 'version', version_unless_hidden)
    status, findings, found_problems = report()
    assert (status, found_problems) == (bool(problems), problems)
    finding = findings['ops of mmcv' if name == 'mmcv._ext' else 'versions', name]
    assert finding['status'] == ('problem' if name in problems else 'note')
    assert found in finding['found'] and finding['fix'].splitlines()[-1].endswith(fix)


@pytest.mark.parametrize(
    ('name', 'installed', 'status', 'found', 'fix'),
    [
        (
            'mmengine',
            {'mmengine': '0.10.7', 'onedl-mmengine': '0.10.12'},
            'problem',
            'mmengine 0.10.7 and onedl-mmengine 0.10.12 are both installed',
            # That of the torch that is here, as the engines do not tell.
            'onedl-mmengine==0.10.12' if FORKS else ' mmengine==0.10.7',
        ),
        (
            'mmdet',
            {'mmdet': '4.0.0'},
            'note',
            'mmdet 4.0.0, upstream; tested: 3.3.0',
            'tools/setup_env.sh',
        ),
        ('mmdet', {'mmdet': '3.3.0'}, 'ok', 'mmdet 3.3.0, upstream', ''),
        # An interrupted removal leaves a distribution without a version.
        ('mmdet', {'mmdet': None}, 'note', 'not from a tested distribution', ''),
        ('mmdet', {}, 'note', 'not from a tested distribution', ''),
    ],
)
def test_versions_that_are_there(monkeypatch, name, installed, status, found, fix):
    def installed_version(distribution):
        if distribution not in installed:
            raise PackageNotFoundError(distribution)
        return installed[distribution]

    monkeypatch.setattr(dependencies, 'version', installed_version)
    finding = packages.package_version(name)
    assert finding.status == status and found in finding.found and fix in finding.fix


@pytest.mark.parametrize(
    ('error', 'fix'),
    [
        (ModuleNotFoundError("No module named 'ftfy'", name='ftfy'), 'pip install ftfy'),
        (AssertionError('MMCV==2.2.0 is used but incompatible.'), 'pip wheel'),
        (ImportError('libGL.so.1: cannot open shared object file'), 'apt-get install libgl1'),
        (ImportError('cannot import name', name='mmengine.utils'), 'mmengine=='),
        (RuntimeError('operator torchvision::nms does not exist'), 'tools/setup_env.sh'),
    ],
)
def test_a_toolbox_that_does_not_import(monkeypatch, error, fix):
    monkeypatch.setattr(packages, 'import_module', mock.Mock(side_effect=error))
    finding = packages.check_types_in('mmdet')
    assert finding.found.endswith(f'{type(error).__name__}: {error}')
    assert finding.status == 'problem' and fix in finding.fix


def test_a_check_that_fails_is_a_problem_and_stdout_has_the_report_alone(monkeypatch, report):
    def fail():
        sys.stdout.write('a toolbox says hello\n')  # which would be no JSON
        raise OSError('disk full')

    monkeypatch.setitem(check_report.CHECKS, 'ops', fail)
    status, findings, _ = report()
    assert status == 1
    assert findings['ops', 'ops']['found'].endswith('OSError: disk full')
