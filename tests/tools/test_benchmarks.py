"""The benchmarks write what they print, and keep what is there."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT, load_tool
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


@pytest.mark.slow
def test_benchmark_backbone(tmp_path):
    out, plot = tmp_path / 'backbone.json', tmp_path / 'backbone.png'
    command = [
        sys.executable, BENCHMARKS / 'benchmark_backbone.py', '--arch', 'micro',
        '--sides', '32', '64', '--rounds', '1', '--train', '--out', out, '--plot', plot,
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    written = json.loads(out.read_text())
    assert [(row['attention'], row['side']) for row in written['rows']] == [
        (attention, side)
        for side in (32, 64)
        for attention in ('LaplacianAttention', 'SoftmaxAttention')
    ]
    assert all(row['median ms'] > 0 for row in written['rows'])
    assert set(written['exponents']) == {'LaplacianAttention', 'SoftmaxAttention'}
    assert min(Image.open(plot).size) > 300
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert '--force replaces it' in result.stderr


def test_any_attentions_are_compared_with_the_first(monkeypatch, tmp_path, capsys):
    tool, out = load_tool('tools/benchmarks/benchmark_backbone.py'), tmp_path / 'backbone.json'
    names = ['SOFTAttention', 'SoftmaxAttention', 'PolaAttention']
    options = ['--arch', 'micro', '--sides', '32', '--rounds', '1', '--out', str(out)]
    monkeypatch.setattr(sys, 'argv', ['benchmark_backbone.py', '--attn', *names, *options])
    monkeypatch.setenv('COLUMNS', '200')  # so that no header is wrapped
    tool.main()
    assert [row['attention'] for row in json.loads(out.read_text())['rows']] == names
    printed = capsys.readouterr().out
    for other in names[1:]:
        assert f'{other} / SOFTAttention' in printed
    monkeypatch.setattr(sys, 'argv', ['benchmark_backbone.py', '--attn', 'NoAttention'])
    with pytest.raises(SystemExit):
        tool.main()
    assert "invalid choice: 'NoAttention' (choose from" in capsys.readouterr().err
