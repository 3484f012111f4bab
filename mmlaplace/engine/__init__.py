"""Training around the models. Importing it registers optimizer constructors and hooks."""

from ..checkpoints import (
    LoadReport,
    StrictLoading,
    UnsafeCheckpointError,
    load_weights,
    read_dataset_meta,
    read_state_dict,
)
from .layer_decay import LayerDecayOptimWrapperConstructor
from .no_decay import NoDecayOptimWrapperConstructor
from .redraw_features import RedrawFeaturesHook, copy_features
from .watch_attention import WatchAttentionHook
from .whole_files import AtomicCheckpointHook, WholeFileBackend

__all__ = [
    'AtomicCheckpointHook',
    'LayerDecayOptimWrapperConstructor',
    'LoadReport',
    'NoDecayOptimWrapperConstructor',
    'RedrawFeaturesHook',
    'StrictLoading',
    'UnsafeCheckpointError',
    'WatchAttentionHook',
    'WholeFileBackend',
    'copy_features',
    'load_weights',
    'read_dataset_meta',
    'read_state_dict',
]
