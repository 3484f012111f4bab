"""The jobs of tools/reproduce.py: their order, what runs beside what, failures, and locks."""

import sys
from pathlib import Path

import pytest
from reproduce_modules import jobs, launching, running, settings, tool
from rich.console import Console


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch):
    monkeypatch.setattr(running, 'LOOK', 0.01)
    monkeypatch.setattr(launching, 'LOOK', 0.01)


class Command(jobs.Job):
    """A job that runs Python code."""

    kind = 'commands'

    def commands(self):
        return [[sys.executable, '-c', self.identity]]

    def work(self, lock):
        self.call(self.commands()[0], 'command.log', lock)
        return dict(done=True)


def run(*made, slots=2) -> dict:
    """How each of the jobs ended, by its label."""
    whole = tool.Plan([], [0], settings(Path()))
    for job in made:
        whole.add(job)
    outcomes = running.run_all(whole.jobs, slots, [], Console(quiet=True))
    return {whole.jobs[key].label: outcome for key, outcome in outcomes.items()}


def test_a_failure_has_the_end_of_its_log_and_stops_only_what_needs_it(tmp_path):
    here = settings(tmp_path)
    code = "print('first'); [print(i) for i in range(40)]; raise SystemExit('the reason')"
    bad = Command('bad', here, code)
    found = run(
        bad, Command('after', here, 'pass', {'bad': bad}), Command('good', here, 'print(1)')
    )
    assert found['good']['done'] is True
    assert found['bad'].startswith(f'{sys.executable} -c') and 'status 1' in found['bad']
    assert found['bad'].endswith('the reason') and '\nfirst\n' not in found['bad']
    assert found['after'] == 'it needs bad, which failed'


class Alone(Command):
    alone = True


def test_what_must_be_alone_has_nothing_beside_it(tmp_path):
    order = tmp_path / 'order'
    code = f"""
import time
def say(what):
    with open({str(order)!r}, 'a') as file:
        file.write(what + ' ')
say('begin-{{0}}')
time.sleep(0.3)
say('end-{{0}}')
"""

    def job(kind, name):
        return kind(name, settings(tmp_path), code.format(name))

    run(job(Alone, 'm1'), job(Command, 'first'), job(Alone, 'm2'), job(Command, 'second'))
    said = order.read_text().split()
    for name in ('m1', 'm2'):
        assert said.index(f'end-{name}') == said.index(f'begin-{name}') + 1
    assert len(set(said)) == 8


def test_what_is_finished_is_not_repeated_and_what_failed_is(tmp_path):
    marks = tmp_path / 'marks'
    code = f"open({str(marks)!r}, 'a').write('x')"
    for name, what in (('a', code), ('b', code + '; raise SystemExit(1)')):
        for _ in range(2):
            run(Command(name, settings(tmp_path), what))
    assert marks.read_text() == 'xxx'
