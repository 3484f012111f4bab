"""Tables that depend on sizes alone, such as positions and masks: computed once, and kept.

All blocks of a stage, and all forwards of images of one size, take the same table.
"""

import os
import threading
from collections import OrderedDict
from typing import Any, Callable, Hashable, List, Tuple, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from mmlaplace.ops._checks import is_compiling, is_transforming
from mmlaplace.ops.precision import no_autocast

Table = TypeVar('Table')  # a tensor, or a tuple of tensors
PLAIN = (Tensor, Parameter)  # other classes of tensors may have no values

# Of all tables together. The least recently used ones go first. The tables of Swin-T take 1 MB for
# images of 224 x 224 pixels, and 20 MB for 1024 x 1024, so those of several sizes fit.
MOST_BYTES = 128 << 20
MOST_TABLES = 256

_LOCK = threading.RLock()
_KEPT: 'OrderedDict[Hashable, Tuple[Any, int]]' = OrderedDict()  # each with its bytes


def computed_once(compute: Callable[..., Table], *sizes: Hashable, like: Tensor) -> Table:
    """``compute(*sizes, like.device)``, or what an earlier call of it has returned.

    Graphs of torch.compile, torch.export and torch.jit.trace, transforms of torch.func, and tensors
    without values compute the table anew: it becomes a part of the graph. So it is in a CUDA graph,
    which would not know that a table has left the memory. Each stream of a GPU has tables of its
    own, as another stream might read a table before it is computed.

    Args:
        compute: A function of the module level, whose result depends on its arguments alone. It
            gives a tensor, or a tuple with tensors. Nobody may change these in place.
        *sizes: Its arguments before the device, all hashable.
        like: A tensor on the device of the table.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.tables import computed_once
        >>> def rows(height, width, device):
        ...     return torch.arange(height, device=device).repeat_interleave(width)
        >>> x = torch.zeros(1)
        >>> computed_once(rows, 2, 3, like=x)
        tensor([0, 0, 0, 1, 1, 1])
        >>> computed_once(rows, 2, 3, like=x) is computed_once(rows, 2, 3, like=x)
        True
    """
    if (
        is_compiling()
        or torch.jit.is_tracing()
        or is_transforming()
        or type(like) not in PLAIN
        or like.is_meta
    ):
        return compute(*sizes, like.device)
    key: Tuple[Hashable, ...] = (compute, sizes, like.device)
    if like.is_cuda:
        if torch.cuda.is_current_stream_capturing():
            return compute(*sizes, like.device)
        key += (torch.cuda.current_stream(like.device),)
    with _LOCK:
        if key in _KEPT:
            _KEPT.move_to_end(key)
            return _KEPT[key][0]
    # Not under the lock: threads may compute at the same time. It may serve in training later.
    with torch.inference_mode(False), torch.no_grad(), no_autocast(like.device):
        table = compute(*sizes, like.device)
    _keep(key, table)
    return table


def numbers(count: int, device: torch.device) -> Tensor:
    """The table of 0, 1, … up to ``count - 1``."""
    return torch.arange(count, device=device)


def forget_tables() -> None:
    """Let go of all tables, and of their memory. They are computed again when they are needed.

    Examples:
        >>> from mmlaplace.models.layers.tables import forget_tables
        >>> forget_tables()
    """
    with _LOCK:
        _KEPT.clear()


def bytes_kept() -> int:
    """Bytes of all tables that are kept now."""
    with _LOCK:
        return sum(size for _, size in _KEPT.values())


def _keep(key: Hashable, table: Any) -> None:
    """Keep a table, unless it is as large as all may be, or has no values."""
    tensors = _tensors_in(table)
    size = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    if size > MOST_BYTES or any(type(tensor) is not Tensor for tensor in tensors):
        return
    with _LOCK:
        _KEPT[key] = table, size
        while len(_KEPT) > MOST_TABLES or bytes_kept() > MOST_BYTES:
            _KEPT.popitem(last=False)


def _tensors_in(table: Any) -> List[Tensor]:
    if isinstance(table, Tensor):
        return [table]
    if not isinstance(table, tuple):
        return []
    return [tensor for part in table for tensor in _tensors_in(part)]


def _start_in_a_fork() -> None:
    """A forked process has no lock that a thread of its parent may hold, and no GPU's tables."""
    global _LOCK
    _LOCK = threading.RLock()
    _KEPT.clear()


if hasattr(os, 'register_at_fork'):
    os.register_at_fork(after_in_child=_start_in_a_fork)
