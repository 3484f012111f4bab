"""New processes know what ``import mmlaplace`` registers: models, data sets, transforms, backends.

A process that ``multiprocessing`` forks has all of it. A spawned one starts empty and imports only
what its pickled arguments name, and so does one of a fork server. The arguments of a data loader's
worker name the toolbox's transforms, and these look up ``backend='whole'`` by its name.
"""

import multiprocessing
from multiprocessing import context
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any, Tuple, Type


def start_with_mmlaplace() -> None:
    """Let spawned processes import mmlaplace before they read their arguments.

    It concerns the classes of processes of ``multiprocessing`` itself, which data loaders, pools
    and torch's ``spawn`` start. Your own subclass of ``multiprocessing.Process`` is left as it is.
    """
    kinds: Tuple[Type[BaseProcess], ...] = (multiprocessing.Process, context.SpawnProcess)
    if 'forkserver' in multiprocessing.get_all_start_methods():  # not on Windows
        kinds += (context.ForkServerProcess,)
    for kind in kinds:
        ForkingPickler.register(kind, _reduced)


def _reduced(process: BaseProcess) -> Tuple[Any, ...]:
    """A process as pickle writes it. What comes first is read first: a function of this module."""
    return _empty, (type(process),), vars(process)


def _empty(kind: Type[BaseProcess]) -> BaseProcess:
    """A process without its state, which pickle reads next."""
    return kind.__new__(kind)
