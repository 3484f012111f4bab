"""Checkpoints: read without running their code, loaded whole or not at all, and converted."""

from ._plain_load import UnsafeCheckpointError
from ._safetensors import write_weights
from .conversion import Converted, Names, position_map
from .families import FAMILIES, Family
from .fit import LoadReport
from .loading import load_weights, read_dataset_meta, read_state_dict
from .mmengine_loader import is_read_safely, refuse_code
from .strict_loading import StrictLoading

__all__ = [
    'FAMILIES',
    'Converted',
    'Family',
    'LoadReport',
    'Names',
    'StrictLoading',
    'UnsafeCheckpointError',
    'is_read_safely',
    'load_weights',
    'position_map',
    'read_dataset_meta',
    'read_state_dict',
    'refuse_code',
    'write_weights',
]
