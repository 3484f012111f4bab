"""Lines of a user's file, and what is computed there."""

import inspect
import linecache
import re
import sys
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
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


class Watching(TorchDispatchMode):
    """Sees each operation, and knows the line of a file that runs it.

    Args:
        file: The file.
    """

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.see(func, tensors((args, kwargs)), tensors(out))
        return out

    def see(self, func: Any, inputs: List[Tensor], outputs: List[Tensor]) -> None:
        """Take note of an operation with its inputs and outputs."""
        raise NotImplementedError

    def running_line(self) -> str:
        """The line of the file that is running, or ``''``."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back  # type: ignore[assignment]
        return '' if frame is None else line(self.file, frame.f_lineno)


def tensors(tree: Any) -> List[Tensor]:
    """The tensors in nested lists, tuples and dicts."""
    return [value for value in tree_flatten(tree)[0] if isinstance(value, Tensor)]


class Watch(Watching):
    """Finds the line of a file whose operation gave the tensor with the largest score.

    Args:
        file: The file.
        score: Function of a tensor. The first tensor with the largest positive score counts.

    Attributes:
        largest: The largest score of any tensor, or 0.
        line: The line of the file, or ``''`` where no line of it was running.
    """

    def __init__(self, file: str, score: Callable[[Tensor], float]) -> None:
        super().__init__(file)
        self.score = score
        self.largest, self.line = 0.0, ''

    def see(self, func: Any, inputs: List[Tensor], outputs: List[Tensor]) -> None:
        for value in outputs:
            if (score := self.score(value)) > self.largest:
                self.largest, self.line = score, self.running_line()


class Casts(Watching):
    """Finds the first line of a file that casts to the fewest bits, from fp64.

    Attributes:
        dtype: The dtype that it casts to, or None.
        line: The line of the file, or ``''``.
    """

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.dtype: Optional[torch.dtype] = None
        self.line, self.bits = '', 64

    def see(self, func: Any, inputs: List[Tensor], outputs: List[Tensor]) -> None:
        # The last input is what is cast: copy_ has the place that it goes to before it.
        is_cast = func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
        if is_cast and inputs[-1].is_floating_point() and outputs[0].is_floating_point():
            bits = torch.finfo(outputs[0].dtype).bits
            if bits < min(self.bits, torch.finfo(inputs[-1].dtype).bits):
                self.dtype, self.bits, self.line = outputs[0].dtype, bits, self.running_line()


class Work(Watching):
    """Counts the elements that operations read and write, in the backward pass too.

    Views read and write nothing.

    Attributes:
        elements: The elements of all inputs and outputs.
        by_line: Those of each line of the file.
        largest: The elements of the largest output.
        largest_line: The line of the file that gave it.
    """

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.elements, self.largest = 0, 0
        self.by_line: Dict[str, int] = {}
        self.largest_line = ''

    def see(self, func: Any, inputs: List[Tensor], outputs: List[Tensor]) -> None:
        aliases = [value.alias_info for value in func._schema.returns]
        if any(alias is not None and not alias.is_write for alias in aliases):
            return
        elements = sum(value.numel() for value in (*inputs, *outputs))
        self.elements += elements
        running = self.running_line()
        if running:
            self.by_line[running] = self.by_line.get(running, 0) + elements
        if (most := max((value.numel() for value in outputs), default=0)) > self.largest:
            self.largest, self.largest_line = most, running

    @property
    def line(self) -> str:
        """The line of the file with the most elements, or ``''``."""
        return max(self.by_line, key=self.by_line.__getitem__, default='')


class NoDropout(TorchFunctionMode):
    """A context in which dropout keeps everything, that of layers and that of functions.

    It does not see dropout inside other functions of torch, such as those of
    ``nn.MultiheadAttention``.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if 'dropout' in getattr(func, '__name__', ''):
            return args[0] if args else kwargs['input']
        if 'dropout_p' in kwargs:  # of scaled_dot_product_attention
            kwargs['dropout_p'] = 0.0
        return func(*args, **kwargs)


@torch.no_grad()
def not_finite(value: Tensor) -> float:
    """1 for a tensor with NaN or infinite values, otherwise 0."""
    return float(value.is_floating_point() and not bool(value.isfinite().all()))
