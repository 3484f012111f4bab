"""Configs that stand alone."""

import pprint

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
