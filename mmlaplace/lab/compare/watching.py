"""Lines of a user's file, and what is computed there."""

import inspect
import linecache
import re
import sys
from types import TracebackType
from typing import Any, Callable, Optional

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


def line(file: str, number: int) -> str:
    """A line of a file, as ``file:number: code``."""
    return f'{file}:{number}: {linecache.getline(file, number).strip()}'


def line_of_error(error: BaseException, file: str) -> str:
    """The last line of a file in the traceback of an error and its causes, or ``''``."""
    last_line = ''
    cause: Optional[BaseException] = error
    while cause is not None:
        traceback: Optional[TracebackType] = cause.__traceback__
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename == file:
                last_line = line(file, traceback.tb_lineno)
            traceback = traceback.tb_next
        # A tracer, such as torch.compile's, has the user's frames in its message alone.
        quoted = re.findall(rf'File "{re.escape(file)}", line (\d+)', str(cause))
        if quoted and not last_line:
            last_line = line(file, int(quoted[-1]))
        cause = cause.__cause__ or cause.__context__
    return last_line


def line_of_class(cls: type, file: str) -> str:
    """The line of the file where the class computes: of ``mix``, ``forward``, or the class."""
    for name in ('mix', 'forward'):
        method = vars(cls).get(name)
        if method is not None and inspect.getsourcefile(method) == file:
            return line(file, inspect.getsourcelines(method)[1])
    return line(file, inspect.getsourcelines(cls)[1])


class Watch(TorchDispatchMode):
    """Finds the line of a file whose operation gave the tensor with the largest score.

    Args:
        file: The file.
        score: Function of a tensor. The first tensor with the largest positive score counts.

    Attributes:
        largest: The largest score of any tensor, or 0.
        line: The line of the file, or ``''`` where no line of it was running.
    """

    def __init__(self, file: str, score: Callable[[Tensor], float]) -> None:
        super().__init__()
        self.file, self.score = file, score
        self.largest, self.line = 0.0, ''

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_flatten(out)[0]:
            if isinstance(value, Tensor) and (score := self.score(value)) > self.largest:
                self.largest, self.line = score, self.running_line()
        return out

    def running_line(self) -> str:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back  # type: ignore[assignment]
        return '' if frame is None else line(self.file, frame.f_lineno)


@torch.no_grad()
def not_finite(value: Tensor) -> float:
    """1 for a tensor with NaN or infinite values, otherwise 0."""
    return float(value.is_floating_point() and not bool(value.isfinite().all()))
