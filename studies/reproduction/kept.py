"""Finished jobs and reports in a few files, a line each, as docs/logs/reproduce has them."""

import json
from functools import cache
from pathlib import Path
from typing import Any, Dict, Iterable, List, Sequence

from mmlaplace.writing import write_whole

REPORTS = 'reports.jsonl'


def read_kept(folder: Path, kind: str) -> Dict[str, dict]:
    """The results of the jobs of a kind that a folder keeps, by the names of their own folders.

    Args:
        folder: The folder, which need have no such file.
        kind: The kind of the jobs, such as ``'runs'``.
    """
    path = folder / f'{kind}.jsonl'
    if not path.is_file():
        return {}
    return {line['job']: line['result'] for line in _read(path, path.stat().st_mtime_ns)}


@cache
def _read(path: Path, changed: int) -> List[dict]:
    return [json.loads(line) for line in path.read_text(encoding='utf-8').splitlines()]


def keep_job(folder: Path, job: Path, kind: str, result: dict) -> None:
    """Add a finished job to the file of its kind, or replace its line.

    Args:
        folder: The folder of the file.
        job: The job's own folder. Its training log comes along.
        kind: The kind of the job.
        result: The result of the job, whose log will be that file.
    """
    path = folder / f'{kind}.jsonl'
    kept = dict(result, log=str(path)) if 'log' in result else result
    line: Dict[str, Any] = dict(job=job.name, result=kept)
    logs = sorted((job / 'train').glob('*/vis_data/scalars.json'))
    if logs:
        lines = logs[-1].read_text(encoding='utf-8').splitlines()
        line['training'] = [json.loads(text) for text in lines]
    _add(path, line, ('job',))


def keep_report(folder: Path, report: dict) -> None:
    """Add a report of a table to the file of reports, or replace its line."""
    _add(folder / REPORTS, report, ('table', 'scale'))


def _add(path: Path, line: dict, keys: Sequence[str]) -> None:
    """Put a line in the place of that with the same keys, or at the end."""
    before: Iterable[dict] = _read(path, path.stat().st_mtime_ns) if path.is_file() else []
    lines = {tuple(old[key] for key in keys): old for old in before}
    lines[tuple(line[key] for key in keys)] = line
    text = ''.join(json.dumps(one, ensure_ascii=False) + '\n' for one in lines.values())
    write_whole(path, text)
