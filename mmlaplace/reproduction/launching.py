"""A piece of work in a folder of its own, done once, by commands under a launcher.

A folder's name has a hash of all that decides the result, so that rows with the same config share
a run, and a changed config is another run. What is done is kept there: ``result.json`` is written
last, and in one step. A lock on the folder is held by the processes that work in it. It outlives
the tool where that is killed, and a second call waits for it.
"""

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

import torch

import mmlaplace
from mmlaplace.analysis.measuring import describe_machine
from mmlaplace.commands.command_line import write_json
from mmlaplace.toolboxes import TOOLBOXES

TAIL = 25  # lines of a log that a failure quotes
LOOK = 0.5  # seconds between two looks at a command
LAUNCHERS = ('none', 'pytorch', 'slurm')


def versions() -> Dict[str, str]:
    """Of what decides results. A fork and the upstream package have the same import name."""
    names = ['torch', 'mmengine', 'onedl-mmengine', 'mmcv', 'onedl-mmcv']
    names += [name for toolbox in TOOLBOXES.values() for name in toolbox.tested]
    installed = {distribution.metadata['Name'] for distribution in distributions()}
    found = {name: version(name) for name in names if name in installed}
    return {'mmlaplace': mmlaplace.__version__, **found}


def this_machine() -> Dict[str, str]:
    """What is here: CPU, threads, GPU."""
    return describe_machine(torch.device('cuda' if torch.cuda.is_available() else 'cpu'))


class JobFailed(RuntimeError):
    """A command of a job failed; the message has the end of its log."""


@dataclass(frozen=True)
class Settings:
    """What all jobs of a call share.

    Attributes:
        work_dir: Folder of all runs.
        scale: ``'full'`` or ``'mini'``.
        launcher: ``'none'``, ``'pytorch'`` or ``'slurm'``.
        gpus: GPUs of one run, at most.
        partition: Of Slurm.
        options: Changes of every config, by dotted keys.
        weights: Checkpoints by ``table/row``. These rows are tested, and not trained.
        threads: Threads of a process on the CPU.
    """

    work_dir: Path
    scale: str
    launcher: str = 'none'
    gpus: int = 1
    partition: str = ''
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Path] = field(default_factory=dict)
    threads: int = 1


@dataclass(eq=False)
class Job:
    """One piece of work in a folder of its own.

    Attributes:
        label: For people.
        settings: Of the call.
        identity: All that decides the result.
        needs: Jobs whose results it takes, by the row that they are for.
        state: What it does, for the display.
        devices: GPUs that it may see, as ``CUDA_VISIBLE_DEVICES`` names them, such as ``'0,1'``.
    """

    label: str
    settings: Settings
    identity: str
    needs: Mapping[str, 'Job'] = field(default_factory=dict)
    state: str = 'waits'
    devices: Optional[str] = None

    kind = 'job'

    @property
    def key(self) -> str:
        """A hash of what decides the result."""
        needed = ''.join(f'{row}={job.key}' for row, job in sorted(self.needs.items()))
        return hashlib.sha256((self.identity + needed).encode()).hexdigest()[:12]

    @property
    def processes(self) -> int:
        """How many train or test, each with a batch of its own."""
        return 1

    @property
    def alone(self) -> bool:
        """Whether nothing else of the call may run beside it."""
        return False

    @property
    def folder(self) -> Path:
        """Where all of it is kept."""
        return self.settings.work_dir / self.kind / f'{self.stem}_{self.key}'

    @property
    def stem(self) -> str:
        """The readable part of the folder's name."""
        return re.sub(r'[^\w.]+', '-', self.label)

    def result(self) -> Optional[dict]:
        """What it found, if it is finished."""
        path = self.folder / 'result.json'
        return json.loads(path.read_text()) if path.is_file() else None

    def run(self) -> dict:
        """Do it, or go on with it; what it found.

        Raises:
            JobFailed: If a command fails.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / 'lock', 'w') as lock:
            self.state = 'waits for another process'
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = self.result()
            if found is None:
                started = time.time()
                where = dict(machine=self.place(), versions=versions())
                found = {**where, **self.work(lock.fileno())}
                found['seconds'] = round(time.time() - started, 1)  # since this call took it up
                write_json(self.folder / 'result.json', found)
        return found

    def work(self, lock: int) -> dict:
        """Do it, with the lock's file descriptor for the processes that it starts."""
        raise NotImplementedError

    def commands(self) -> List[List[str]]:
        """What it calls, as far as it is known before it runs."""
        raise NotImplementedError

    @property
    def threads(self) -> str:
        """How many each of its processes takes: OMP_NUM_THREADS, or a share of the call's."""
        share = max(self.settings.threads // self.processes, 1)
        return os.environ.get('OMP_NUM_THREADS', str(share))

    def place(self) -> Dict[str, str]:
        """Where its commands run, and how many processes a training has."""
        if self.settings.launcher == 'slurm':
            machine = {'Slurm partition': self.settings.partition}
        else:
            machine = {**this_machine(), 'threads': self.threads}
        return {**machine, 'processes': str(self.processes)}

    def on_one_gpu(self, command: List[str]) -> List[str]:
        """A command that is one process: under Slurm, with a GPU of a node."""
        if self.settings.launcher != 'slurm':
            return command
        place = ['--partition', self.settings.partition, '--gres', 'gpu:1', '--ntasks', '1']
        return ['srun', *place, *command]

    def call(self, command: List[str], log: str, lock: int) -> None:
        """Run a command with its output in a log.

        Raises:
            JobFailed: If it fails.
        """
        env = {'PYTHON': sys.executable, **os.environ}
        if self.settings.launcher != 'slurm':  # a node has cores of its own
            env['OMP_NUM_THREADS'] = self.threads
        env['GPUS'] = str(self.processes)
        if self.devices is not None:
            env['CUDA_VISIBLE_DEVICES'] = self.devices
        path = self.folder / log
        with path.open('ab') as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=env, pass_fds=(lock,)
            )
            try:
                while process.poll() is None:
                    self.watch()
                    time.sleep(LOOK)
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if process.returncode:
            end = '\n'.join(path.read_text(errors='replace').splitlines()[-TAIL:])
            raise JobFailed(
                f'{" ".join(command)} ended with status {process.returncode}; the end of {path}:\n'
                f'{end}'
            )

    def watch(self) -> None:
        """Look how far a command is."""
