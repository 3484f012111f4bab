"""The file of results: one JSON object on each line, which a run appends at its end."""

import json
import os
import warnings
from pathlib import Path
from typing import Dict, List


def read_results(path: Path) -> List[dict]:
    """The results of a file. A line that was cut off is left out, with a warning.

    Args:
        path: The file. It has no results if it does not exist yet.
    """
    if not path.exists():
        return []
    results = []
    lines = path.read_text(encoding='utf-8', errors='replace').splitlines()
    for number, line in enumerate(lines, 1):
        try:
            result = json.loads(line)
            results.append(dict(result, key=key_of(result['settings'])))
        except (ValueError, KeyError, TypeError):
            warnings.warn(
                f'line {number} of {path} is not complete and is left out; its run is repeated',
                stacklevel=2,
            )
    return results


def append_result(path: Path, result: dict) -> None:
    """Append a result in one write, on a line of its own also after a line that was cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(result, ensure_ascii=False) + '\n'
    with open(path, 'a+b', buffering=0) as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b'\n':
                line = '\n' + line
        file.write(line.encode())


def key_of(settings: dict) -> str:
    """Settings as text, equal for equal settings."""
    return json.dumps(settings, sort_keys=True)


def by_key(results: List[dict]) -> Dict[str, dict]:
    """Results by their settings."""
    return {result['key']: result for result in results}
