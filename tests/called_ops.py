"""Which operators of torch, and which functions of ours, are called."""

import sys
from pathlib import Path

from torch.utils._python_dispatch import TorchDispatchMode

import mmlaplace

READING = ('_local_scalar_dense', 'item', 'is_nonzero', 'equal', 'nonzero')
PACKAGE = str(Path(mmlaplace.__file__).parent)


def is_view(op) -> bool:
    """Whether all outputs of an operator share the memory of its inputs, unchanged."""
    if op.overloadpacket.__name__ == '_unsafe_view':  # whose schema does not tell
        return True
    outputs = [output.alias_info for output in op._schema.returns]
    return bool(outputs) and all(alias is not None and not alias.is_write for alias in outputs)


class Called(TorchDispatchMode):
    """The operators that are called in its context."""

    def __enter__(self):
        self.ops = []
        return super().__enter__()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.ops.append(function)
        return function(*args, **(kwargs or {}))

    @property
    def namespaces(self) -> set:
        return {op.namespace for op in self.ops}

    @property
    def reads(self) -> list:
        """Those that bring a value of a tensor to Python, for which a GPU waits."""
        return [op for op in self.ops if op.overloadpacket.__name__ in READING]

    @property
    def computing(self) -> list:
        """Those that are no views, each of which a GPU has to launch."""
        return [op for op in self.ops if not is_view(op)]


def calls_of(function, package: str = PACKAGE) -> list:
    """The code of the package's functions that ``function`` calls, once for each call."""
    seen = []

    def note(frame, event, argument):
        if event == 'call' and frame.f_code.co_filename.startswith(package):
            seen.append(frame.f_code)

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return seen
