"""Run scripts, each in a process of its own that starts with its imports done."""

import multiprocessing
import os
import runpy
import sys
from pathlib import Path
from typing import List, Tuple

LINES = 15  # of the end of a log
# Where the system can fork, processes are copies of one that has the imports. Importing a toolbox
# takes as long as training a micro model for a hundred steps.
PROCESSES = multiprocessing.get_context(
    'forkserver' if 'forkserver' in multiprocessing.get_all_start_methods() else 'spawn'
)


def import_first(*modules: str) -> None:
    """Name the modules that processes of :func:`run_script` have from their start.

    Call it before the first of them. Variables of the environment that these modules read must be
    set by then. A module that cannot be imported is left to the scripts that need it.
    """
    PROCESSES.set_forkserver_preload(list(modules))


def run_script(script: Path, arguments: List[str], log: Path) -> Tuple[int, str]:
    """Run a Python script in a process of its own, and wait for it.

    Args:
        script: The script. Its folder is the first in which it finds modules.
        arguments: Its arguments.
        log: File for all that it prints. Its folder is made.

    Returns:
        The exit status, 0 for success, and the last lines of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    process = PROCESSES.Process(target=_run, args=(str(script), arguments, str(log)))
    process.start()
    process.join()
    return process.exitcode, '\n'.join(log.read_text().splitlines()[-LINES:])


def _run(script: str, arguments: List[str], log: str) -> None:
    with open(log, 'w') as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
            stream.reconfigure(line_buffering=True)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name='__main__')
