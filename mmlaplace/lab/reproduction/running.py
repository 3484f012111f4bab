"""Run the jobs of a call in the order of their needs, and display their progress."""

import queue
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Dict, List, Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from .launching import Job
from .report import Outcome

LOOK = 1.0  # seconds between two checks of the jobs


def run_all(
    jobs: Mapping[str, Job], at_once: int, devices: List[str], console: Console
) -> Dict[str, Outcome]:
    """Run jobs, several at the same time.

    Args:
        jobs: The jobs by kind and key.
        at_once: How many jobs may run at the same time.
        devices: GPUs for each job that runs, as in ``CUDA_VISIBLE_DEVICES``, or an empty list.
        console: Console of the display.

    Returns:
        The outcome of each job: its result, or the text of its failure.
    """
    slots: queue.SimpleQueue = queue.SimpleQueue()
    for slot in range(at_once):
        slots.put(devices[slot] if devices else None)
    futures: Dict[str, Future] = {}

    def work(job: Job) -> dict:
        for needed in job.needs.values():
            if futures[name_of(needed)].exception() is not None:
                job.state = 'failed'
                raise RuntimeError(f'it needs {needed.label}, which failed')
        slot = slots.get()
        job.devices = slot
        try:
            return job.run()
        finally:
            slots.put(slot)

    def name_of(job: Job) -> str:
        return f'{job.kind}/{job.key}'

    def start(pool: ThreadPoolExecutor) -> None:
        """Submit the jobs whose needs are finished, so that no waiting job occupies a slot.

        A job that must run alone starts when no other job runs or is ready. While it runs, no
        other job starts.
        """
        running = [jobs[key] for key, future in futures.items() if not future.done()]
        if any(job.alone for job in running):
            return
        ready = []
        for key, job in jobs.items():
            needed = [futures.get(name_of(other)) for other in job.needs.values()]
            if key not in futures and all(future and future.done() for future in needed):
                ready.append(key)
        beside = [key for key in ready if not jobs[key].alone]
        for key in beside or ready[: 0 if running else 1]:
            futures[key] = pool.submit(work, jobs[key])

    columns = (
        TextColumn('{task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    progress = Progress(*columns, console=console)
    with progress, ThreadPoolExecutor(at_once) as pool:
        total = progress.add_task('jobs', total=len(jobs))
        lines: Dict[str, Any] = {}  # tasks of the display, None for a finished job
        start(pool)
        try:
            while show(jobs, futures, progress, total, lines):
                time.sleep(LOOK)
                start(pool)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return {key: outcome(future) for key, future in futures.items()}


def show(
    jobs: Mapping[str, Job],
    futures: Dict[str, Future],
    progress: Progress,
    total: TaskID,
    lines: Dict[str, Any],
) -> bool:
    """Update the display, and return whether there are unfinished jobs."""
    for key, future in futures.items():
        job = jobs[key]
        if future.running():
            if key not in lines:
                lines[key] = progress.add_task('', total=None)
                line = f'{job.label}: started in {job.folder}'  # also where no bar is drawn
                progress.console.print(line, markup=False, soft_wrap=True)
            progress.update(lines[key], description=f'{job.label}: {job.state}')
        elif future.done() and lines.get(key, key) is not None:
            if key in lines:
                progress.remove_task(lines[key])
            lines[key] = None
            found = outcome(future)
            end = f'failed: {found.splitlines()[0]}' if isinstance(found, str) else 'done'
            progress.console.print(f'{job.label}: {end}', markup=False, soft_wrap=True)
            progress.advance(total)
    return len(futures) < len(jobs) or not all(future.done() for future in futures.values())


def outcome(future: Future) -> Outcome:
    """The result of a finished job, or the text of its failure."""
    error = future.exception()
    if error is None:
        return future.result()
    text = str(error) if isinstance(error, RuntimeError) else ''
    return text or f'{type(error).__name__}: {error}'
