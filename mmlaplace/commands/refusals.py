"""Errors of a user's config, data and weights, in one sentence at the end of a command."""

import inspect
import logging
import re
import sys
import traceback
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator, Sequence, Union

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.logging import MessageHub, MMLogger
from mmengine.runner import FlexibleRunner, Runner

from ..engine.first_checks import CHECKED, FirstCheckError, FirstChecksHook, explain_data, is_on
from ..engine.whole_files import DamagedImageError
from ..models.known_options import did_you_mean
from .data_folders import missing_folder

CHECKPOINTS = Path(__file__).resolve().parents[1] / 'checkpoints'


@contextmanager
def first_checks(cfg: Config, splits: Sequence[str]) -> Iterator[None]:
    """A context in which each run of mmengine has the first checks.

    An error of the user's input ends the process with one sentence. The log file of the run has its
    traceback. Any other error goes on.

    Args:
        cfg: The config of the run.
        splits: Those whose data the run reads, of ``'train'``, ``'val'`` and ``'test'``.
    """
    registers = {runner: runner.register_hooks for runner in (Runner, FlexibleRunner)}

    def with_checks(self: Any, *args: Any, **kwargs: Any) -> None:
        registers[FlexibleRunner if isinstance(self, FlexibleRunner) else Runner](
            self, *args, **kwargs
        )
        if not any(isinstance(hook, FirstChecksHook) for hook in self.hooks):
            self.register_hook(FirstChecksHook())

    try:
        for runner in registers:
            runner.register_hooks = with_checks
        yield
    except Exception as error:
        sentence = sentence_of(error, cfg, splits)
        if not sentence:
            raise
        _write_to_log(''.join(traceback.format_exception(type(error), error, error.__traceback__)))
        # All processes of a run make these checks, and one of them says what they found.
        silent = isinstance(error, FirstCheckError) and not is_main_process()
        sys.exit(1 if silent else sentence)
    finally:
        for runner, register in registers.items():
            runner.register_hooks = register


def sentence_of(error: BaseException, cfg: Config, splits: Sequence[str]) -> str:
    """A sentence for an error of the user's input, or ``''`` for any other.

    Args:
        error: The error.
        cfg: The config of the run.
        splits: As of :func:`first_checks`.
    """
    text = str(error)
    if isinstance(error, FirstCheckError) or _is_of_checkpoints(error):
        return text
    if isinstance(error, DamagedImageError):  # a worker's has its traceback in the text
        return text.strip().rpartition(f'{DamagedImageError.__name__}: ')[2]
    if found := re.search(r'AssertionError: failed to load image: (.+)', f'AssertionError: {text}'):
        return f'{found[1]} cannot be decoded as an image; copy it again, or remove it'
    if option := re.search(r"unexpected keyword argument '(\w+)'", text):
        return _unknown_option(error, option[1]) if isinstance(error, TypeError) else ''
    checked = MessageHub.get_current_instance().runtime_info.get(CHECKED)
    wrong = explain_data(cfg, splits) if is_on(cfg) and not checked else ''
    if isinstance(error, FileNotFoundError):
        missing = dict.fromkeys(missing_folder(cfg, split) for split in ('train', 'val', 'test'))
        if any(missing):
            return '\n'.join((text, *filter(None, missing)))
    return wrong


def _is_of_checkpoints(error: BaseException) -> bool:
    """Whether code of ours that reads checkpoints raised an error itself, as its text is whole."""
    if not isinstance(error, (ValueError, OSError, ImportError)) or error.__traceback__ is None:
        return False
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return CHECKPOINTS in Path(frame.f_code.co_filename).parents


def _unknown_option(error: TypeError, option: str) -> str:
    """A sentence on an option that a class of a config does not have."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):  # the innermost class
        built = frame.f_locals.get('obj_cls') if 'build' in frame.f_code.co_name else None
        if built is not None:
            known = [name for name in inspect.signature(built).parameters if name != 'kwargs']
            if option in known:
                return ''  # a layer inside of it lacks the option
            return (
                f'{built.__name__} has no option {option!r}{did_you_mean(option, known)}; its '
                f'options are {", ".join(known)}'
            )
    return ''


def _write_to_log(text: str) -> None:
    """Write a text into the log file of the run alone."""
    logger: Union[MMLogger, logging.Logger] = MMLogger.get_current_instance()
    record = logger.makeRecord(logger.name, logging.ERROR, '', 0, text, (), None)
    for handler in logger.handlers:
        if isinstance(handler, logging.FileHandler):
            handler.handle(record)
