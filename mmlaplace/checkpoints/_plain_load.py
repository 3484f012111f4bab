"""``torch.load`` for tensors and plain data alone. It runs no code of a file.

The ``weights_only=True`` of torch 2.1 takes no additional names, so it cannot read the checkpoints
of mmengine. Later versions take names from a list that all threads of a process share.
"""

import pickle
import tarfile
from collections import OrderedDict, defaultdict
from os import PathLike
from typing import Any, BinaryIO, Dict, Tuple, Type, Union

import torch

from ._safetensors import is_safetensors, read_safetensors


class UnsafeCheckpointError(pickle.UnpicklingError):
    """A checkpoint names something other than tensors and the plain data of a training run."""


class _Ignored:
    """Stands for a harmless object beside the weights. It takes all arguments and does nothing."""

    def __init__(self, *args: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    def extend(self, values: Any) -> None:
        pass


class _Rebuild:
    """A function that a pickle may call. The pickle cannot set its attributes."""

    __slots__ = ('function',)

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)

    def __setstate__(self, state: Any) -> None:
        raise UnsafeCheckpointError(f'sets attributes of {self.function.__qualname__}')


# What a pickle may name, exactly. Tensors and dicts need the first five (torch itself resolves the
# names of storages); the rest is what mmengine's Runner and common training scripts write beside
# them, which nobody reads here: even getattr, which mmengine's HistoryBuffer needs, does nothing.
_BUILT_INS = (
    'bytearray',
    'bytes',
    'complex',
    'dict',
    'float',
    'frozenset',
    'getattr',
    'int',
    'list',
    'range',
    'set',
    'slice',
    'long',  # as torch.save's protocol 2 names int
    'xrange',  # and range
)
_DTYPES = tuple(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))
_IGNORED_NAMES: Dict[str, Tuple[str, ...]] = {
    'builtins': _BUILT_INS,
    '__builtin__': _BUILT_INS,
    '_codecs': ('encode',),
    'argparse': ('Namespace',),
    'collections': ('Counter', 'deque'),  # milestones of a MultiStepLR
    'datetime': ('date', 'datetime', 'time', 'timedelta', 'timezone'),
    'mmengine.config.config': ('ConfigDict',),  # in the meta data of a data set
    'mmengine.logging.history_buffer': ('HistoryBuffer',),
    'mmengine.optim.scheduler.param_scheduler': ('OneCycleParamScheduler',),
    'numpy': ('dtype', 'ndarray'),
    'numpy.core.multiarray': ('_reconstruct', 'scalar'),
    'numpy._core.multiarray': ('_reconstruct', 'scalar'),
    'numpy.core.numeric': ('_frombuffer',),
    'numpy._core.numeric': ('_frombuffer',),
    'pathlib': ('PosixPath', 'WindowsPath'),
    'pathlib._local': ('PosixPath', 'WindowsPath'),
    'torch': ('Size', 'device', *_DTYPES),
    'yacs.config': ('CfgNode',),  # Swin's training script writes one, and so PolaFormer's
}
_ALLOWED: Dict[tuple, Any] = {
    ('collections', 'OrderedDict'): OrderedDict,
    ('collections', 'defaultdict'): defaultdict,
    ('torch._utils', '_rebuild_tensor'): _Rebuild(torch._utils._rebuild_tensor),
    ('torch._utils', '_rebuild_tensor_v2'): _Rebuild(torch._utils._rebuild_tensor_v2),
    ('torch._utils', '_rebuild_parameter'): _Rebuild(torch._utils._rebuild_parameter),
    **{(module, name): _Ignored for module, names in _IGNORED_NAMES.items() for name in names},
}


class Unpickler(pickle.Unpickler):
    """Gives the objects of a dict for the names in a pickle."""

    allowed = _ALLOWED

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise UnsafeCheckpointError(f'asks for {module}.{name}')
        return self.allowed[module, name]


class PicklePlainData:
    """The part of the pickle module that torch.load uses; nothing is imported by name."""

    Unpickler = Unpickler

    @classmethod
    def load(cls, file: Any, **kwargs: Any) -> Any:
        """As ``pickle.load``."""
        return cls.Unpickler(file, **kwargs).load()


def load_plain(
    path: Union[str, PathLike],
    map_location: Any,
    pickle_module: Type[PicklePlainData] = PicklePlainData,
) -> Any:
    """``torch.load`` with an empty object for everything but tensors and containers.

    A file of safetensors, which is known by its first bytes, gives ``state_dict`` and ``meta``.

    Raises:
        ImportError: If the file is one of safetensors, and that package is not installed.
        UnsafeCheckpointError: If the file names, or is, anything else. None of its code was run.
        OSError: If the file cannot be opened.
    """
    with open(path, 'rb') as file:  # once: what is checked is what is read
        if is_safetensors(file.read(9)):
            return read_safetensors(path, map_location)
        file.seek(0)
        try:
            return _load_opened(file, map_location, pickle_module)
        except OSError as error:  # a seek by what a broken file says
            raise ValueError(f'{type(error).__name__}: {error}') from error


def _load_opened(file: BinaryIO, map_location: Any, pickle_module: Type[PicklePlainData]) -> Any:
    is_zip = file.read(4) == b'PK\x03\x04'
    file.seek(0)
    # torch.load would hand these formats to others than our unpickler.
    if is_zip and 'constants.pkl' in torch._C.PyTorchFileReader(file).get_all_records():
        raise UnsafeCheckpointError('is a TorchScript program')
    if not is_zip and tarfile.is_tarfile(file):
        raise UnsafeCheckpointError('is a tar archive')
    file.seek(0)
    return torch.load(
        file, map_location, pickle_module=pickle_module, weights_only=False, mmap=False
    )
