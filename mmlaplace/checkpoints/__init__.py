"""Checkpoints: read without running their code, loaded whole or not at all, and converted."""

from ._plain_load import UnsafeCheckpointError
from .conversion import Conversion, position_map
from .loading import LoadReport, load_weights, read_dataset_meta, read_state_dict
from .strict_loading import StrictLoading

__all__ = [
    'Conversion',
    'LoadReport',
    'StrictLoading',
    'UnsafeCheckpointError',
    'load_weights',
    'position_map',
    'read_dataset_meta',
    'read_state_dict',
]
