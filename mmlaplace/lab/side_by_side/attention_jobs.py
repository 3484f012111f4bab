"""Jobs that train or measure an attention in a process of their own, and their results."""

import json
import warnings
from pathlib import Path
from typing import List, Optional, Sequence

from ...commands.command_line import write_json
from ...commands.script_runs import run_script
from ...model_zoo import files_root
from ..runner import Job, JobFailed
from .attention_study import cost_settings, settings_of

TOOLS = files_root() / 'tools/analysis_tools'


class Script(Job):
    """A script that writes a file at its end.

    Args:
        label: Name in messages.
        command: The script and its arguments.
        path: The file, whose ``settings`` must be those.
        settings: The settings on which the result depends.
    """

    def __init__(self, label: str, command: List[str], path: Path, settings: dict) -> None:
        super().__init__(label)
        self.command, self.path, self.settings = command, path, settings

    def result(self) -> Optional[dict]:
        found = read_result(self.path)
        return found if found is not None and found['settings'] == self.settings else None

    def run(self) -> dict:
        """Run the script in a process with one thread, its log beside the result."""
        script, *arguments = self.command
        log = self.path.with_name(f'{self.path.stem}.log')
        status, end = run_script(TOOLS / script, arguments, log, threads=1)
        if status:
            raise JobFailed(f'{self.label} ended with status {status}; the end of {log}:\n{end}')
        return json.loads(self.path.read_bytes())


def training_job(
    name: str,
    host: str,
    seed: int,
    study: str,
    epochs: Optional[int],
    folder: Path,
    data_root: Path,
    label: str = '',
) -> Script:
    """The job that trains an attention in a folder. Messages have ``label`` in place of the name.

    Other arguments are those of :func:`settings_of`.
    """
    command = [
        'attention_training.py',
        name,
        '--host',
        host,
        '--seed',
        str(seed),
        '--study',
        study,
        '--work-dir',
        str(folder),
        '--data-root',
        str(data_root),
        *(['--epochs', str(epochs)] if epochs else []),
    ]
    settings = settings_of(name, host, seed, study, epochs)
    label = f'{label or name} in {host}, seed {seed}'
    return Script(label, command, folder / 'result.json', settings)


def cost_job(name: str, host: str, sizes: Sequence[int], path: Path, label: str = '') -> Script:
    """The job that measures time and memory of a host with an attention, and writes a file."""
    command = [
        'attention_cost.py',
        name,
        '--host',
        host,
        '--out',
        str(path),
        '--force',
        '--sizes',
        *map(str, sizes),
    ]
    settings = cost_settings(name, host, sizes)
    return Script(f'{label or name}, time and memory', command, path, settings)


def read_result(path: Path) -> Optional[dict]:
    """Read a result. It is None if there is no file, or an incomplete one, with a warning.

    A run writes its result in one step. A file can be incomplete after an interrupted copy.
    """
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        found = error
    if isinstance(found, dict) and 'settings' in found:
        return found
    warnings.warn(f'{path} is not complete and is left out; run it again', stacklevel=2)
    return None


def begin(work_dir: Path, settings: dict) -> bool:
    """Write the settings of a training into its folder, so that no other one goes on with it.

    Returns:
        Whether the training had begun there before.

    Raises:
        ValueError: If a training with other settings began in the folder.
    """
    written = work_dir / 'settings.json'
    begun = read_result(written)
    if begun is not None:
        _check_settings(written, begun, settings)
        return True
    write_json(written, dict(settings=settings))
    return False


def finished(work_dir: Path, settings: dict) -> bool:
    """Whether a folder has a result with these settings.

    Raises:
        ValueError: If the folder has a result with other settings.
    """
    written = work_dir / 'result.json'
    result = read_result(written)
    if result is None:
        return False
    _check_settings(written, result, settings)
    return True


def _check_settings(path: Path, made: dict, settings: dict) -> None:
    if made['settings'] != settings:
        raise ValueError(
            f'{path} was made with {made["settings"]}, but the settings now are {settings}; take '
            'another --work-dir, or remove the folder of that file'
        )
