"""Run the toolboxes' own train.py and test.py, once the checkpoints they load are checked."""

import gc
import os
import runpy
import sys
from pathlib import Path

from mmengine.config import Config
from torch import distributed

from ..checkpoints import UnsafeCheckpointError, read_state_dict
from ..toolboxes import PACKAGES, toolbox_script
from .command_line import read_config

CONFIG_SUFFIXES = ('.py', '.json', '.yaml', '.yml')


def check_checkpoints(script: Path) -> None:
    """Read what a toolbox's train.py or test.py is about to load, and end if it asks for code.

    These scripts load by mmengine, which runs code from a checkpoint. It only logs names and shapes
    that do not fit. A line says so. :func:`read_state_dict` checks files. It cannot check addresses
    and folders, which some strategies write.
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
        checked = os.path.isfile(os.path.expanduser(checkpoint))  # as mmengine reads it
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

    The script sees the command line as it is. Without a config, ``usage`` is printed.
    """
    configs = [argument for argument in sys.argv[1:] if argument.endswith(CONFIG_SUFFIXES)]
    if not configs:
        wanted = {'-h', '--help'} & set(sys.argv[1:])
        (sys.stdout if wanted else sys.stderr).write(usage)
        sys.exit(0 if wanted else 2)
    scope = read_config(configs[0]).get('default_scope')
    if scope is None:
        sys.exit(f'{configs[0]} has no default_scope; set it to one of {PACKAGES}')
    script = toolbox_script(scope, name)
    sys.argv[0] = str(script)
    check_checkpoints(script)
    runpy.run_path(str(script), run_name='__main__')
    end_process_groups()


def end_process_groups() -> None:
    """End the process groups of a run that is done, and their threads.

    Left to the end of Python, a thread of gloo may still hold tensors of a collective. To let go of
    them it asks for Python's lock, which ends the thread by then, and torch aborts the process.
    """
    if distributed.is_available() and distributed.is_initialized():
        # First the models, which are parts of cycles: a group lives as long as one of them has it.
        gc.collect()
        distributed.destroy_process_group()
