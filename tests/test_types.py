"""The annotations hold: type checkers of users read them, as the package has py.typed."""

import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.thorough
@pytest.mark.slow
def test_mypy_finds_no_error(tmp_path):
    pytest.importorskip('mypy')
    command = [sys.executable, '-m', 'mypy', '--cache-dir', str(tmp_path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr
