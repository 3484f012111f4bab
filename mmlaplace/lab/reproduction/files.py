"""Write configs as files without a base."""

import pprint

from mmengine.config import Config


def config_text(cfg: Config) -> str:
    """The text of a config file with all options and no base. It leaves out ``work_dir``."""
    content = {key: value for key, value in cfg.to_dict().items() if key != 'work_dir'}
    return (
        '\n'.join(
            f'{key} = {pprint.pformat(value, width=100, sort_dicts=False)}'
            for key, value in content.items()
        )
        + '\n'
    )
