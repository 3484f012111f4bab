"""Files that are there whole or not at all, and configs that stand alone."""

import os
import pprint
from pathlib import Path

from mmengine.config import Config


def config_text(cfg: Config) -> str:
    """A config as a file that stands alone."""
    content = {key: value for key, value in cfg.to_dict().items() if key != 'work_dir'}
    return (
        '\n'.join(
            f'{key} = {pprint.pformat(value, width=100, sort_dicts=False)}'
            for key, value in content.items()
        )
        + '\n'
    )


def write_whole(path: Path, text: str) -> None:
    """Write a file in one step, so that it is there whole or not at all."""
    beside = path.with_name(f'{path.name}.{os.getpid()}.part')
    beside.write_text(text)
    os.replace(beside, path)
