"""Installation: what a wheel holds, what an import needs."""

import os
import re
import subprocess
import sys
import zipfile

import pytest
import torch
from conftest import ROOT, run_python, run_script
from torch.utils import cpp_extension


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """A wheel built from the tracked files, without nvcc or compiler in reach."""
    source, out = tmp_path_factory.mktemp('source'), tmp_path_factory.mktemp('wheel')
    listed = 'git ls-files --cached --others --exclude-standard -z'
    copied = f'{listed} | tar -c --null -T - --ignore-failed-read | tar -x -C {source}'
    subprocess.run(copied, shell=True, cwd=ROOT, check=True)
    subprocess.run(
        [
            sys.executable,
            '-m',
            'pip',
            'wheel',
            '-q',
            '--no-deps',
            '--no-build-isolation',
            '--wheel-dir',
            out,
            source,
        ],
        check=True,
        env={**os.environ, 'CC': 'false', 'CXX': 'false', 'CUDA_HOME': ''},
    )
    (path,) = out.glob('*.whl')
    return path


@pytest.mark.wheel
def test_wheel_holds_configs_and_tools_where_mim_looks(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for pattern in ('configs/**/*.py', 'configs/**/*.yml', 'tools/**/*.py', 'model-index.yml'):
        paths = {f'mmlaplace/.mim/{path.relative_to(ROOT)}' for path in ROOT.glob(pattern)}
        assert paths and paths <= names
    scripts = {path.name for path in (ROOT / 'tools').glob('*.sh')}
    packed = {name.split('/')[-1] for name in names if name.endswith('.sh')}
    assert scripts - packed == {'gpu_check.sh', 'quickstart.sh', 'run_tests.sh', 'setup_env.sh'}
    assert packed < scripts  # and none of .dev_scripts
    for path in (ROOT / 'mmlaplace').rglob('*.py'):
        if '.mim' not in path.parts:
            assert str(path.relative_to(ROOT)) in names
    assert not [name for name in names if name.startswith(('tests/', 'configs/', 'data/'))]


@pytest.mark.wheel
def test_without_a_compiler_it_finds_its_configs_and_the_reference_computes(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = (
        'import torch, mmlaplace, mmlaplace.ops as ops; x = torch.ones(1, 1, 2, 3)\n'
        'assert mmlaplace.list_models()\n'
        'for _ in range(3): ops.laplacian_kernel(x, x, 4.0), ops.gaussian_kernel(x, x, 4.0)\n'
        'ops.laplacian_kernel(x, x, 4.0, backend="native")'
    )
    result = run_python('-c', code, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    output = result.stdout + result.stderr
    assert output.count('using the PyTorch reference, because') == 1
    assert "RuntimeError: backend='native' was asked for" in output
    assert 'no compiled library' in output


@pytest.fixture
def version_by_setup(monkeypatch):
    """Run ``setup.py --version``, which decides what it would compile."""

    def run(**variables: str) -> subprocess.CompletedProcess:
        monkeypatch.chdir(ROOT)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if 'CUDA_HOME' in variables:  # which torch reads when it is imported
            monkeypatch.setattr(cpp_extension, 'CUDA_HOME', variables['CUDA_HOME'])
        return run_script(ROOT / 'setup.py', '--version')

    return run


@pytest.mark.parametrize(
    ('variables', 'status', 'said'),
    [
        (dict(FORCE_CUDA='0'), 0, r'mmlaplace: compiled ops for torch .*: \d+ sources, CPU'),
        (dict(MMLAPLACE_WITH_OPS='0'), 0, 'mmlaplace: no compiled ops: MMLAPLACE_WITH_OPS=0'),
        (dict(CXX='false'), 0, r'ops: false does not compile .*install g\+\+ or set CXX'),
        (
            dict(FORCE_CUDA='1', CUDA_HOME='/no/such/toolkit'),
            1,
            "FORCE_CUDA=1, but there is no nvcc: .*set CUDA_HOME .now '/no/such/toolkit'",
        ),
    ],
)
def test_the_build_says_what_it_compiles_or_why_not(version_by_setup, variables, status, said):
    if status and torch.version.cuda is None:
        pytest.skip('this torch is built without CUDA')
    result = version_by_setup(**variables)
    assert bool(result.returncode) == bool(status)
    assert re.search(said, result.stderr, re.DOTALL)
    if variables == dict(FORCE_CUDA='0') and not torch.cuda.is_available():
        assert 'CUDA only with a visible GPU or FORCE_CUDA=1' in result.stderr


@pytest.mark.parametrize(
    ('release', 'gpu', 'asked', 'said'),
    [
        ('12.4', True, {}, 'ops for the CPU alone: .*nvcc is of CUDA 12, and torch'),
        ('12.4', False, dict(FORCE_CUDA='1'), 'FORCE_CUDA=1, but .*nvcc is of CUDA 12, and torch'),
        ('13.0', True, dict(FORCE_CUDA='0'), 'sources, CPU; CUDA only with'),  # not asked for
    ],
)
def test_an_nvcc_of_another_cuda_leaves_the_ops_for_the_cpu(
    version_by_setup, monkeypatch, tmp_path, release, gpu, asked, said
):
    nvcc = tmp_path / 'bin/nvcc'
    nvcc.parent.mkdir()
    nvcc.write_text(f'#!/bin/sh\necho "Cuda compilation tools, release {release}, V{release}.1"\n')
    nvcc.chmod(0o755)
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: gpu)
    monkeypatch.setattr(torch.version, 'cuda', '13.0')
    result = version_by_setup(CUDA_HOME=str(tmp_path), **asked)
    assert bool(result.returncode) == (asked == dict(FORCE_CUDA='1'))
    assert re.search(said, result.stderr, re.DOTALL), result.stderr


HEAVY = [
    'mmcv',
    'mmdet',
    'mmseg',
    'mmpretrain',
    'torchvision',
    'sklearn',
    'skimage',
    'timm',
    'transformers',
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ('code', 'warnings', 'status', 'said'),
    [
        # torch and mmengine are enough, and versions that were tested do not warn.
        (
            f'import mmlaplace, sys; assert not set({HEAVY}) & set(sys.modules)',
            'error::UserWarning',
            0,
            (),
        ),
        (
            'import sys; sys.modules["mmengine"] = None; import mmlaplace',
            '',
            1,
            ('".[onedl]"', '".[openmmlab]"'),
        ),
        (
            'import importlib.metadata as m; real = m.version\n'
            'm.version = lambda name: "99.1" if name == "torch" else real(name)\n'
            'import mmlaplace',
            'always',
            0,
            ('torch 2.1.2 to 2.14.1 (here: 99.1)',),
        ),
    ],
)
def test_an_import_needs_little_and_says_what_is_wrong(code, warnings, status, said):
    result = run_python('-c', code, PYTHONWARNINGS=warnings)
    assert result.returncode == status, result.stderr
    assert all(words in result.stderr for words in said), result.stderr
