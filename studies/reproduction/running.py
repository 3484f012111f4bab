"""Run the jobs of a call, and display their progress."""

from typing import Dict, List, Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TimeElapsedColumn,
)
from rich.text import Text

from mmlaplace.lab.runner import Outcome
from mmlaplace.lab.runner import run_all as run_jobs

from .launching import Job


class _Doing(ProgressColumn):
    """The job of a line with its present step."""

    def render(self, task: Task) -> Text:
        job = task.fields.get('job')
        return Text(f'{job.label}: {job.state}' if job else task.description)


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
    lines: Dict[Job, TaskID] = {}

    def started(job: Job) -> None:
        lines[job] = progress.add_task('', total=None, job=job)
        tell(f'{job.label}: started in {job.folder}')  # also where no bar is drawn

    def ended(job: Job, outcome: Outcome) -> None:
        if job in lines:
            progress.remove_task(lines[job])
        end = f'failed: {outcome.splitlines()[0]}' if isinstance(outcome, str) else 'done'
        tell(f'{job.label}: {end}')
        progress.advance(total)

    def tell(line: str) -> None:
        progress.console.print(line, markup=False, soft_wrap=True)

    columns = _Doing(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as progress:
        finished = sum(job.result() is not None for job in jobs.values())
        total = progress.add_task('jobs', total=len(jobs), completed=finished)
        outcomes = run_jobs(jobs.values(), at_once, devices, started, ended)
    return {key: outcomes[job] for key, job in jobs.items()}
