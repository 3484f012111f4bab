"""Training around the models. Importing it registers optimizer constructors and hooks."""

from ..checkpoints import (
    LoadReport,
    StrictLoading,
    UnsafeCheckpointError,
    load_weights,
    read_dataset_meta,
    read_state_dict,
)
from .first_checks import FirstCheckError, FirstChecksHook, check_config
from .layer_decay import LayerDecayOptimWrapperConstructor
from .no_decay import NoDecayOptimWrapperConstructor
from .redraw_features import RedrawFeaturesHook, copy_features
from .watch_attention import WatchAttentionHook
from .whole_files import AtomicCheckpointHook, DamagedImageError, WholeFileBackend

__all__ = [
    'AtomicCheckpointHook',
    'DamagedImageError',
    'FirstCheckError',
    'FirstChecksHook',
    'LayerDecayOptimWrapperConstructor',
    'LoadReport',
    'NoDecayOptimWrapperConstructor',
    'RedrawFeaturesHook',
    'StrictLoading',
    'UnsafeCheckpointError',
    'WatchAttentionHook',
    'WholeFileBackend',
    'check_config',
    'copy_features',
    'load_weights',
    'read_dataset_meta',
    'read_state_dict',
]
