"""The benchmarks write what they print, and keep what is there."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT
from PIL import Image

BENCHMARKS = ROOT / 'tools/benchmarks'


def benchmark(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, BENCHMARKS / 'benchmark_ops.py', '--quick', '--threads', '1', *arguments],
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_benchmark_ops(tmp_path):
    out, plot = tmp_path / 'ops.json', tmp_path / 'ops.png'
    result = benchmark('--out', out, '--plot', plot, '--train-step')
    assert result.returncode == 0, result.stderr
    written = json.loads(out.read_text())
    rows = [row for row in written['rows'] if row['contender'] == 'native']
    ops = {'laplacian_kernel', 'gaussian_kernel', 'newton_schulz_inverse'}
    assert {row['op'] for row in rows} == ops
    assert {row['pass'] for row in rows} == {'forward', '+ backward'}
    assert all(row['median ms'] > 0 and row['runs'] >= 3 for row in rows)
    assert written['peak G diff/s'] > 0
    assert written['train step']['reference / native'] > 0
    assert str(out) in result.stdout + result.stderr
    assert min(Image.open(plot).size) > 300

    before = out.read_text()
    result = benchmark('--out', out, '--ops', 'inverse')
    assert result.returncode != 0
    assert '--force' in result.stderr
    assert out.read_text() == before
