"""The soak trains every family, and notices what is not finite, what grows and what dies."""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from conftest import load_tool, registered

from mmlaplace.models import PyramidBackbone

soak = load_tool('tools/benchmarks/soak.py')
FEW = dict(steps=3, settle=1, batch=2, side=32)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The exit status of the tool and what it wrote; training stays in this process."""
    monkeypatch.setattr(soak, 'in_a_new_process', soak.train)

    def call(*families) -> tuple:
        out = tmp_path / 'soak.json'
        options = [str(word) for name, value in FEW.items() for word in (f'--{name}', value)]
        command = ['soak', '--families', *families, *options, '--out', str(out), '--force']
        monkeypatch.setattr(sys, 'argv', command)
        threads = torch.get_num_threads()
        try:
            return soak.main(), json.loads(out.read_text())
        finally:
            torch.set_num_threads(threads)

    return call


@pytest.mark.slow
def test_every_family_is_trained_in_a_few_steps(run):
    families = registered(PyramidBackbone)
    assert soak.families() == families
    status, written = run(*families)
    # Three steps do not fill what torch keeps: memory may grow still.
    assert not any('step' in row['failure'] for row in written['rows'])
    assert [(row['family'], row['steps']) for row in written['rows']] == [(f, 3) for f in families]
    archs = {row['family']: row['arch'] for row in written['rows']}
    assert archs['LaplacianFormer'] == archs['SOFT'] == archs['PolaFormerSwin'] == 'micro'


def test_a_loss_that_is_not_finite_fails(run, monkeypatch):
    right = torch.nn.functional.cross_entropy
    monkeypatch.setattr(
        torch.nn.functional, 'cross_entropy', lambda *args: right(*args) * torch.inf
    )
    status, written = run('LaplacianFormer')
    assert status == 1
    assert written['rows'][0]['failure'].startswith('step 1: loss inf, norm of the gradients ')


@pytest.mark.parametrize('kind', ['all', 'own'])
def test_memory_that_grows_by_more_than_two_percent_fails(kind, run, monkeypatch):
    sizes = {'all': 1000.0, 'own': 400.0}
    for factor, status in ((1.019, 0), (1.021, 1)):
        readings = iter([dict(sizes), dict(sizes, **{kind: factor * sizes[kind]})])
        monkeypatch.setattr(soak, 'resident_size', lambda readings=readings: next(readings))
        assert run('LaplacianFormer')[0] == status


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
