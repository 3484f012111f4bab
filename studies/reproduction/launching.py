"""Run the commands of a job once, in the job's folder and under a launcher.

The name of the folder has a hash of everything that determines the result. Therefore rows with the
same config share a run, and a changed config gets a new run.
"""

import hashlib
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

from mmlaplace.analysis.measuring import describe_machine
from mmlaplace.lab.runner import FolderJob, JobFailed
from mmlaplace.toolboxes import TOOLBOXES
from mmlaplace.version import __version__

from .kept import read_kept

TAIL = 25  # lines of the log in the message of a failure
LOOK = 0.5  # seconds between two checks of a command
LAUNCHERS = ('none', 'pytorch', 'slurm')


def versions() -> Dict[str, str]:
    """Versions of the installed packages that can change results, by distribution.

    A fork and the upstream package have the same import name.
    """
    names = ['torch', 'mmengine', 'onedl-mmengine', 'mmcv', 'onedl-mmcv']
    names += [name for toolbox in TOOLBOXES.values() for name in toolbox.tested]
    installed = {distribution.metadata['Name'] for distribution in distributions()}
    found = {name: version(name) for name in names if name in installed}
    return {'mmlaplace': __version__, **found}


def this_machine() -> Dict[str, str]:
    """The CPU, threads and GPU of this machine, as :func:`describe_machine` gives them."""
    return describe_machine(torch.device('cuda' if torch.cuda.is_available() else 'cpu'))


@dataclass(frozen=True)
class Settings:
    """The settings that all jobs of a call share.

    Attributes:
        work_dir: Folder of all runs.
        scale: ``'full'`` or ``'mini'``.
        launcher: ``'none'``, ``'pytorch'`` or ``'slurm'``.
        gpus: The largest number of GPUs for one run.
        partition: Partition of Slurm.
        options: Options that change every config, by dotted keys.
        weights: Checkpoints by ``table/row``. These rows are tested without training.
        threads: CPU threads that the processes of a job share.
    """

    work_dir: Path
    scale: str
    launcher: str = 'none'
    gpus: int = 1
    partition: str = ''
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Path] = field(default_factory=dict)
    threads: int = 1


class Job(FolderJob):
    """A job that runs commands.

    Args:
        label: Name in messages.
        settings: The settings of the call.
        identity: Text of everything that determines the result.
        needs: Jobs whose results it uses, by their rows. Default: None, none.
    """

    kind = 'job'

    def __init__(
        self,
        label: str,
        settings: Settings,
        identity: str,
        needs: Optional[Mapping[str, 'Job']] = None,
    ) -> None:
        super().__init__(label)
        self.settings, self.identity = settings, identity
        self.needs: Dict[str, Job] = dict(needs or {})

    @property
    def key(self) -> str:
        """A hash of everything that determines the result."""
        needed = ''.join(f'{row}={job.key}' for row, job in sorted(self.needs.items()))
        return hashlib.sha256((self.identity + needed).encode()).hexdigest()[:12]

    @property
    def processes(self) -> int:
        """The number of processes that train or test, each with its own batch."""
        return 1

    @property
    def folder(self) -> Path:
        return self.settings.work_dir / self.kind / f'{self.stem}_{self.key}'

    def result(self) -> Optional[dict]:
        """Its result, in its own folder or in the file in which the work folder keeps such jobs."""
        found = super().result()
        if found is None:
            found = read_kept(self.settings.work_dir, self.kind).get(self.folder.name)
        return found

    @property
    def stem(self) -> str:
        """The readable part of the folder's name."""
        return re.sub(r'[^\w.]+', '-', self.label)

    def work(self, lock: int) -> dict:
        started = time.monotonic()
        where = dict(machine=self.place(), versions=versions())
        found = {**where, **self.carry_out(lock)}
        found['seconds'] = round(time.monotonic() - started, 1)  # of this call
        return found

    def carry_out(self, lock: int) -> dict:
        """Run the commands, and return their result.

        Args:
            lock: File descriptor of the folder's lock, which the commands inherit.
        """
        raise NotImplementedError

    def commands(self) -> List[List[str]]:
        """The commands of the job, as far as they are known before it runs."""
        raise NotImplementedError

    @property
    def threads(self) -> str:
        """Threads of each process: ``OMP_NUM_THREADS``, or its share of the call's threads."""
        share = max(self.settings.threads // self.processes, 1)
        return os.environ.get('OMP_NUM_THREADS', str(share))

    def place(self) -> Dict[str, str]:
        """The machine or partition on which its commands run, and the number of processes."""
        if self.settings.launcher == 'slurm':
            machine = {'Slurm partition': self.settings.partition}
        else:
            machine = {**this_machine(), 'threads': self.threads}
        return {**machine, 'processes': str(self.processes)}

    def on_one_gpu(self, command: List[str]) -> List[str]:
        """The command for a single process. Under Slurm it gets one GPU of a node."""
        if self.settings.launcher != 'slurm':
            return command
        place = ['--partition', self.settings.partition, '--gres', 'gpu:1', '--ntasks', '1']
        return ['srun', *place, *command]

    def call(self, command: List[str], log: str, lock: int) -> None:
        """Run a command, and append its output to a log.

        Args:
            command: The command with its arguments.
            log: Name of the log in the job's folder.
            lock: File descriptor of the folder's lock, which the command inherits.

        Raises:
            JobFailed: If the command fails. The message has the end of the log.
        """
        env = {'PYTHON': sys.executable, **os.environ}
        if self.settings.launcher != 'slurm':  # each node of Slurm has its own cores
            env['OMP_NUM_THREADS'] = self.threads
        env['GPUS'] = str(self.processes)
        if self.devices is not None:
            env['CUDA_VISIBLE_DEVICES'] = self.devices
        inherited = (lock,) if lock >= 0 else ()
        path = self.folder / log
        with path.open('ab') as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=env, pass_fds=inherited
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
            end = '\n'.join(path.read_text(encoding='utf-8', errors='replace').splitlines()[-TAIL:])
            raise JobFailed(
                f'{" ".join(command)} ended with status {process.returncode}; the end of {path}:\n'
                f'{end}'
            )

    def watch(self) -> None:
        """Update ``state`` with the progress of a command."""
