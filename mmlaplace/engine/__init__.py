"""What runs around the models; importing it registers the optimizer constructor and the hook."""

from ._plain_load import UnsafeCheckpointError
from .checkpoint import LoadReport, load_weights, read_state_dict
from .layer_decay import LayerDecayOptimWrapperConstructor
from .whole_files import AtomicCheckpointHook, WholeFileBackend

__all__ = [
    'AtomicCheckpointHook',
    'LayerDecayOptimWrapperConstructor',
    'LoadReport',
    'UnsafeCheckpointError',
    'WholeFileBackend',
    'load_weights',
    'read_state_dict',
]
