"""The one place that loads the compiled library ``mmlaplace/_C*.so`` and decides who computes.

Every op has a plain PyTorch reference beside its public function. When the library is there, its
ops appear as ``torch.ops.mmlaplace.<name>`` and ``backend='auto'`` uses them; when it is not, the
reference computes and the log says so once.
"""

import functools
from pathlib import Path
from typing import Callable, Optional

import torch
from mmengine.logging import print_log

from ._checks import is_compiling

BACKENDS = ('auto', 'native', 'reference')


def load_library(folder: Path) -> Optional[str]:
    """Load the compiled library in ``folder``; None when that worked, otherwise why it did not."""
    libraries = sorted(folder.glob('_C*.so'))
    if not libraries:
        return 'this installation of mmlaplace has no compiled library (mmlaplace/_C*.so)'
    try:
        torch.ops.load_library(str(libraries[0]))
    except OSError as error:
        return f'{libraries[0].name} did not load with torch {torch.__version__}: {error}'
    return None


# Once, at import: a graph that torch.compile traces cannot look for files.
WHY_MISSING = load_library(Path(__file__).resolve().parent.parent)


def why_not(name: str, device_type: str) -> Optional[str]:
    """Why ``torch.ops.mmlaplace.<name>`` cannot run on ``device_type``; None when it can."""
    if WHY_MISSING is not None:
        return WHY_MISSING
    key = {'cpu': 'CPU', 'cuda': 'CUDA', 'meta': 'Meta'}.get(device_type, device_type.upper())
    if not hasattr(torch.ops.mmlaplace, name):
        return f'the compiled library has no op {name!r}'
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f'mmlaplace::{name}', key):
        return f'the compiled library was built without {name!r} for {device_type}'
    return None


@functools.cache
def _log_fallback(reason: str) -> None:
    print_log(f'mmlaplace.ops: using the PyTorch reference, because {reason}.', logger='current')


def select(name: str, reference: Callable, device: torch.device, backend: str) -> Callable:
    """The callable that computes op ``name`` on ``device``.

    Args:
        name: The op's name in the ``mmlaplace`` namespace.
        reference: Its plain PyTorch implementation, with the native op's positional arguments.
        device: Where the inputs are.
        backend: ``'auto'`` (native when it can run, else the reference with one log line),
            ``'native'`` or ``'reference'``.

    Raises:
        ValueError: For another ``backend``.
        RuntimeError: For ``'native'`` where the compiled op cannot run; says why and what to do.
    """
    if backend not in BACKENDS:
        raise ValueError(f'backend must be one of {BACKENDS}, got {backend!r}')
    if backend == 'reference':
        return reference
    reason = why_not(name, device.type)
    if reason is None:
        return getattr(torch.ops.mmlaplace, name)
    if backend == 'native':
        raise RuntimeError(
            f"backend='native' was asked for {name} on {device}, but {reason}. Use "
            "backend='auto' or 'reference', or install mmlaplace where it can compile its ops."
        )
    if not is_compiling():  # logging would break the graph
        _log_fallback(reason)
    return reference
