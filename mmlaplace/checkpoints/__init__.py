"""Checkpoints: read without running their code, loaded whole or not at all, and converted."""

from ._plain_load import UnsafeCheckpointError
from ._safetensors import write_weights
from .conversion import Converted, NameTable, position_map
from .dense import DENSE, DenseModel
from .fit import LoadReport
from .loading import load_weights, read_dataset_meta, read_state_dict
from .mmengine_loader import is_read_safely, refuse_code
from .published import PUBLISHED, PublishedModel
from .strict_loading import StrictLoading

__all__ = [
    'DENSE',
    'PUBLISHED',
    'Converted',
    'DenseModel',
    'LoadReport',
    'NameTable',
    'PublishedModel',
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
