"""Jobs that train or measure an attention in a process of their own."""

import json
from pathlib import Path
from typing import Any, Callable, Optional, Sequence, Tuple

from ...commands.script_runs import run_function
from ..runner import Job, JobFailed
from .attention_cost import write_cost
from .attention_results import read_result
from .attention_study import cost_settings, settings_of
from .attention_training import train_attention


class Work(Job):
    """A call of a function that writes a file at its end.

    Args:
        label: Name in messages.
        function: The function.
        arguments: Its arguments.
        path: The file, whose ``settings`` must be those.
        settings: The settings on which the result depends.
    """

    def __init__(
        self, label: str, function: Callable, arguments: Sequence[Any], path: Path, settings: dict
    ) -> None:
        super().__init__(label)
        self.function, self.arguments = function, arguments
        self.path, self.settings = path, settings

    def result(self) -> Optional[dict]:
        found = read_result(self.path)
        return found if found is not None and found['settings'] == self.settings else None

    def run(self) -> dict:
        """Call the function in a process with one thread, its log beside the result."""
        log = self.path.with_name(f'{self.path.stem}.log')
        status, end = run_function(self.function, self.arguments, log, threads=1)
        if status:
            raise JobFailed(f'{self.label} ended with status {status}; the end of {log}:\n{end}')
        return json.loads(self.path.read_bytes())


def modules_of_trainings(device: str) -> Tuple[str, ...]:
    """Modules that the processes of trainings on a device import before they start.

    On a GPU they are none: a process that was forked after mmengine has looked for one could not
    use it.
    """
    return ('mmpretrain.models', 'mmlaplace.models') if device == 'cpu' else ()


def training_job(
    name: str,
    host: str,
    seed: int,
    study: str,
    epochs: Optional[int],
    folder: Path,
    data_root: Path,
    label: str = '',
    device: str = 'cpu',
) -> Work:
    """The job that trains an attention in a folder. Messages have ``label`` in place of the name.

    Other arguments are those of :func:`settings_of`.
    """
    settings = settings_of(name, host, seed, study, epochs, device)
    arguments = name, host, seed, study, epochs, folder, data_root, device
    label = f'{label or name} in {host}, seed {seed}'
    return Work(label, train_attention, arguments, folder / 'result.json', settings)


def cost_job(
    name: str,
    host: str,
    sides: Sequence[int],
    path: Path,
    label: str = '',
    device: str = 'cpu',
) -> Work:
    """The job that measures time and memory of a host with an attention, and writes a file."""
    settings = cost_settings(name, host, sides, device)
    label = f'{label or name}, time and memory'
    return Work(label, write_cost, (name, host, sides, path, device), path, settings)
