"""The benchmarks of ops, attentions and blocks write what they print; the soak sees what fails."""

import json
import sys

import pytest
import torch
from conftest import ROOT, load_tool, registered, run_script
from PIL import Image

from mmlaplace.models import PyramidBackbone

blocks = load_tool('tools/benchmarks/benchmark_blocks.py')
soak = load_tool('tools/benchmarks/soak.py')
FEW = ('--steps', '3', '--settle', '1', '--batch', '2', '--side', '32')


@pytest.mark.slow
def test_benchmark_ops(tmp_path):
    out, plot = tmp_path / 'ops.json', tmp_path / 'ops.png'

    tool, threads = ROOT / 'tools/benchmarks/benchmark_ops.py', torch.get_num_threads()
    options = ['--threads', 1, '--out', out, '--plot', plot, '--train-step']
    result = run_script(tool, '--quick', *options)
    torch.set_num_threads(threads)
    assert result.returncode == 0, result.stderr
    written = json.loads(out.read_text())
    rows = [row for row in written['rows'] if row['contender'] == 'native']
    ops = {'laplacian_kernel', 'gaussian_kernel', 'newton_schulz_inverse'}
    assert {row['op'] for row in rows} == ops
    assert {row['pass'] for row in rows} == {'forward', '+ backward'}
    assert all(row['median ms'] > 0 and row['runs'] >= 3 for row in rows)
    assert written['peak G diff/s'] > 0 and written['train step']['reference / native'] > 0
    assert min(Image.open(plot).size) > 300


@pytest.mark.slow
def test_every_contender_of_blocks_is_a_row_or_has_a_reason(monkeypatch, tmp_path, capsys):
    out = tmp_path / 'blocks.json'
    options = ['--shapes', '1,8,32', '--rounds', '1', '--out', str(out)]
    monkeypatch.setattr(sys, 'argv', ['benchmark_blocks.py', *options])
    blocks.main()
    written, printed = json.loads(out.read_text()), capsys.readouterr().out
    for kind, without in zip(blocks.CONTENDERS, written['not run']):
        rows = [row for row in written['rows'] if row['kind'] == kind]
        for name_of_pass in blocks.PASSES:
            names = [row['contender'] for row in rows if row['pass'] == name_of_pass]
            assert set(names) | set(without) - {'kind', 'shape'} == set(blocks.CONTENDERS[kind])
            assert names[0] == 'LaplacianAttention'
        assert all(row['median ms'] >= row['min ms'] > 0 and row['runs'] == 1 for row in rows)
        assert [row['ratio'] for row in rows if row['contender'] == names[0]] == [1, 1]
        assert all(row['MB'] > 0 for row in rows)
        assert f'not run: softmax, flash: {without["softmax, flash"]}' in printed


# The soak.


@pytest.fixture
def run_soak(monkeypatch, tmp_path):
    """The exit status of the tool and what it wrote; training stays in this process."""
    monkeypatch.setattr(soak, 'in_a_new_process', soak.train)

    def run(*families) -> tuple:
        out, threads = tmp_path / 'soak.json', torch.get_num_threads()
        command = ['soak', '--families', *families, *FEW, '--out', str(out), '--force']
        monkeypatch.setattr(sys, 'argv', command)
        try:
            return soak.main(), json.loads(out.read_text())
        finally:
            torch.set_num_threads(threads)

    return run


@pytest.mark.thorough
@pytest.mark.slow
def test_every_family_is_trained_in_a_few_steps(run_soak):
    families = registered(PyramidBackbone)
    assert soak.families() == families
    _, written = run_soak(*families)
    # Three steps do not fill what torch keeps: memory may grow still.
    assert not any('step' in row['failure'] for row in written['rows'])
    assert [(row['family'], row['steps']) for row in written['rows']] == [(f, 3) for f in families]


def test_a_loss_that_is_not_finite_fails(run_soak, monkeypatch):
    functional = torch.nn.functional
    right = functional.cross_entropy
    monkeypatch.setattr(functional, 'cross_entropy', lambda *args: right(*args) * torch.inf)
    status, written = run_soak('LaplacianFormer')
    assert status == 1
    assert written['rows'][0]['failure'].startswith('step 1: loss inf, norm of the gradients ')
