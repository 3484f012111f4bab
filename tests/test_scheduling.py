"""A run of the tests goes on when one of its processes dies."""

import shutil
import subprocess
import sys

import pytest
from conftest import ROOT

CONFTEST = """
import pytest, scheduling

@pytest.hookimpl
def pytest_xdist_make_scheduler(config, log):
    return scheduling.GoingOn(config, log)
"""
TESTS = """
import os, pathlib, pytest

def die_once(name):
    marker = pathlib.Path(f'{name}.died')
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), 9)

@pytest.mark.parametrize('number', range(9))
def test_alone(number):
    if number in (0, 5):
        die_once(number)

@pytest.mark.xdist_group('group')
@pytest.mark.parametrize('number', range(4))
def test_of_a_group(number):
    if number == 1:
        die_once('group')

def test_last():
    die_once('last')

def test_other():
    assert 'OTHER' not in os.environ
"""


@pytest.fixture
def suite(tmp_path):
    """A suite that runs in two processes: a function of the arguments, and of variables."""
    pytest.importorskip('xdist')
    tests = tmp_path / 'tests'
    tests.mkdir()
    shutil.copy(ROOT / 'tests/scheduling.py', tests)
    (tests / 'conftest.py').write_text(CONFTEST)
    (tests / 'test_deaths.py').write_text(TESTS)
    (tmp_path / 'pytest.ini').write_text('[pytest]\nmarkers = xdist_group: of one process\n')

    def run(*words, **env):
        command = [sys.executable, *words]
        variables = {'PATH': '/usr/bin:/bin', 'PYTHONPATH': str(tests), **env}
        return subprocess.run(
            command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600
        )

    return run


ALL = ('-m', 'pytest', '-n', '2', '--dist', 'loadgroup', '-q')


def test_all_tests_run_but_those_that_processes_died_in_which_run_once_more(suite):
    first = suite(*ALL)
    assert first.returncode == 1 and '4 failed, 11 passed' in first.stdout, first.stdout
    assert first.stderr.count('ended with status -9') == 4
    again = suite('tests/scheduling.py')
    assert again.returncode == 0 and '4 passed' in again.stdout, again.stdout
    for name in ('test_alone[0]', 'test_alone[5]', 'test_of_a_group[1]', 'test_last'):
        assert f'test_deaths.py::{name}' in again.stdout.splitlines()[0]


@pytest.mark.thorough
def test_nothing_runs_once_more_where_something_else_failed(suite):
    assert '5 failed, 10 passed' in suite(*ALL, OTHER='1').stdout
    assert suite('tests/scheduling.py').returncode == 1
    assert suite(*ALL).returncode == 0  # nothing dies any more
    assert suite('tests/scheduling.py').returncode == 1
