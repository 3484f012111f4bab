"""Files with the settings and the results of runs, which a later call reads and does not repeat."""

import json
import warnings
from pathlib import Path
from typing import Optional

from ...commands.command_line import write_json


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
