"""What the toolboxes bring: their models, and mmpretrain's, mmdet's and mmseg's own tools."""

import os
import runpy
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch.nn as nn
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from ..engine import UnsafeCheckpointError, read_state_dict

CONFIG_SUFFIXES = ('.py', '.json', '.yaml', '.yml')


def build_model(cfg: Config) -> nn.Module:
    """The model of a config, with the modules and in the scope of the toolbox that it is for."""
    scope = cfg.default_scope
    import_module(f'{scope}.utils').register_all_modules(init_default_scope=False)
    cfg.model.setdefault('data_preprocessor', cfg.get('data_preprocessor'))
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(cfg.model)


def toolbox_script(scope: str, name: str) -> Path:
    """Path of a script of a toolbox, such as ``toolbox_script('mmdet', 'train.py')``.

    Raises:
        ImportError: If the toolbox is not installed.
        FileNotFoundError: If it is, but without its scripts.
    """
    spec = find_spec(scope)
    if spec is None:
        raise ImportError(
            f'this needs {scope}, which is not installed; bash tools/setup_env.sh in a clone of '
            'mmlaplace brings all three toolboxes'
        )
    package = Path(spec.submodule_search_locations[0])
    places = (package / '.mim/tools', package.parent / 'tools')  # installed, and in a clone
    for place in places:
        if (place / name).is_file():
            return place / name
    raise FileNotFoundError(
        f'{scope} is installed without its scripts: no {name} in {" or ".join(map(str, places))}; '
        'install it again from its wheel'
    )


def check_checkpoints(script: Path) -> None:
    """Read what a toolbox's train.py or test.py is about to load, and end if it asks for code.

    They load by mmengine, which runs code from a checkpoint and only logs names and shapes that do
    not fit; a line says so. Files are checked by :func:`read_state_dict`; addresses and folders, as
    some strategies write them, cannot be.
    """
    from mmengine.runner import find_latest_checkpoint  # slow, and only scripts need it

    args = runpy.run_path(str(script), run_name=script.stem)['parse_args']()
    cfg = Config.fromfile(args.config)
    cfg.merge_from_dict(args.cfg_options or {})
    resume = getattr(args, 'resume', None) or cfg.get('resume')
    given = [getattr(args, 'checkpoint', None), cfg.get('load_from')]
    if resume:
        work_dir = args.work_dir or cfg.get('work_dir') or f'work_dirs/{Path(args.config).stem}'
        given.append(find_latest_checkpoint(work_dir))
        given.append(resume if isinstance(resume, str) and resume != 'auto' else None)
    for checkpoint in filter(None, given):
        checked = os.path.isfile(checkpoint)
        if checked:
            try:
                read_state_dict(checkpoint)
            except (UnsafeCheckpointError, ValueError) as error:
                sys.exit(
                    f'{error}\nmmengine would load it and run any code in it. If it must be '
                    f"loaded, and you trust its source, call the toolbox's own script: {script}"
                )
        if os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0':
            sys.stderr.write(
                f'warning: {checkpoint} is loaded by mmengine, which only logs what does not fit'
                + (' the model\n' if checked else ', and runs any code in it; it was not checked\n')
            )


def run_toolbox_script(name: str, usage: str) -> None:
    """Run a script of the toolbox that the config among the arguments names as its scope.

    The script sees the command line as it is; without a config, ``usage`` is printed.
    """
    configs = [argument for argument in sys.argv[1:] if argument.endswith(CONFIG_SUFFIXES)]
    if not configs:
        wanted = {'-h', '--help'} & set(sys.argv[1:])
        (sys.stdout if wanted else sys.stderr).write(usage)
        sys.exit(0 if wanted else 2)
    scope = Config.fromfile(configs[0]).get('default_scope')
    if scope is None:
        sys.exit(f"{configs[0]} has no default_scope; set it to 'mmpretrain', 'mmdet' or 'mmseg'")
    script = toolbox_script(scope, name)
    sys.argv[0] = str(script)
    check_checkpoints(script)
    runpy.run_path(str(script), run_name='__main__')
