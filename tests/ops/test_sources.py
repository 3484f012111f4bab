"""The native sources under sanitizers, and the device code of the CUDA kernels run on a CPU."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

COMPILER = os.environ.get('CXX') or 'g++'
pytestmark = [
    pytest.mark.sanitizer,
    pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f'no compiler {COMPILER}'),
]


def run(command, **environment):
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert result.returncode == 0, f'{command}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}'
    return result.stdout


@pytest.mark.parametrize(
    'source',
    [
        'cuda_kernels_test',
        'cuda_inverses_test',
        'cuda_nystrom_attention_test',
        'cuda_pooled_landmarks_test',
    ],
)
@pytest.mark.parametrize(
    ('sanitizer', 'cases'),
    [
        ('address,undefined', 'all'),  # indices, alignment, overflow
        ('thread', 'few'),  # a missing __syncthreads is a data race
    ],
)
def test_cuda_kernels_run_right_on_a_cpu(source, sanitizer, cases, tmp_path):
    program = tmp_path / source
    run([COMPILER, '-std=c++17', '-O0', '-g', '-Wall', '-Werror', '-Wno-unknown-pragmas',
         '-pthread', f'-fsanitize={sanitizer}', '-fno-sanitize-recover=all',
         ROOT / f'tests/ops/native/{source}.cpp', '-o', program])  # fmt: skip
    assert 'all checks passed' in run([program, cases], TSAN_OPTIONS='halt_on_error=1')


def test_cpu_ops_pass_under_address_and_undefined_behaviour_sanitizers(tmp_path):
    """The op tests again, with a library built by MMLAPLACE_SANITIZE=1."""
    # The sanitizer looks for libstdc++ when it starts, and torch 2.1 throws while it is loaded.
    preload = [
        subprocess.run(
            [COMPILER, f'-print-file-name={library}.so'], capture_output=True, text=True, check=True
        ).stdout.strip()
        for library in ('libasan', 'libstdc++')
    ]
    if not all(map(os.path.isabs, preload)):
        pytest.skip(f'{COMPILER} has no AddressSanitizer library to load into Python')
    run([sys.executable, 'setup.py', '-q', 'build_ext', '--build-temp', tmp_path / 'objects',
         '--build-lib', tmp_path], MMLAPLACE_SANITIZE='1', FORCE_CUDA='0')  # fmt: skip
    (library,) = tmp_path.glob('mmlaplace/_C*.so')
    # The package as it is, with the instrumented library in place of its own.
    package = tmp_path / 'site' / 'mmlaplace'
    shutil.copytree(
        ROOT / 'mmlaplace', package, ignore=shutil.ignore_patterns('_C*.so', '.mim', '__pycache__')
    )
    shutil.copy(library, package)
    shutil.copytree(ROOT / 'tests', tmp_path / 'site' / 'tests')
    output = run(
        [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider', '-x',
         '--rootdir', tmp_path / 'site',
         *(tmp_path / f'site/tests/ops/test_{name}.py'
           for name in ('contracts', 'kernels', 'inverse', 'nystrom_attention',
                        'pooled_landmarks', 'fused')),
         '-m', 'not slow',
         '-k', '(native-cpu or fused) and not threads and not thousand'],
        PYTHONPATH=str(tmp_path / 'site'), LD_PRELOAD=' '.join(preload),
        # Python itself keeps memory until it ends; ODR: torch defines some of its globals twice.
        ASAN_OPTIONS='detect_leaks=0:detect_odr_violation=0', UBSAN_OPTIONS='print_stacktrace=1',
    )  # fmt: skip
    assert ' passed' in output
