"""A short terminal: no noise of other packages, and at a run's end its scores and next commands."""

import logging
import os
import re
import shlex
import shutil
import sys
import warnings
from functools import cache
from pathlib import Path
from typing import Any, Iterable, List, Sequence, Tuple

import mmengine.logging
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import MessageHub, MMLogger
from rich.console import Console
from rich.table import Table

from ..engine.first_checks import NOTHING_LEFT
from .model_list import path_from_here

# Starts of messages. mmengine's Runner logs these before it trains, hundreds of lines.
INIT_LOG = (
    f'\n{"-" * 60}\nSystem environment:',
    'Config:\n',
    'Hooks will be executed in the following order:\n',
    'paramwise_options -- ',  # a line for each parameter
)
ALARMS = (
    # onedl-mmdetection's at each import, for CLRNet alone.
    'Line NMS is not compiled. Most likely when installing the package cuda was not',
    # mmengine's about its own CheckpointHook.
    '"FileClient" will be deprecated in future. Please use io functions in',
    '"HardDiskBackend" is the alias of "LocalBackend" and the former will be deprecated in future.',
)
# The onedl forks' at each import, printed: a package of their makers, which is not public.
ONEDL = ('Could not import OneDL', 'Could not import OneDL. Skipping OneDL datasets.')
WARNINGS = (
    # torch's for each data loader on a CPU. The configs pin memory for GPUs.
    "'pin_memory' argument is set as true but no accelerator is found",
    # torch's about its own exporter.
    '`isinstance(treespec, LeafSpec)` is deprecated, use',
    # onedl-mmdetection's at each import, for FasterCocoMetric alone.
    'faster_coco_eval is not installed, metrics will not be computed',
)
# Of many scores, those by which papers compare.
SCORES = ('accuracy/top1', 'coco/bbox_mAP', 'coco/segm_mAP', 'mIoU')


@cache  # once in a process
def keep_noise_from_terminal() -> None:
    """Leave messages that mean nothing to a user out of the terminal. A log file has them all."""
    log, log_everywhere = mmengine.logging.print_log, MMLogger.callHandlers

    def print_log(msg: Any, logger: Any = None, level: int = logging.INFO) -> None:
        if not (isinstance(msg, str) and msg in ONEDL):
            log(msg, logger, level)

    def call_handlers(self: MMLogger, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if not message.startswith((*INIT_LOG, *ALARMS)):
            return log_everywhere(self, record)
        for handler in self.handlers:
            if isinstance(handler, logging.FileHandler) and record.levelno >= handler.level:
                handler.handle(record)
        if message.startswith(INIT_LOG[0]) and self.log_file:
            self.info(f'environment, config and hooks: {path_from_here(self.log_file)}')

    for start in WARNINGS:
        warnings.filterwarnings('ignore', re.escape(start))
    mmengine.logging.print_log = print_log
    MMLogger.callHandlers = call_handlers


def last_words(script: str, tools: Path, config: str, cfg: Config) -> None:
    """Print the scores of a run, its checkpoint and the next commands, in one process of several.

    Args:
        script: ``'train'`` or ``'test'``.
        tools: The folder of the script.
        config: Path of the config.
        cfg: The config, with the changes of the command line.
    """
    if not is_main_process():
        return
    hub = MessageHub.get_current_instance()
    trained = script == 'train'
    nothing_left = hub.runtime_info.get(NOTHING_LEFT)
    if trained and nothing_left:  # the scores are those of the run that was resumed
        sys.stdout.write(f'\n{nothing_left[:1].upper()}{nothing_left[1:]}.\n')
        return
    last_scores = scores(hub, 'val' if trained else 'test')
    text = ', '.join(f'{name} {score:.4g}' for name, score in last_scores) or 'without scores'
    lines = ['', f'{"Trained" if trained else "Tested"}: {text}.']
    best = hub.runtime_info.get('best_ckpt')
    checkpoint = cfg.load_from
    if trained:
        checkpoint = best or hub.runtime_info.get('last_ckpt')
    if checkpoint is not None:  # None of a training that keeps none
        checkpoint = path_from_here(checkpoint)
        kind = 'Checkpoint'
        if trained and best:
            kind = f'Best checkpoint ({hub.get_info("best_score"):.4g})'
        lines[-1] += f' {kind}: {checkpoint}'
        if any(word.startswith('--cfg-options') for word in sys.argv):
            config = os.path.join(cfg.work_dir, os.path.basename(config))  # as mmengine dumped it
        model = shlex.join([config, checkpoint])
        commands = [('tools/test.py', model)] if trained else []
        if cfg.model.get('backbone', {}).get('type') != 'SequenceEncoder':  # of images
            commands.append(('demo/image_demo.py', f'IMAGE {model}'))
            commands.append(('tools/deployment/export.py', f'{model} --verify'))
        for path, words in commands:
            script_file = tools.parent / path
            if script_file.is_file():  # a wheel has no demo
                lines.append(command(script_file, words))
    sys.stdout.write('\n'.join(lines) + '\n')


def command(script: Path, words: str) -> str:
    """A line with the command that runs a script of this clone by this Python."""
    python = 'python' if shutil.which('python') == sys.executable else sys.executable
    here = shlex.join(path_from_here(str(path)) for path in (python, script))
    return f'Next: {here} {words}'


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = '') -> None:
    """Print a table of figures, whose first column has names."""
    table = Table(title=title or None)
    for column in columns:
        justify: Any = 'right' if table.columns else 'left'
        table.add_column(column, justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(width=160).print(table)


def scores(hub: MessageHub, split: str) -> List[Tuple[str, float]]:
    """The last scores of a split: those by which papers compare if there are any, otherwise all."""
    values = {
        name.partition('/')[2]: history.current()
        for name, history in hub.log_scalars.items()
        if name.startswith(f'{split}/') and not name.endswith('time')
    }
    return [(name, values[name]) for name in SCORES if name in values] or list(values.items())
