"""Who computes: the compiled library when it can, the reference with one log line when not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT

import mmlaplace
from mmlaplace.ops import _native, gaussian_kernel, laplacian_kernel, newton_schulz_inverse

Q, K = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 3, 4)


@pytest.fixture
def fresh(monkeypatch):
    """The loader as in a new process, with its log lines."""
    lines = []
    monkeypatch.setattr(_native, 'print_log', lambda line, **_: lines.append(line))
    _native._log_fallback.cache_clear()
    yield lines
    _native._log_fallback.cache_clear()


@pytest.fixture
def without_library(fresh, monkeypatch, tmp_path):
    monkeypatch.setattr(_native, 'WHY_MISSING', _native.load_library(tmp_path))
    return fresh


def test_auto_is_native_where_the_library_is(fresh, monkeypatch):
    calls = []
    native = torch.ops.mmlaplace.laplacian_kernel.default
    monkeypatch.setattr(
        torch.ops.mmlaplace.laplacian_kernel,
        'default',
        lambda *args: calls.append(1) or native(*args),
    )
    laplacian_kernel(Q, K, 4.0)
    laplacian_kernel(Q, K, 4.0, backend='native')
    laplacian_kernel(Q, K, 4.0, backend='reference')
    assert len(calls) == 2
    assert fresh == []


def test_auto_falls_back_with_one_line(without_library):
    for _ in range(3):
        laplacian_kernel(Q, K, 4.0)
        gaussian_kernel(Q, K, 4.0)
    assert len(without_library) == 1
    assert 'no compiled library' in without_library[0]


@pytest.mark.parametrize(
    'call',
    [
        lambda: laplacian_kernel(Q, K, 4.0, backend='native'),
        lambda: gaussian_kernel(Q, K, 4.0, backend='native'),
        lambda: newton_schulz_inverse(torch.eye(2), backend='native'),
    ],
)
def test_native_without_library_says_why_and_what_to_do(without_library, call):
    with pytest.raises(RuntimeError, match="no compiled.*no-build-isolation.*backend='auto'"):
        call()


def test_a_library_that_does_not_load_says_why(fresh, monkeypatch, tmp_path):
    (tmp_path / '_C.so').write_bytes(b'not a library')
    monkeypatch.setattr(_native, 'WHY_MISSING', _native.load_library(tmp_path))
    with pytest.raises(RuntimeError, match='_C.so did not load with torch .*: '):
        laplacian_kernel(Q, K, 4.0, backend='native')
    torch.testing.assert_close(
        laplacian_kernel(Q, K, 4.0), laplacian_kernel(Q, K, 4.0, backend='reference')
    )


def test_a_library_for_another_torch_is_not_loaded(tmp_path):
    (tmp_path / '_C.so').write_bytes(b'\0mmlaplace built for torch=1.13;\0')
    assert 'compiled for torch 1.13, and this is torch' in _native.load_library(tmp_path)


def test_the_library_of_this_torch_is_chosen(tmp_path):
    # Environments with different versions of torch may share a source folder.
    libraries = Path(mmlaplace.__file__).parent.glob('_C*.so')
    built_for = {library: _native.build_info(library)['torch'] for library in libraries}
    assert [torch.__version__.startswith(version + '.') for version in built_for.values()].count(
        True
    ) == 1
    for library in built_for:
        (tmp_path / library.name).symlink_to(library)
    (tmp_path / '_C_a.so').write_bytes(b'mmlaplace built for torch=1.13;')
    assert _native.load_library(tmp_path) is None


def test_an_op_or_device_that_the_library_lacks(monkeypatch):
    monkeypatch.setattr(_native, 'AVAILABLE', {'laplacian_kernel': frozenset({'cuda'})})
    with pytest.raises(RuntimeError, match="no op 'gaussian_kernel'"):
        gaussian_kernel(Q, K, 4.0, backend='native')
    with pytest.raises(RuntimeError, match="built without 'laplacian_kernel' for cpu"):
        laplacian_kernel(Q, K, 4.0, backend='native')


def test_errors_of_the_ops_themselves_quote_the_input():
    op = torch.ops.mmlaplace.laplacian_kernel
    with pytest.raises(RuntimeError, match=r'\[5, 4\]'):
        op(Q[0, 0], K, 1.0)
    with pytest.raises(RuntimeError, match='Double'):
        op(Q, K.double(), 1.0)
    with pytest.raises(RuntimeError, match=r'\[2, 3\]'):
        torch.ops.mmlaplace.newton_schulz_inverse(torch.ones(2, 3), 3, 0.1)


# The instruction sets that this machine can run, by torch's names.
CAPABILITIES = ['default', 'avx2', 'avx512']


@pytest.mark.slow
@pytest.mark.parametrize('capability', CAPABILITIES)
def test_every_instruction_set_passes_the_op_tests(capability):
    supported = torch.backends.cpu.get_cpu_capability().lower()
    if (
        capability
        not in CAPABILITIES[: CAPABILITIES.index(supported) + 1 if supported in CAPABILITIES else 1]
    ):
        pytest.skip(f'this CPU has {supported}, not {capability}')
    result = subprocess.run(
        [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider',
         'tests/ops/test_kernels.py', 'tests/ops/test_inverse.py',
         'tests/ops/test_nystrom_attention.py', 'tests/ops/test_pooled_landmarks.py',
         'tests/ops/test_bias_gelu.py', 'tests/ops/test_powers.py',
         'tests/ops/test_pola_streams.py',
         '-k', '(native-cpu or bias_gelu or powers or pola_streams) and not number_of_threads '
         'and not ten_thousand'],
        env={**os.environ, 'ATEN_CPU_CAPABILITY': capability},
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-3000:]
