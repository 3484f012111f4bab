"""Run the train.py and test.py of the toolboxes, after a check of the checkpoints they load."""

import gc
import os
import runpy
import sys
from pathlib import Path
from typing import List, Optional, Sequence

from mmengine.config import Config
from torch import distributed

from ..checkpoints import UnsafeCheckpointError, is_read_safely, read_state_dict, refuse_code
from ..engine.first_checks import FirstCheckError, check_config, is_on
from ..toolboxes import PACKAGES, toolbox_script
from ..writing import print_in_any_locale
from .command_line import change_options, check_backbone, end_tool, read_config
from .refusals import first_checks
from .terminal import keep_noise_from_terminal, last_words

CONFIG_SUFFIXES = ('.py', '.json', '.yaml', '.yml')
# The data that each script reads.
SPLITS = {'train.py': ('train', 'val'), 'test.py': ('test',)}
# Options of the toolboxes' scripts whose value is a file or folder.
WITH_FILE = ('--out', '--work-dir', '--show-dir', '--dump', '--resume')


def check_checkpoints(script: Path) -> Config:
    """Check the checkpoints that a toolbox's train.py or test.py will load.

    :func:`read_state_dict` reads each file first, so that the tool ends with an error before it
    builds anything. Later all files are loaded by :func:`refuse_code`, whichever option of the
    config has their names. The folders that some strategies write cannot be checked, and without
    the first checks mmengine only logs weights that do not fit the model. A warning on stderr tells
    the user about both. What the config alone shows, :func:`check_config` checks before.

    Args:
        script: Path of the toolbox's script. Its own parser reads ``sys.argv``.

    Returns:
        The config, with the changes of the command line.
    """
    from mmengine.runner import find_latest_checkpoint  # a slow import that only scripts need

    args = runpy.run_path(str(script), run_name=script.stem)['parse_args']()
    cfg = Config.fromfile(args.config)
    change_options(cfg, args.cfg_options)
    default = cfg.get('work_dir') or f'work_dirs/{Path(args.config).stem}'
    cfg.work_dir = getattr(args, 'work_dir', None) or default
    if getattr(args, 'amp', False):
        cfg.merge_from_dict({'optim_wrapper.type': 'AmpOptimWrapper'})
    compared = is_on(cfg)  # the weights with the model, when it is built
    if compared:
        try:
            check_config(cfg, train=script.name == 'train.py')
        except FirstCheckError as error:
            sys.exit(str(error))
    resume = getattr(args, 'resume', None) or cfg.get('resume')
    given = [getattr(args, 'checkpoint', None), cfg.get('load_from')]
    resumed = cfg.get('load_from') if resume is True else resume
    if resume:
        given.append(find_latest_checkpoint(cfg.work_dir))
        given.append(resume if isinstance(resume, str) and resume != 'auto' else None)
    for checkpoint in filter(None, given):
        safe = is_read_safely(checkpoint)
        if safe and checkpoint == resumed:
            sys.exit(
                f'{checkpoint} has weights alone, and a run needs more to be resumed; start from '
                f'them: --cfg-options load_from={checkpoint}'
            )
        checked = safe or os.path.isfile(os.path.expanduser(checkpoint))  # mmengine expands ~ too
        if not (safe or '://' in checkpoint or os.path.exists(os.path.expanduser(checkpoint))):
            sys.exit(f'there is no checkpoint {checkpoint}; check the path')
        if checked:
            try:
                read_state_dict(checkpoint)
            except (UnsafeCheckpointError, ValueError, OSError, ImportError) as error:
                if safe:
                    sys.exit(str(error))
                sys.exit(f'{error}\n{run_by_toolbox(script)}')
        folder = os.path.isdir(os.path.expanduser(checkpoint))
        is_main = os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0')) == '0'
        if is_main and (folder or not compared):
            sys.stderr.write(
                f'warning: mmengine loads {checkpoint}, and only logs weights that do not fit'
                + ('. It runs any code in the files of a folder\n' if folder else '\n')
            )
    cfg.load_from = given[0] or cfg.get('load_from')
    return cfg


def run_by_toolbox(script: Path) -> str:
    """A sentence on the way out, for a file that was refused."""
    return (
        "If it must be loaded as it is, and you trust its source, call the toolbox's own script, "
        f'which runs its code: {script}'
    )


def config_arguments(arguments: Sequence[str]) -> List[str]:
    """The arguments that may be the config: files of its kinds, and no values of options."""
    found, option = [], ''
    for argument in arguments:
        if argument.startswith('--'):
            option = argument
        elif option == '--cfg-options' and '=' in argument:
            continue
        else:
            if argument.endswith(CONFIG_SUFFIXES) and option not in WITH_FILE:
                found.append(argument)
            option = ''
    return found


def run_toolbox_script(name: str, usage: Optional[str]) -> None:
    """Run a script of the toolbox that is the ``default_scope`` of the config in ``sys.argv``.

    The script gets the command line unchanged.

    Args:
        name: The script, such as ``'train.py'``.
        usage: Text that is printed if there is no config among the arguments. Under ``python -OO``
            a docstring is None, and then a line is printed.
    """
    print_in_any_locale()
    refuse_code()
    keep_noise_from_terminal()
    configs = config_arguments(sys.argv[1:])
    if not configs:
        if {'-h', '--help'} & set(sys.argv[1:]):
            sys.stdout.write(
                usage or f'usage: {name} CONFIG; with a config, --help lists the options\n'
            )
            sys.exit()
        given = ' '.join(sys.argv[1:]) or 'nothing'
        end_tool(
            f'name a config, a file that ends with {", ".join(CONFIG_SUFFIXES)}; got {given}. '
            '--help shows examples'
        )
    scope = read_config(configs[0]).get('default_scope')
    if scope is None:
        sys.exit(f'{configs[0]} has no default_scope; set it to one of {PACKAGES}')
    if scope not in PACKAGES:
        sys.exit(f'{configs[0]} has the default_scope {scope!r}; set it to one of {PACKAGES}')
    try:
        script = toolbox_script(scope, name)
    except ImportError as error:  # with the command that installs what is missing
        sys.exit(str(error))
    tools, sys.argv[0] = Path(sys.argv[0]).absolute().parent, str(script)
    cfg = check_checkpoints(script)
    check_backbone(cfg, configs[0])
    with first_checks(cfg, SPLITS[name]):
        try:
            runpy.run_path(str(script), run_name='__main__')
        except UnsafeCheckpointError as error:
            sys.exit(f'{error}\n{run_by_toolbox(script)}')
    last_words(Path(name).stem, tools, configs[0], cfg)
    end_process_groups()


def end_process_groups() -> None:
    """End the distributed process groups after a run, together with their threads.

    Without this, a thread of gloo may still hold tensors when Python ends. To free them, the thread
    asks for Python's global lock. Then Python ends the thread, and torch aborts the process.
    """
    if distributed.is_available() and distributed.is_initialized():
        # Models are in reference cycles, and a group lives as long as a model that holds it.
        gc.collect()
        distributed.destroy_process_group()
