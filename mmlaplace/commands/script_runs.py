"""Run scripts, each in a process of its own that starts with its imports done."""

import multiprocessing
import os
import runpy
import sys
from pathlib import Path
from typing import Any, List, Optional, Tuple

import torch

LINES = 15  # of the end of a log
# Where the system can fork, processes are copies of one that has the imports. Importing a toolbox
# takes as long as training a micro model for a hundred steps.
PROCESSES: Any = multiprocessing.get_context(
    'forkserver' if 'forkserver' in multiprocessing.get_all_start_methods() else 'spawn'
)


def import_first(*modules: str) -> None:
    """Name the modules that processes of :func:`run_script` have from their start.

    Call it before the first of them. A module that cannot be imported is left to the scripts that
    need it.
    """
    PROCESSES.set_forkserver_preload(list(modules))


def run_script(
    script: Path, arguments: List[str], log: Path, threads: Optional[int] = None
) -> Tuple[int, str]:
    """Run a Python script in a process of its own, and wait for it.

    Args:
        script: The script. Its folder is the first in which it finds modules.
        arguments: Its arguments.
        log: File for all that it prints. Its folder is made.
        threads: Of torch. Default: as many as torch takes.

    Returns:
        The exit status, 0 for success, and the last lines of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    process = PROCESSES.Process(target=_run, args=(str(script), arguments, str(log), threads))
    process.start()
    process.join()
    return process.exitcode, '\n'.join(log.read_text(errors='replace').splitlines()[-LINES:])


def _run(script: str, arguments: List[str], log: str, threads: Optional[int]) -> None:
    with open(log, 'w') as file:
        stream: Any  # a TextIO, whose type has no reconfigure
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
            stream.reconfigure(line_buffering=True)
    if threads:
        os.environ['OMP_NUM_THREADS'] = str(threads)
        torch.set_num_threads(threads)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name='__main__')
