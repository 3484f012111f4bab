"""A short terminal: no noise of other packages, and at a run's end its scores and next commands."""

import logging
import os
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any, List, Tuple

import mmengine.logging
from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import MessageHub, MMLogger

from .model_list import path_from_here

# Starts of messages. mmengine's Runner logs them before it trains, hundreds of lines.
INIT_LOG = (
    f'\n{"-" * 60}\nSystem environment:',
    'Config:\n',
    'Hooks will be executed in the following order:\n',
    'paramwise_options -- ',  # a line for each parameter
)
# onedl-mmdetection warns of it at each import, and it is for CLRNet alone.
LINE_NMS = 'Line NMS is not compiled. Most likely when installing the package cuda was not'
# The onedl forks print it at each import: a package of their makers, which is not public.
ONEDL = ('Could not import OneDL', 'Could not import OneDL. Skipping OneDL datasets.')
# Of many scores, those by which papers compare.
SCORES = ('accuracy/top1', 'coco/bbox_mAP', 'coco/segm_mAP', 'mIoU')


@cache  # once in a process
def keep_noise_from_terminal() -> None:
    """Leave messages that mean nothing to a user out of the terminal. A log file has them all."""
    log, log_everywhere = mmengine.logging.print_log, MMLogger.callHandlers

    def print_log(msg: Any, logger: Any = None, level: int = logging.INFO) -> None:
        if msg not in ONEDL:
            log(msg, logger, level)

    def call_handlers(self: MMLogger, record: logging.LogRecord) -> None:
        if not record.getMessage().startswith((*INIT_LOG, LINE_NMS)):
            return log_everywhere(self, record)
        for handler in self.handlers:
            if isinstance(handler, logging.FileHandler) and record.levelno >= handler.level:
                handler.handle(record)

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
    hub, trained = MessageHub.get_current_instance(), script == 'train'
    said = [f'{name} {score:.4g}' for name, score in scores(hub, 'val' if trained else 'test')]
    best, last = (hub.runtime_info.get(f'{kind}_ckpt') for kind in ('best', 'last'))
    checkpoint = (best or last) if trained else cfg.load_from
    if trained and best:
        said.append(f'best {hub.get_info("best_score"):.4g}')
    if checkpoint is None:  # a training that keeps none
        sys.stdout.write(f'\n{", ".join(said)}\n')
        return
    checkpoint = path_from_here(checkpoint)
    if '--cfg-options' in sys.argv:
        config = os.path.join(cfg.work_dir, os.path.basename(config))  # as mmengine dumped it
    model = shlex.join([config, checkpoint])
    commands = [('tools/test.py', model)] if trained else []
    if cfg.model.get('backbone', {}).get('type') != 'SequenceEncoder':  # of images
        commands.append(('demo/image_demo.py', f'IMAGE {model}'))
        commands.append(('tools/deployment/export.py', f'{model} --verify'))
    sys.stdout.write(f'\n{", ".join(said)}, {checkpoint}\nNext:\n')
    for path, words in commands:
        script_here = shlex.quote(path_from_here(str(tools.parent / path)))
        sys.stdout.write(f'  python {script_here} {words}\n')


def scores(hub: MessageHub, split: str) -> List[Tuple[str, float]]:
    """The last scores of a split: those by which papers compare if there are any, otherwise all."""
    found = {
        name.partition('/')[2]: history.current()
        for name, history in hub.log_scalars.items()
        if name.startswith(f'{split}/') and not name.endswith('time')
    }
    return [(name, found[name]) for name in SCORES if name in found] or list(found.items())
