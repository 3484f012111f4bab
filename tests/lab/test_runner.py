"""The runner of studies: order, failures, an interrupt, and the lock of a folder.

The studies can be imported where nothing draws.
"""

import threading
import time

import pytest
from conftest import run_python

from mmlaplace.lab.runner import FolderJob, Job, JobFailed, run_all


class Made(Job):
    """A job that a function does."""

    alone = False

    def __init__(self, label, work, finished=None, **options):
        super().__init__(label)
        self.run, self.finished = work, finished
        vars(self).update(options)

    def result(self):
        if isinstance(self.finished, Exception):
            raise self.finished
        return self.finished


def failing(error):
    def run():
        raise error

    return run


@pytest.mark.parametrize('at_once', [1, 3])
def test_each_outcome_is_a_result_or_the_text_of_a_failure(at_once):
    told, bad = [], Made('bad', failing(JobFailed('the end of its log')))
    jobs = [
        Made('after', dict, needs=dict(bad=bad)),
        Made('good', dict),
        Made('finished', failing(AssertionError()), dict(before=True)),
        bad,
        Made('worse', failing(ValueError('of the work'))),
        Made('other settings', dict, ValueError('take another folder')),
    ]
    outcomes = run_all(jobs, at_once, ended=lambda job, _: told.append(job.label))
    assert {job.label: outcome for job, outcome in outcomes.items()} == {
        'good': {}, 'finished': dict(before=True), 'bad': 'the end of its log',
        'worse': 'ValueError: of the work', 'other settings': 'ValueError: take another folder',
        'after': 'it needs bad, which failed',
    }  # fmt: skip
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

    jobs = [Made(str(number), work) for number in range(20)]
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

    jobs = [Made(str(number), work_of(number)) for number in range(4)]
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

    run_all([Made(name, work_of(name), alone=name < 'c') for name in 'acbd'], 2)
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


def test_no_module_imports_matplotlib_or_pandas():
    result = run_python('-c', CODE)
    assert result.returncode == 0, result.stderr
