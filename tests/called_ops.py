"""Which operators of torch are called."""

from torch.utils._python_dispatch import TorchDispatchMode

READING = ('_local_scalar_dense', 'item', 'is_nonzero', 'equal', 'nonzero')


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
