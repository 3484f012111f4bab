"""The backend of all ops, and their form in exported graphs."""

import contextlib
import functools
import os
import threading
from typing import Callable, Collection, Iterator, Tuple, TypeVar

import torch

from ._checks import constant_in_graphs, is_compiling, is_recording, is_transforming

BACKENDS = ('auto', 'native', 'reference')
VARIABLE = 'MMLAPLACE_BACKEND'
Number = TypeVar('Number', int, torch.Tensor)

# Per thread. It is no context variable: torch.compile cannot read those, but guards on this.
_CHOSEN = threading.local()


def default_backend() -> str:
    """The backend that ``MMLAPLACE_BACKEND`` sets, ``'auto'`` if it is not set.

    Raises:
        ValueError: If the variable has another value.
    """
    backend = os.environ.get(VARIABLE) or 'auto'
    if backend not in BACKENDS:
        raise ValueError(
            f'the environment variable {VARIABLE} must be one of {BACKENDS}, got {backend!r}; '
            f"set one of these, or 'unset {VARIABLE}'"
        )
    return backend


# Read once, at import, as a graph that torch.compile traces cannot read the environment.
_DEFAULT = default_backend()


def current_backend() -> str:
    """The backend of ops that are called without ``backend=``.

    The innermost :func:`use_backend` of this thread sets it. Outside of any :func:`use_backend`, it
    is the value of the environment variable ``MMLAPLACE_BACKEND`` at import, and ``'auto'`` without
    the variable.

    Examples:
        >>> from mmlaplace.ops import current_backend, use_backend
        >>> with use_backend('reference'):
        ...     current_backend()
        'reference'
    """
    return getattr(_CHOSEN, 'backend', _DEFAULT)


@contextlib.contextmanager
def use_backend(name: str) -> Iterator[None]:
    """A context or decorator that sets the backend of ops called without ``backend=``.

    It holds for the thread that enters it. Other threads keep their backend. Graphs of
    torch.compile are compiled again for another backend. Exported graphs have the backend of their
    export. Blocks with activation checkpointing (``with_cp``) recompute with the backend of their
    forward.

    A forked worker of a ``DataLoader``, the default on Linux, has the backend of its parent at the
    fork. A spawned worker, or any other new process, has the backend of the environment variable
    ``MMLAPLACE_BACKEND``, which takes the same values.

    Args:
        name: ``'auto'`` (the compiled op where it can run, else the reference), ``'native'`` (an
            error where the compiled op cannot run) or ``'reference'`` (plain PyTorch). A call with
            ``backend='native'`` or ``'reference'`` overrides this context.

    Raises:
        ValueError: For another name.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import laplacian_kernel, use_backend
        >>> with use_backend('reference'):
        ...     laplacian_kernel(torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, 2), bandwidth=2.0)
        tensor([[[[0.3679]]]])
    """
    check_backend(name)
    before = getattr(_CHOSEN, 'backend', None)
    _CHOSEN.backend = name
    try:
        yield
    finally:
        if before is None:
            del _CHOSEN.backend  # or graphs, which know that it was not there, are compiled again
        else:
            _CHOSEN.backend = before


@contextlib.contextmanager
def only_native(ops: Collection[str]) -> Iterator[None]:
    """A context in which these ops are native, and all other ops are references.

    It is for graphs of a runtime that has operators for some ops. A :func:`use_backend` inside it
    does not change the backend of these ops.
    """
    before = native_ops()
    _CHOSEN.native = frozenset(ops)
    try:
        with use_backend('reference'):
            yield
    finally:
        _CHOSEN.native = before


def native_ops() -> frozenset:
    """The names of the ops that :func:`only_native` chose in this thread."""
    return getattr(_CHOSEN, 'native', frozenset())


def check_backend(backend: str) -> None:
    """Raise unless it is one of ``BACKENDS``."""
    if backend not in BACKENDS:
        raise ValueError(f'backend must be one of {BACKENDS}, got {backend!r}')


def with_current_backend(function: Callable) -> Callable:
    """``function`` bound to the current backend, for later calls in any thread.

    Backward passes on a GPU run in threads of their own. Functions that they recompute need this.
    """
    backend = current_backend()

    @functools.wraps(function)
    def with_backend(*args, **kwargs):
        with use_backend(backend):
            return function(*args, **kwargs)

    return with_backend


def exporting_to_onnx() -> bool:
    """Whether an ONNX exporter is recording a graph. Such a graph has no compiled op."""
    return is_recording() and torch.onnx.is_in_onnx_export()


def exporting() -> bool:
    """Whether torch.onnx, torch.export or torch.jit.trace is recording a graph for a runtime.

    References then use only standard operators, as such a graph needs. In graphs of torch.compile
    this is not so.

    Examples:
        >>> from mmlaplace.ops import exporting
        >>> exporting()
        False
    """
    if torch.jit.is_tracing():
        return True
    return is_compiling() and (_torch_export() or torch.onnx.is_in_onnx_export())


def runtime_has(op: str) -> bool:
    """Whether a graph is recorded for a runtime that has an operator for the op."""
    return exporting() and op in native_ops()


def in_cpu_graph(tensor: torch.Tensor) -> bool:
    """Whether a graph of torch.compile is recorded, whose ``tensor`` is fp32 on a CPU.

    It is not so where torch < 2.7 cannot tell such a graph from an exported one.
    """
    return (
        hasattr(torch.compiler, 'is_exporting')
        and is_compiling()
        and not exporting()
        and not is_transforming()
        and tensor.device.type == 'cpu'
        and tensor.dtype == torch.float32
    )


@constant_in_graphs  # torch < 2.12 takes it for true in torch.compile
def _torch_export() -> bool:
    # torch < 2.7 tells torch.export and torch.compile apart by nothing.
    return hasattr(torch.compiler, 'is_exporting') and torch.compiler.is_exporting()


def ceil_div(number: Number, by: int) -> Number:
    """``number / by`` rounded up, for positive numbers. It is right in graphs for dynamic sizes.

    ONNX rounds the quotient of integers towards zero, and so :math:`-(-a // b)` down.
    """
    return (number + by - 1) // by


def at_most(limit: int, size: int) -> int:
    """``min(limit, size)``, which a graph computes anew for a dynamic size."""
    if isinstance(size, torch.Tensor):  # in a trace
        return size.clamp(max=limit)
    if isinstance(size, torch.SymInt):
        return torch.sym_min(limit, size)
    return min(limit, size)


def split_at(x: torch.Tensor, place: int, dim: int) -> Tuple[torch.Tensor, torch.Tensor]:
    """A tensor before a place of an axis, and from there on.

    By slices: the older exporter of torch.onnx writes ``tensor_split`` as a loop over a sequence,
    which OpenVINO does not read.
    """
    return x.narrow(dim, 0, place), x.narrow(dim, place, int(x.shape[dim]) - place)
