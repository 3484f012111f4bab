"""Run scripts and functions in separate processes, in which slow modules are already imported."""

import multiprocessing
import os
import runpy
import sys
from pathlib import Path
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

LINES = 15  # how many last lines of a log are returned
# Where the system can fork, each process is a copy of one that has imported the modules. Importing
# a toolbox takes as long as training a micro model for a hundred steps.
PROCESSES: Any = multiprocessing.get_context(
    'forkserver' if 'forkserver' in multiprocessing.get_all_start_methods() else 'spawn'
)


def import_first(*modules: str) -> None:
    """Name the modules that are imported before a process starts.

    Call this function before the first process starts. If a module cannot be imported, only the
    scripts and functions that import it fail.
    """
    PROCESSES.set_forkserver_preload(list(modules))


def run_script(
    script: Path, arguments: List[str], log: Path, threads: Optional[int] = None
) -> Tuple[int, str]:
    """Run a Python script in a separate process, and wait for its end.

    Args:
        script: The script. Its folder comes first in the script's ``sys.path``.
        arguments: Arguments of the script.
        log: File for the output of the script. Its folder is made if it is missing.
        threads: Number of torch's threads. Default: None, torch's own default.

    Returns:
        The exit status, which is 0 for success, and the last 15 lines of the log.
    """
    return run_function(_run_path, (str(script), arguments), log, threads)


def run_function(
    function: Callable, arguments: Sequence[Any], log: Path, threads: Optional[int] = None
) -> Tuple[int, str]:
    """Call a function in a separate process, and wait for its end.

    Args:
        function: The function, of a module.
        arguments: Its arguments, which can be pickled.
        log: File for the output of the function. Its folder is made if it is missing.
        threads: Number of torch's threads. Default: None, torch's own default.

    Returns:
        The exit status, which is 0 for success, and the last 15 lines of the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    process = PROCESSES.Process(target=_call, args=(function, arguments, str(log), threads))
    process.start()
    process.join()
    lines = log.read_text(encoding='utf-8', errors='replace').splitlines()
    return process.exitcode, '\n'.join(lines[-LINES:])


def _call(function: Callable, arguments: Sequence[Any], log: str, threads: Optional[int]) -> None:
    with open(log, 'wb') as file:
        stream: Any  # a TextIO, whose type has no reconfigure
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
            stream.reconfigure(encoding='utf-8', line_buffering=True)
    if threads:
        os.environ['OMP_NUM_THREADS'] = str(threads)
        torch.set_num_threads(threads)
    function(*arguments)


def _run_path(script: str, arguments: List[str]) -> None:
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name='__main__')
