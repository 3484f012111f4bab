"""For config files: bases of ours and of a fork, a backbone by its name, and its channels."""

from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import MODELS

from .model_zoo import files_root, near_names, options_of, released_weights
from .models import PyramidBackbone
from .toolboxes import PACKAGES, image_channels

SCOPE = 'mmlaplace::'


def backbone_config(name: str, pretrained: bool = False, **options: Any) -> Dict[str, Any]:
    """The dict of a backbone, for ``model.backbone`` of a config of any toolbox.

    Args:
        name: One of ``list_models(task='backbone')``, such as ``'ravlt-tiny'``. The backbone then
            has the maps and the norms of a detector or segmentor. The name of a classifier gives
            the backbone of its config as it is.
        pretrained: Whether the backbone starts from the authors' released weights, which the run
            downloads: ``init_cfg=dict(type='Pretrained', checkpoint='mmlaplace://NAME')``. The run
            ends with an error if there are none. Default: False.
        **options: Options of the backbone to add or to change, such as ``out_indices`` or
            ``drop_path_rate``.

    Raises:
        ValueError: If there is no such name. The message lists similar names.

    Examples:
        >>> from mmlaplace import backbone_config
        >>> backbone_config('mlla-tiny', out_indices=(1, 2, 3))
        {'type': 'MLLA', 'arch': 'tiny', 'out_indices': (1, 2, 3)}
    """
    own = Config(options_of(name)).to_dict()
    del own['init_cfg']
    if '_' not in name:
        own.pop('out_norms', None)  # a classifier's, which has a norm of its own after the backbone
    if pretrained:
        own['init_cfg'] = dict(type='Pretrained', checkpoint=released_weights(name, True))
    return {**own, **options}


def channels(backbone: Mapping[str, Any], **options: Any) -> List[int]:
    """The channels of the maps that a backbone returns, for ``in_channels`` of a neck or head.

    The backbone is built without memory for its weights. One of ours knows its channels. Another
    project's runs once, on an image without memory.

    Args:
        backbone: The dict of a backbone, as in ``model.backbone``.
        **options: Options of the backbone to add or to change, as a config changes its base.

    Examples:
        >>> from mmlaplace import channels
        >>> channels(dict(type='RAVLT', arch='tiny', out_indices=(1, 2, 3)))
        [128, 256, 512]
        >>> channels(dict(type='RAVLT', arch='tiny', out_indices=(1, 2, 3)), arch='large')
        [192, 448, 640]
    """
    changed = {**backbone, **options}
    own = {key: value for key, value in changed.items() if key not in ('init_cfg', '_delete_')}
    with torch.device('meta'):
        module = MODELS.build(own)
        if isinstance(module, PyramidBackbone):
            return list(module.out_channels)
        maps = module(torch.empty(1, image_channels(own), 128, 128))
    return [each.shape[1] for each in maps]


def find_bases() -> None:
    """Let configs inherit from ours by ``_base_ = 'mmlaplace::TASK/FAMILY/NAME.py'``.

    mmengine would look for the types of such a base in a toolbox named mmlaplace. Ours name their
    toolbox themselves, by ``default_scope``.

    It also lets ``_base_ = 'mmseg::…'`` find the configs of a fork of mmseg. mmengine asks for the
    distribution ``mmsegmentation``, which a fork is not. By the import name it finds either.
    """
    MODULE2PACKAGE.update({package: package for package in ('mmlaplace', *PACKAGES)})
    of_toolboxes = Config._get_cfg_path

    def find(base: str, filename: str) -> Tuple[str, Optional[str]]:
        if base.startswith(SCOPE):
            return _config_path(base[len(SCOPE) :]), None
        return of_toolboxes(base, filename)

    Config._get_cfg_path = staticmethod(find)


def _config_path(name: str) -> str:
    """The file of a config, by its path in ``configs/``."""
    configs = files_root() / 'configs'
    path = configs / name
    if not path.is_file():
        known = [str(found.relative_to(configs)) for found in configs.rglob('*.py')]
        near = [SCOPE + found for found in near_names(name, known)]
        raise FileNotFoundError(f'there is no config {SCOPE}{name}; similar ones are {near}')
    return str(path)
