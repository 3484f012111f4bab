"""What runs around the models; importing it registers the optimizer constructors."""

from ._plain_load import UnsafeCheckpointError
from .checkpoint import LoadReport, load_weights, read_state_dict
from .layer_decay import LayerDecayOptimWrapperConstructor
from .no_decay import NoDecayOptimWrapperConstructor

__all__ = [
    'LayerDecayOptimWrapperConstructor',
    'LoadReport',
    'NoDecayOptimWrapperConstructor',
    'UnsafeCheckpointError',
    'load_weights',
    'read_state_dict',
]
