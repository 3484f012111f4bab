"""The benchmarks of ops, attentions and blocks write what they print; the soak sees what fails."""

import importlib.util
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from conftest import ROOT, load_tool, registered, run_script
from PIL import Image

from mmlaplace.models import PyramidBackbone

blocks = load_tool('tools/benchmarks/benchmark_blocks.py')
soak = load_tool('tools/benchmarks/soak.py')
FEW = dict(steps=3, settle=1, batch=2, side=32)


@pytest.mark.slow
def test_benchmark_ops(tmp_path):
    out, plot = tmp_path / 'ops.json', tmp_path / 'ops.png'

    def run(*arguments):
        path, threads = ROOT / 'tools/benchmarks/benchmark_ops.py', torch.get_num_threads()
        try:
            return run_script(path, '--quick', '--threads', 1, '--out', out, *arguments)
        finally:
            torch.set_num_threads(threads)

    result = run('--plot', plot, '--train-step')
    assert result.returncode == 0, result.stderr
    written = json.loads(out.read_text())
    rows = [row for row in written['rows'] if row['contender'] == 'native']
    ops = {'laplacian_kernel', 'gaussian_kernel', 'newton_schulz_inverse'}
    assert {row['op'] for row in rows} == ops
    assert {row['pass'] for row in rows} == {'forward', '+ backward'}
    assert all(row['median ms'] > 0 and row['runs'] >= 3 for row in rows)
    assert written['peak G diff/s'] > 0 and written['train step']['reference / native'] > 0
    assert str(out) in result.stdout + result.stderr and min(Image.open(plot).size) > 300
    result = run('--ops', 'inverse')
    assert result.returncode == 2 and '--force' in result.stderr
    assert json.loads(out.read_text()) == written


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_every_contender_of_blocks_is_a_row_or_has_a_reason(monkeypatch, tmp_path, capsys, dtype):
    out = tmp_path / 'blocks.json'
    options = ['--shapes', '1,8,32', '--rounds', '1', '--out', str(out), '--dtype', dtype]
    monkeypatch.setattr(sys, 'argv', ['benchmark_blocks.py', *options])
    blocks.main()
    written, printed = json.loads(out.read_text()), capsys.readouterr().out
    assert written['dtype'] == dtype and f'wrote {out}' in printed
    for kind, without in zip(blocks.CONTENDERS, written['not run']):
        rows = [row for row in written['rows'] if row['kind'] == kind]
        for name_of_pass in blocks.PASSES:
            names = [row['contender'] for row in rows if row['pass'] == name_of_pass]
            assert set(names) | set(without) - {'kind', 'shape'} == set(blocks.CONTENDERS[kind])
            assert names[0] == 'LaplacianAttention'
        assert all(row['median ms'] >= row['min ms'] > 0 and row['runs'] == 1 for row in rows)
        assert [row['ratio'] for row in rows if row['contender'] == names[0]] == [1, 1]
        memory = {(row['contender'], row['pass']): row['MB'] for row in rows}
        assert all(megabytes > 0 for megabytes in memory.values())
        # A training step keeps tensors for the backward beside what a forward takes. On so small a
        # map that shows for an attention alone, as the figure leaves the weights' gradients out.
        assert memory[names[0], 'training step'] > memory[names[0], 'forward']
        assert without['softmax, flash'] == 'runs on CUDA in half precision alone'
        assert f'not run: softmax, flash: {without["softmax, flash"]}' in printed


@pytest.mark.skipif(importlib.util.find_spec('mmdet') is None, reason='mmdetection has the blocks')
@pytest.mark.parametrize('name', ['PVT block', 'Swin block'])
def test_a_toolboxs_block_has_the_size_of_ours(name):
    def count(key):
        block = blocks.CONTENDERS['block'][key]((1, 14, 64))
        return sum(p.numel() for n, p in block.named_parameters()
                   if n.split('.')[-2] not in ('sr', 'lepe', 'norm'))  # fmt: skip

    # The linears are 12 C^2 weights. Left out above is what one alone has: the reduction of PVT and
    # the depthwise convolution of ours. 1 % is for Swin's table of 13 * 13 positions a head.
    assert count(name) == pytest.approx(count('softmax'), rel=0.01)


