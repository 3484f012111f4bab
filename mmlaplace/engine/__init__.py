"""What runs around the models; importing it registers the optimizer constructor."""

from ._plain_load import UnsafeCheckpointError
from .checkpoint import LoadReport, load_weights, read_state_dict
from .layer_decay import LayerDecayOptimWrapperConstructor

__all__ = [
    'LayerDecayOptimWrapperConstructor',
    'LoadReport',
    'UnsafeCheckpointError',
    'load_weights',
    'read_state_dict',
]
