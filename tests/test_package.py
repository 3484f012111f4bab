"""Installation: what a wheel holds, what an import needs."""

import json
import os
import re
import subprocess
import sys
import zipfile

import pytest
import torch
from conftest import ROOT, run_python, run_script
from test_docs import code_blocks
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
    outside = ('tests/', 'configs/', 'data/', 'studies/', 'reproduction/', 'hybrids/')
    assert not [name for name in names if name.startswith(outside)]
    assert not [name for name in names if 'studies' in name or 'configs/tables' in name]


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


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
    """A folder with the installed wheel alone, and another one to work in, far from a clone."""
    target, place = tmp_path_factory.mktemp('installed'), tmp_path_factory.mktemp('place')
    install = ['-m', 'pip', 'install', '-q', '--no-deps', '--no-index', '--target', target, wheel]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    attention = code_blocks(ROOT / 'docs/tutorials/add_attention.md', 'python')[0]
    (place / 'elu_attention.py').write_text(attention)
    return target, place


def run_installed(installed, *words):
    target, place = installed
    return run_python(*words, cwd=place, PYTHONPATH=str(target))


@pytest.mark.sampled(2, 2)
@pytest.mark.wheel
@pytest.mark.parametrize(
    ('words', 'said'),
    [
        ('', 'compare an attention of yours'),
        ('list softpp-tiny_8xb128_in1k', 'softpp-tiny_8xb128_in1k'),
        ('list --weights cswin-tiny', 'cswin-tiny'),
        ('config softpp-tiny_8xb128_in1k', "type='SOFTPlusPlus'"),
        ('check', 'no compiled library'),
        ('compare elu_attention.py:EluAttention --contract', '0 of 17 points failed'),
        ('compare probes --quick --tasks offset --attentions Softmax', 'results are in'),
        ('compare trainings --attentions LinearAttention', 'make_mini_datasets.py'),
    ],
    ids=lambda words: words[:30],
)
def test_every_command_runs_without_a_clone(words, said, installed):
    result = run_installed(installed, '-m', 'mmlaplace', *words.split())
    output = result.stdout + result.stderr
    assert said in output and 'Traceback' not in output, output[-3000:]
    assert f'{ROOT}/mmlaplace' not in output and f'{ROOT}/tools' not in output
    refused = words.startswith('compare trainings')  # as there is no data
    without_library = words == 'check'
    assert result.returncode == (2 if refused else int(without_library)), output[-3000:]


# Each in the same process, which imports torch once.
TOOLS_OF_MIM = """
import contextlib, io, pathlib, runpy, sys
import mmlaplace
from mmlaplace.model_zoo import files_root

root = files_root()
assert root.parts[-2:] == ('mmlaplace', '.mim') and str(root) == sys.argv[1], root
path = list(sys.path)
for script in sorted(root.glob('tools/**/*.py')):
    sys.argv, sys.path[:] = [str(script), '--help'], [str(script.parent), *path]
    said, status = io.StringIO(), 0
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(str(script), run_name='__main__')
    except SystemExit as end:
        status = end.code
    assert not status and len(said.getvalue()) > 80, (script, status)
names = {name.partition('.')[0] for name in sys.modules}
assert not {'reproduction', 'hybrids', 'explorer'} & names
"""


@pytest.mark.wheel
def test_every_tool_of_the_wheel_helps_without_a_clone(installed):
    result = run_installed(installed, '-c', TOOLS_OF_MIM, installed[0] / 'mmlaplace/.mim')
    assert result.returncode == 0, result.stderr[-3000:]


@pytest.mark.wheel
def test_a_tool_of_the_wheel_counts_a_model_by_its_name(installed):
    tool = installed[0] / 'mmlaplace/.mim/tools/analysis_tools/get_flops.py'
    result = run_installed(installed, tool, 'softpp-tiny_8xb128_in1k')
    assert '13.07 M' in result.stdout, result.stderr[-3000:]


@pytest.mark.wheel
@pytest.mark.training
@pytest.mark.thorough
def test_attentions_are_trained_and_measured_without_a_clone(installed, noise_images):
    sides = dict(train=64, val=64, val_96=96, val_128=128)
    for folder, side in sides.items():
        noise_images(installed[1] / 'few/textures' / folder, side, classes=15)
    options = '--seeds 0 --epochs 2 --image-size 64 --jobs 1 --data-root few'
    words = f'compare trainings --attentions LinearAttention {options}'.split()
    result = run_installed(installed, '-m', 'mmlaplace', *words)
    assert result.returncode == 0, result.stdout + result.stderr
    (results,) = installed[1].glob('work_dirs/*/results.json')
    content = json.loads(results.read_text())
    assert len(content['results']) == len(content['costs']) == 1


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


@pytest.mark.slow
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