def test_a_step_has_gradients_of_the_tokens_and_of_all_weights():
    model = torch.nn.Linear(4, 4)
    model.forward = lambda x, hw_shape: torch.nn.functional.linear(x, model.weight, model.bias)
    job = blocks.make_job(model, torch.randn(1, 4, 4), 2, torch.float32, flash=False, train=True)
    assert [tuple(grad.shape) for grad in job()] == [(1, 4, 4), (4, 4), (4,)]


@pytest.mark.parametrize('shape', ['8,56', '1,4,32', '1,8,48'])
def test_a_shape_that_cannot_be_is_refused(monkeypatch, capsys, shape):
    monkeypatch.setattr(sys, 'argv', ['benchmark_blocks.py', '--shapes', shape])
    with pytest.raises(SystemExit, match='2'):
        blocks.main()
    assert f"'{shape}'" in capsys.readouterr().err.replace('\n', ' ')


# The soak.


@pytest.fixture
def run_soak(monkeypatch, tmp_path):
    """The exit status of the tool and what it wrote; training stays in this process."""
    monkeypatch.setattr(soak, 'in_a_new_process', soak.train)

    def run(*families) -> tuple:
        out, threads = tmp_path / 'soak.json', torch.get_num_threads()
        options = [str(word) for name, value in FEW.items() for word in (f'--{name}', value)]
        command = ['soak', '--families', *families, *options, '--out', str(out), '--force']
        monkeypatch.setattr(sys, 'argv', command)
        try:
            return soak.main(), json.loads(out.read_text())
        finally:
            torch.set_num_threads(threads)

    return run


@pytest.mark.slow
def test_every_family_is_trained_in_a_few_steps(run_soak):
    families = registered(PyramidBackbone)
    assert soak.families() == families
    _, written = run_soak(*families)
    # Three steps do not fill what torch keeps: memory may grow still.
    assert not any('step' in row['failure'] for row in written['rows'])
    assert [(row['family'], row['steps']) for row in written['rows']] == [(f, 3) for f in families]
    archs = {row['family']: row['arch'] for row in written['rows']}
    assert archs['LaplacianFormer'] == archs['SOFT'] == archs['PolaFormerSwin'] == 'micro'


def test_a_loss_that_is_not_finite_fails(run_soak, monkeypatch):
    functional = torch.nn.functional
    right = functional.cross_entropy
    monkeypatch.setattr(functional, 'cross_entropy', lambda *args: right(*args) * torch.inf)
    status, written = run_soak('LaplacianFormer')
    assert status == 1
    assert written['rows'][0]['failure'].startswith('step 1: loss inf, norm of the gradients ')


@pytest.mark.parametrize('kind', ['all', 'own'])
def test_memory_that_grows_by_more_than_two_percent_fails(kind, run_soak, monkeypatch):
    sizes = {'all': 1000.0, 'own': 400.0}
    for factor, status in ((1.019, 0), (1.021, 1)):
        readings = iter([dict(sizes), dict(sizes, **{kind: factor * sizes[kind]})])
        monkeypatch.setattr(soak, 'resident_size', lambda readings=readings: next(readings))
        assert run_soak('LaplacianFormer')[0] == status


def sizes_around_64_mb() -> list:
    """Resident sizes before 64 MB are held, meanwhile, and after."""
    torch.ones(16 * 2**20)  # a first time, for what torch loads and keeps
    sizes = [soak.resident_size()]
    held = torch.ones(16 * 2**20)
    sizes.append(soak.resident_size())
    del held
    return [*sizes, soak.resident_size()]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.isdir('/proc/self'), reason='reads /proc')
def test_the_resident_size_counts_what_is_held_alone():
    # In a process of its own: what earlier tests left behind may be freed at any moment.
    with ProcessPoolExecutor(1, mp_context=get_context('spawn')) as pool:
        before, during, after = pool.submit(sizes_around_64_mb).result()
    for kind in ('all', 'own'):
        # What the interpreter itself takes and returns meanwhile is far below 4 MB.
        assert during[kind] - before[kind] == pytest.approx(64, abs=4)
        assert after[kind] - before[kind] == pytest.approx(0, abs=4)


def die(family, *settings):
    os._exit(3)


@pytest.mark.slow
def test_a_process_that_dies_is_a_failure(monkeypatch):
    monkeypatch.setattr(soak, 'train', die)
    row = soak.in_a_new_process('SOFT', *FEW.values())
    assert row['failure'].startswith('its process died: ')
