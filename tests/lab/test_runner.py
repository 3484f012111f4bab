"""The runner of studies: order, failures, an interrupt, and the lock of a folder.

The studies can be imported where nothing draws.
"""

import threading
import time
from unittest.mock import Mock

import pytest
from conftest import run_python

from mmlaplace.lab.runner import FolderJob, Job, JobFailed, run_all


class Made(Job):
    """A job that functions do."""

    alone, run = False, dict

    def __init__(self, label, **own):
        super().__init__(label)
        vars(self).update(own)

    def result(self):
        return None


@pytest.mark.parametrize('at_once', [1, 3])
def test_each_outcome_is_a_result_or_the_text_of_a_failure(at_once):
    told, bad = [], Made('bad', run=Mock(side_effect=JobFailed('the end of its log')))
    jobs = [
        Made('after', needs=dict(bad=bad)),
        Made('good'),
        bad,
        Made('finished', run=Mock(side_effect=AssertionError), result=lambda: dict(before=True)),
        Made('worse', run=Mock(side_effect=ValueError('of the work'))),
        Made('other settings', result=Mock(side_effect=ValueError('take another folder'))),
    ]
    outcomes = run_all(jobs, at_once, ended=lambda job, _: told.append(job.label))
    assert {job.label: outcome for job, outcome in outcomes.items()} == {
        'good': {},
        'finished': dict(before=True),
        'bad': 'the end of its log',
        'worse': 'ValueError: of the work',
        'other settings': 'ValueError: take another folder',
        'after': 'it needs bad, which failed',
    }
    # No result is told twice.
    assert sorted(told) == ['after', 'bad', 'good', 'other settings', 'worse']


@pytest.mark.parametrize('at_once', [1, 2])
def test_no_job_starts_after_a_keyboard_interrupt(at_once):
    started, interrupted = [], threading.Event()

    def work():
        if at_once > len(started):
            interrupted.wait(60)
        interrupted.set()
        raise KeyboardInterrupt

    jobs = [Made(str(number), run=work) for number in range(20)]
    with pytest.raises(KeyboardInterrupt):
        run_all(jobs, at_once, started=started.append)
    assert len(started) <= at_once


def test_jobs_at_the_same_time_have_gpus_of_their_own():
    both, seen = threading.Barrier(2), []

    def work_of(number):
        def run():
            both.wait(60)
            seen.append(jobs[number].devices)
            both.wait(60)
            return {}

        return run

    jobs = [Made(str(number), run=work_of(number)) for number in range(4)]
    run_all(jobs, 2, devices=['0,1', '2,3'])
    assert sorted(seen) == ['0,1', '0,1', '2,3', '2,3']


def test_what_must_be_alone_has_nothing_beside_it():
    said = []

    def work_of(name):
        def run():
            said.append(name)
            time.sleep(0.1)
            said.append(name)
            return {}

        return run

    run_all([Made(name, run=work_of(name), alone=name < 'c') for name in 'acbd'], 2)
    order = ''.join(said)
    assert 'aa' in order and 'bb' in order and len(order) == 8


def test_two_calls_work_once_in_a_folder(tmp_path):
    begun, worked = threading.Event(), []

    class Slow(FolderJob):
        folder = tmp_path / 'run'

        def work(self, lock):
            begun.set()
            other.start()
            other.join(0.3)  # it waits for the lock
            worked.append(self.label)
            return dict(by=self.label)

    first, second = Slow('first'), Slow('second')
    other = threading.Thread(target=lambda: outcomes.update(run_all([second])))
    outcomes = {}
    assert run_all([first])[first] == dict(by='first')
    other.join(60)
    assert outcomes[second] == dict(by='first') and worked == ['first']


CODE = """
import importlib, pkgutil, sys
import mmlaplace.lab
for module in pkgutil.walk_packages(mmlaplace.lab.__path__, 'mmlaplace.lab.'):
    importlib.import_module(module.name)
    assert not {'matplotlib', 'pandas'} & set(sys.modules), module.name
assert 'mmlaplace.lab.runner' in sys.modules
"""


@pytest.mark.slow
def test_no_module_imports_matplotlib_or_pandas():
    result = run_python('-c', CODE)
    assert result.returncode == 0, result.stderr
