"""Who computes: the compiled library when it can, the reference with one log line when not."""

import pytest
import torch

from mmlaplace.ops import _native, gaussian_kernel, laplacian_kernel


@pytest.fixture
def fresh(monkeypatch):
    """The loader as in a new process, with its log lines."""
    lines = []
    monkeypatch.setattr(_native, 'print_log', lambda line, **_: lines.append(line))
    _native._log_fallback.cache_clear()
    yield lines
    _native._log_fallback.cache_clear()


Q, K = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 3, 4)


def test_auto_falls_back_with_one_line(fresh, monkeypatch, tmp_path):
    monkeypatch.setattr(_native, 'WHY_MISSING', _native.load_library(tmp_path))
    for _ in range(3):
        laplacian_kernel(Q, K, 4.0)
        gaussian_kernel(Q, K, 4.0)
    assert len(fresh) == 1
    assert 'no compiled library' in fresh[0]


def test_a_library_that_does_not_load_says_why(fresh, monkeypatch, tmp_path):
    (tmp_path / '_C.so').write_bytes(b'not a library')
    monkeypatch.setattr(_native, 'WHY_MISSING', _native.load_library(tmp_path))
    with pytest.raises(RuntimeError, match='_C.so did not load with torch .*: '):
        laplacian_kernel(Q, K, 4.0, backend='native')
    torch.testing.assert_close(
        laplacian_kernel(Q, K, 4.0), laplacian_kernel(Q, K, 4.0, backend='reference')
    )


def test_a_library_is_used_without_touching_callers(fresh, monkeypatch):
    library = torch.library.Library('mmlaplace', 'DEF')
    library.define('laplacian_kernel(Tensor q, Tensor k, float scale) -> Tensor')
    library.impl('laplacian_kernel', lambda q, k, scale: q @ k.mT + scale, 'CPU')
    monkeypatch.setattr(_native, 'WHY_MISSING', None)
    for backend in ('auto', 'native'):
        torch.testing.assert_close(laplacian_kernel(Q, K, 4.0, backend=backend), Q @ K.mT + 4)
    assert fresh == []
    with pytest.raises(RuntimeError, match="no op 'gaussian_kernel'"):
        gaussian_kernel(Q, K, 4.0, backend='native')
    with pytest.raises(RuntimeError, match='built without .* for meta'):
        laplacian_kernel(Q.to('meta'), K.to('meta'), 4.0, backend='native')
    del library
