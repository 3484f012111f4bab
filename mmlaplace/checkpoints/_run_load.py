"""All of a checkpoint of mmengine's Runner, to resume the run, without any code of the file."""

from collections import Counter, deque
from datetime import date, datetime, time, timedelta, timezone
from os import PathLike
from pathlib import Path
from typing import Any, Dict, Union

import numpy as np
import torch
from mmengine.config import ConfigDict
from mmengine.logging import HistoryBuffer

from ._plain_load import (
    _ALLOWED,
    _DTYPES,
    PicklePlainData,
    Unpickler,
    _Ignored,
    _Rebuild,
    load_plain,
)


class _Buffer(HistoryBuffer):
    """Later a HistoryBuffer. The functions in its state are left out: the class has its own."""

    def __setstate__(self, state: dict) -> None:
        self._set_default_statistics()
        for name in ('max_length', '_log_history', '_count_history'):
            setattr(self, name, state[name])


def _encode(text: str, encoding: str) -> bytes:
    """As bytes are pickled in torch.save's protocol 2."""
    return text.encode('latin1')


_BUILT_INS = (bytearray, bytes, complex, dict, float, frozenset, int, list, range, set, slice)
_ARRAY = np.zeros(1)
_RECONSTRUCT = _Rebuild(_ARRAY.__reduce__()[0])
_SCALAR = _Rebuild(_ARRAY[0].__reduce__()[0])
_FROM_BUFFER = _Rebuild(_ARRAY.__reduce_ex__(5)[0])
# A pickle can set attributes of a class that is written in Python. So those are hidden in _Rebuild.
_REAL: Dict[tuple, Any] = {
    **{('builtins', kind.__name__): kind for kind in _BUILT_INS},
    **{('__builtin__', kind.__name__): kind for kind in _BUILT_INS},
    ('__builtin__', 'long'): int,
    ('__builtin__', 'xrange'): range,
    ('_codecs', 'encode'): _Rebuild(_encode),
    ('collections', 'Counter'): _Rebuild(Counter),
    ('collections', 'deque'): deque,
    ('datetime', 'date'): date,
    ('datetime', 'datetime'): datetime,
    ('datetime', 'time'): time,
    ('datetime', 'timedelta'): timedelta,
    ('datetime', 'timezone'): timezone,
    ('mmengine.config.config', 'ConfigDict'): _Rebuild(ConfigDict),
    ('mmengine.logging.history_buffer', 'HistoryBuffer'): _Buffer,
    ('numpy', 'dtype'): np.dtype,
    ('numpy', 'ndarray'): np.ndarray,
    ('numpy.core.multiarray', '_reconstruct'): _RECONSTRUCT,
    ('numpy.core.multiarray', 'scalar'): _SCALAR,
    ('numpy.core.numeric', '_frombuffer'): _FROM_BUFFER,
    ('numpy._core.multiarray', '_reconstruct'): _RECONSTRUCT,
    ('numpy._core.multiarray', 'scalar'): _SCALAR,
    ('numpy._core.numeric', '_frombuffer'): _FROM_BUFFER,
    ('pathlib', 'PosixPath'): _Rebuild(Path),
    ('pathlib', 'WindowsPath'): _Rebuild(Path),
    ('pathlib._local', 'PosixPath'): _Rebuild(Path),
    ('pathlib._local', 'WindowsPath'): _Rebuild(Path),
    ('torch', 'Size'): torch.Size,
    ('torch', 'device'): torch.device,
    **{('torch', name): getattr(torch, name) for name in _DTYPES},
}


class _RunUnpickler(Unpickler):
    allowed = {**_ALLOWED, **_REAL}


class _PickleRun(PicklePlainData):
    Unpickler = _RunUnpickler


def load_run(path: Union[str, PathLike], map_location: Any) -> Any:
    """As :func:`load_plain`, with all that mmengine needs to resume a run.

    An entry of a dict that is none of this is left out. mmengine runs the text under ``config`` in
    ``meta`` as Python, so it is left out too, and so is that under ``cfg``.

    Raises:
        Exception: As :func:`load_plain`.
    """
    content = load_plain(path, map_location, _PickleRun)
    todo = [content]
    seen = set()
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, _Buffer):
            value.__class__ = HistoryBuffer
        if isinstance(value, dict):
            for key in [key for key, one in value.items() if isinstance(one, _Ignored)]:
                del value[key]
            todo += value.values()
        elif isinstance(value, (list, tuple)):
            todo += value
    meta = content.get('meta') if isinstance(content, dict) else None
    if isinstance(meta, dict):
        meta.pop('config', None)
        meta.pop('cfg', None)
    return content
