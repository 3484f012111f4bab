"""Run the jobs of a study: each once, after those that it needs, several at the same time.

A job that fails leaves the others running, but for those that need it. A job that is finished is
not repeated, and a killed call starts again where it was: a result is written last, and in one
step.

This is own code because no library that we know fits. joblib and submitit run functions, and know
neither needs nor what is finished. doit does, but it keeps a database of files of its own, has no
job that runs alone, and knows no GPUs. The threads are those of ``concurrent.futures``.
"""

import json
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    TypeVar,
    Union,
)

from filelock import FileLock

from ..commands.command_line import write_json

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

AnyJob = TypeVar('AnyJob', bound='Job')
Outcome = Union[dict, str]  # the result of a job, or the text of its failure


class JobFailed(RuntimeError):
    """A job failed for a reason that its text says whole, such as the end of a log."""


class Job:
    """A piece of work that has a result.

    Args:
        label: Name in messages.

    Attributes:
        needs: Jobs that must be finished before, by names. Default: none.
        state: Its present step, for a display.
        devices: GPUs for it, as in ``CUDA_VISIBLE_DEVICES``, such as ``'0,1'``, or None for all.
    """

    needs: Mapping[str, Any] = {}
    state = 'waits'
    devices: Optional[str] = None

    def __init__(self, label: str) -> None:
        self.label = label

    @property
    def alone(self) -> bool:
        """Whether no other job may run at the same time."""
        return False

    def result(self) -> Optional[dict]:
        """The result of a finished job, or None."""
        raise NotImplementedError

    def run(self) -> dict:
        """Do the work, and return the result.

        Raises:
            JobFailed: If the work fails.
        """
        raise NotImplementedError


class FolderJob(Job):
    """A job with a folder of its own, in which ``result.json`` is written last.

    One process works in the folder at a time, and a second one waits for it.

    Args:
        label: Name in messages.
    """

    @property
    def folder(self) -> Path:
        """The folder with all files of the job."""
        raise NotImplementedError

    def result(self) -> Optional[dict]:
        path = self.folder / 'result.json'
        return json.loads(path.read_bytes()) if path.is_file() else None

    def run(self) -> dict:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.state = 'waits for another process'
        with locked(self.folder) as lock:
            found = self.result()
            if found is None:
                found = self.work(lock)
                write_json(self.folder / 'result.json', found)
        return found

    def work(self, lock: int) -> dict:
        """Do the work, and return the result.

        Args:
            lock: File descriptor of the folder's lock. Processes that inherit it hold the lock too,
                also after the tool was killed.
        """
        raise NotImplementedError


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the lock of a folder, the file ``lock`` in it, and give its file descriptor.

    The lock ends with the process, and with those that inherited the descriptor. On Windows, where
    processes inherit none, it is a :class:`filelock.FileLock`, and -1 stands for the descriptor.
    """
    if fcntl is None:
        with FileLock(folder / 'lock'):
            yield -1
        return
    with open(folder / 'lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


class _ThisThread(Executor):
    """Runs each call where it is submitted: Ctrl+C and ``torch.set_num_threads`` reach it there."""

    def submit(self, function: Callable, /, *args: Any, **kwargs: Any) -> Future:
        future: Future = Future()
        future.set_result(function(*args, **kwargs))
        return future


def run_all(
    jobs: Iterable[AnyJob],
    at_once: int = 1,
    devices: Sequence[str] = (),
    started: Optional[Callable[[AnyJob], Any]] = None,
    ended: Optional[Callable[[AnyJob, Outcome], Any]] = None,
) -> Dict[AnyJob, Outcome]:
    """Run jobs that are not finished.

    Args:
        jobs: The jobs. The next one is taken when it can start, so a generator can look at the
            results of those before.
        at_once: How many jobs may run at the same time. One alone runs in the calling thread.
            Default: 1.
        devices: GPUs for each job that runs, as in ``CUDA_VISIBLE_DEVICES``. Default: (), all GPUs
            for each.
        started: Function that gets each job before it runs. Default: nothing.
        ended: Function that gets each job that ran or failed, with its outcome. Default: nothing.

    Returns:
        The outcome of each job: its result, or the text of its failure.
    """
    source = iter(jobs)
    waiting: List[AnyJob] = []
    running: Dict[Future, AnyJob] = {}
    outcomes: Dict[AnyJob, Outcome] = {}
    free: List[Optional[str]] = list(devices[:at_once]) or [None] * at_once

    def next_job() -> Optional[AnyJob]:
        """A job that can start now. Those that run alone come when no other one can."""
        if any(job.alone for job in running.values()):
            return None
        while True:
            ready = [job for job in waiting if all(n in outcomes for n in job.needs.values())]
            beside = [job for job in ready if not job.alone]
            if beside:
                return beside[0]
            job = next(source, None)
            if job is None:
                return None if running or not ready else ready[0]
            waiting.append(job)

    def known(job: AnyJob) -> Optional[Outcome]:
        """The outcome of a job that need not or cannot run."""
        for needed in job.needs.values():
            if isinstance(outcomes[needed], str):
                return f'it needs {needed.label}, which failed'
        return job.result()

    with _ThisThread() if at_once == 1 else ThreadPoolExecutor(at_once) as pool:
        while True:
            while free and (job := next_job()) is not None:
                waiting.remove(job)
                outcome = _tried(partial(known, job))
                if outcome is None:
                    job.devices = free.pop(0)
                    if started is not None:
                        started(job)
                    running[pool.submit(_tried, job.run)] = job
                else:
                    outcomes[job] = outcome
                    if isinstance(outcome, str) and ended is not None:
                        ended(job, outcome)
            if not running:
                return outcomes
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job = running.pop(future)
                free.append(job.devices)
                outcomes[job] = future.result()
                if ended is not None:
                    ended(job, outcomes[job])


def _tried(function: Callable[[], Any]) -> Any:
    """What a function of a job returns, or the text of its failure."""
    try:
        return function()
    except JobFailed as error:
        return str(error)
    except Exception as error:  # of one job: it is an outcome, and the others go on
        return f'{type(error).__name__}: {error}'
