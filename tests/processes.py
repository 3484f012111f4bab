"""Processes of runs."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
from conftest import ROOT

PATIENCE = 3600  # seconds, far beyond what a busy machine needs: only a hang takes longer


def environment(**variables) -> dict:
    paths = [str(ROOT / 'tests/tools'), str(ROOT), os.environ.get('PYTHONPATH', '')]
    variables.update(PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS='1', PYTHON=sys.executable)
    return {**os.environ, **variables}


def start_machines(command: list, log: Path) -> list:
    """Two, both this one, that do ``command``; they write to ``LOG.0.log`` and ``LOG.1.log``."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        meeting = dict(NNODES='2', MASTER_ADDR='127.0.0.1', PORT=str(free.getsockname()[1]))
    machines = []
    for rank in '01':
        env = environment(NODE_RANK=rank, **meeting)
        with open(f'{log}.{rank}.log', 'w') as file:  # mmengine collects results in the cwd
            machines.append(
                psutil.Popen(
                    ['bash', *map(str, command)],
                    env=env,
                    stdout=file,
                    stderr=file,
                    cwd=log.parent,
                )
            )
    return machines


def signal_all(machine: psutil.Popen, number: int) -> None:
    for process in (*machine.children(recursive=True), machine):
        process.send_signal(number)


def wait_until(done, alive: list) -> None:
    """Wait for ``done()`` while all processes live."""
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert all(process.poll() is None for process in alive)
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(command: list, **options) -> subprocess.CompletedProcess:
    options = dict(dict(env=environment(), timeout=PATIENCE), **options)
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
