"""The native sources: their format, under sanitizers, and CUDA's device code run on a CPU."""

import os
import re
import shutil
import subprocess
import sys

import clang_format
import pytest
from conftest import ROOT

from mmlaplace.check.library import loaded_library
from mmlaplace.ops import _native
from mmlaplace.ops._sources import SUFFIXES

COMPILER = os.environ.get('CXX') or 'g++'
needs_compiler = pytest.mark.skipif(
    shutil.which(COMPILER) is None, reason=f'no compiler {COMPILER}'
)


def run(command, **environment):
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert result.returncode == 0, f'{command}\n{result.stdout[-2000:]}\n{result.stderr[-4000:]}'
    return result.stdout


def test_clang_format_would_change_no_native_source():
    # Of the environment and not of the PATH, as versions differ in their changes.
    paths = [*ROOT.glob('ops/**/*'), *ROOT.glob('tests/ops/native/*')]
    sources = [path for path in paths if path.suffix in SUFFIXES]
    run([clang_format.get_executable('clang-format'), '--dry-run', '-Werror', *sources])
    # It leaves a line alone that it cannot break.
    assert not [path for path in sources if max(map(len, path.read_text().splitlines())) > 100]


@pytest.mark.skipif(shutil.which('nm') is None, reason='no nm')
@pytest.mark.skipif(_native.WHY_MISSING is not None, reason='the compiled library is missing')
def test_a_library_of_the_stable_abi_needs_no_class_of_torch():
    library = loaded_library()
    if 'torch_from' not in _native.build_info(library):
        pytest.skip('it is for one torch before 2.10, by its C++ classes')
    names = re.findall(r'\S+$', run(['nm', '-D', '--undefined-only', library]), re.MULTILINE)
    assert any(name.startswith('aoti_torch_') for name in names)
    # C++ writes the namespaces at, c10 and torch into a name with their lengths.
    assert not [name for name in names if re.match(r'_Z\w*?(2at|3c10|5torch)\d', name)]


@pytest.mark.sanitizer
@needs_compiler
@pytest.mark.parametrize(
    'op',
    [
        'kernels',
        'inverses',
        'nystrom_attention',
        'pooled_landmarks',
        'linear_attention',
        'tensor_cores',
    ],
)
@pytest.mark.parametrize(
    ('sanitizer', 'cases'),
    [
        ('address,undefined', 'all'),  # indices, alignment, overflow
        ('thread', 'few'),  # a missing __syncthreads is a data race
    ],
)
def test_cuda_kernels_run_right_on_a_cpu(op, sanitizer, cases, tmp_path):
    program = tmp_path / op
    run(
        [
            COMPILER,
            '-std=c++17',
            '-O0',
            '-g',
            '-Wall',
            '-Werror',
            '-Wno-unknown-pragmas',
            '-pthread',
            f'-fsanitize={sanitizer}',
            '-fno-sanitize-recover=all',
            ROOT / f'tests/ops/native/cuda_{op}_test.cpp',
            '-o',
            program,
        ]
    )
    assert 'all checks passed' in run([program, cases], TSAN_OPTIONS='halt_on_error=1')


@pytest.mark.sanitizer
@needs_compiler
def test_cpu_ops_pass_under_address_and_undefined_behaviour_sanitizers(tmp_path):
    """The op tests again, with a library built by MMLAPLACE_SANITIZE=1."""
    # The sanitizer looks for libstdc++ when it starts, and torch 2.1 throws while it is loaded.
    preload = [
        run([COMPILER, f'-print-file-name={library}.so']).strip()
        for library in ('libasan', 'libstdc++')
    ]
    if not all(map(os.path.isabs, preload)):
        pytest.skip(f'{COMPILER} has no AddressSanitizer library to load into Python')
    run(
        [
            sys.executable,
            'setup.py',
            '-q',
            'build_ext',
            '--build-temp',
            tmp_path / 'objects',
            '--build-lib',
            tmp_path,
        ],
        MMLAPLACE_SANITIZE='1',
        FORCE_CUDA='0',
    )
    (library,) = tmp_path.glob('mmlaplace/_C*.so')
    # The package as it is, with the instrumented library in place of its own.
    package = tmp_path / 'site' / 'mmlaplace'
    shutil.copytree(
        ROOT / 'mmlaplace', package, ignore=shutil.ignore_patterns('_C*.so', '.mim', '__pycache__')
    )
    shutil.copy(library, package)
    shutil.copytree(ROOT / 'tests', tmp_path / 'site' / 'tests')
    output = run(
        [
            sys.executable,
            '-m',
            'pytest',
            '-q',
            '-p',
            'no:cacheprovider',
            '-x',
            '--rootdir',
            tmp_path / 'site',
            *(
                tmp_path / f'site/tests/ops/test_{name}.py'
                for name in (
                    'contracts',
                    'layouts',
                    'kernels',
                    'inverse',
                    'nystrom_attention',
                    'pooled_landmarks',
                    'linear_attention',
                    'fused',
                )
            ),
            '-m',
            'not slow',
            '-k',
            '(native-cpu or fused) and not threads and not thousand',
        ],
        PYTHONPATH=str(tmp_path / 'site'),
        LD_PRELOAD=' '.join(preload),
        # Python itself keeps memory until it ends; ODR: torch defines some of its globals twice.
        ASAN_OPTIONS='detect_leaks=0:detect_odr_violation=0',
        UBSAN_OPTIONS='print_stacktrace=1',
    )
    assert ' passed' in output
