"""How the tests go on when one of pytest-xdist's processes dies.

Version 3.8 of pytest-xdist gives the process that takes the place of a dead one what that had
finished, and then waits for ever (its issues 1323 and 1327). It also starts again the test that the
process died in. Here all other tests run, and that one fails. If nothing else failed,
tools/run_tests.sh calls this file, which runs that test once more, alone. A process may also be
killed from outside, as by a system that is short of memory.
"""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from xdist.scheduler import LoadGroupScheduling

DIED_IN = 'mmlaplace/died_in'  # in pytest's cache: tests, where these are all that failed
PATH = Path(__file__).resolve().parent.parent / '.pytest_cache/v' / DIED_IN


class GoingOn(LoadGroupScheduling):
    """A scheduler under which all tests run but those that processes died in."""

    def __init__(self, config, log):
        super().__init__(config, log)
        self.died_in = set()
        config.cache.set(DIED_IN, [])
        config.pluginmanager.register(self)

    def remove_node(self, node):
        work = self.assigned_work.pop(node)
        left = [(unit, test) for unit in work.values() for test, done in unit.items() if not done]
        if not left:
            return None
        unit, died_in = left[0]
        unit[died_in] = True
        self.died_in.add(died_in)
        self.workqueue.update(
            {scope: unit for scope, unit in work.items() if not all(unit.values())}
        )
        for other in self.assigned_work:
            self._reschedule(other)
        return died_in

    def _reschedule(self, node):
        if node not in self.registered_collections:  # it has just started
            return
        super()._reschedule(node)
        # A process begins a test when it knows which comes next, or that none does.
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            if self.workqueue:
                self._assign_work_unit(node)
            else:
                node.shutdown()

    def pytest_testnodedown(self, node, error):
        """Say how a process died: -9 is a kill, as by a system that is short of memory."""
        if error:
            # It lives on where only its tests ended, as by pytest.exit.
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = node.gateway._io.popen.wait(5)
                sys.stderr.write(f'\n{node.gateway.id} ended with status {status}\n')

    def pytest_terminal_summary(self, terminalreporter, config):
        stats = terminalreporter.stats
        failed = {report.nodeid for kind in ('failed', 'error') for report in stats.get(kind, ())}
        if failed and failed <= self.died_in and not self.workqueue and not self.has_pending:
            # pytest-xdist adds the group to a name.
            config.cache.set(DIED_IN, sorted(test.partition('@')[0] for test in failed))


if __name__ == '__main__':
    tests = json.loads(PATH.read_text()) if PATH.exists() else []
    if not tests:
        sys.exit(1)
    sys.stdout.write(
        f'Processes died in these tests, which run once more, alone: {", ".join(tests)}\n'
    )
    sys.stdout.flush()
    sys.exit(pytest.main(['-n0', *tests]))
