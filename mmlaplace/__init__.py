"""Linear-attention vision backbones for mmpretrain, mmdet and mmseg.

Importing this package registers its models once, in mmengine's root registry. All three toolboxes
find them there: put ``custom_imports = dict(imports=['mmlaplace'])`` in a config, and
``type='LaplacianFormer'`` works.
"""

from .dependencies import require_mmengine, warn_untested_versions
from .version import __version__

require_mmengine()
warn_untested_versions()

# After the check that names a missing mmengine.
from . import checkpoints, engine, models, ops, spawned, toolbox_hubs  # noqa: E402
from .config_files import (  # noqa: E402
    backbone_config,
    channels,
    find_bases,
    normalization,
    plain_pyramid,
)
from .lab import lra  # noqa: E402, F401
from .model_zoo import create_backbone, get_model, list_models  # noqa: E402
from .own_models import model_config  # noqa: E402

find_bases()
toolbox_hubs.register_on_import()
spawned.start_with_mmlaplace()

__all__ = [
    '__version__',
    'backbone_config',
    'channels',
    'checkpoints',
    'create_backbone',
    'engine',
    'get_model',
    'list_models',
    'model_config',
    'models',
    'normalization',
    'ops',
    'plain_pyramid',
]
