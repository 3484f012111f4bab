"""For config files: bases of ours and of a fork, a backbone by its name, and its channels."""

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import MODELS
from torch import Tensor

from .checkpoints.of_timm import image_stats_of_timm, is_of_timm
from .checkpoints.released import image_stats_of, is_released
from .model_zoo import files_root, near_names, options_of, released_weights
from .models import PlainBackbone, PyramidBackbone
from .toolboxes import PACKAGES, image_channels, require_toolbox, toolbox_folder

SCOPE = 'mmlaplace::'
SIDE = 448  # of an image that patches of 14 and of 32 pixels divide
PYRAMIDS = ('SimpleFeaturePyramid', 'ResizedPyramid')
PLAIN_FIX = 'put a pyramid behind it by neck=mmlaplace.plain_pyramid(backbone)'


def backbone_config(name: str, pretrained: bool = False, **options: Any) -> Dict[str, Any]:
    """The dict of a backbone, for ``model.backbone`` of a config of any toolbox.

    Args:
        name: One of ``list_models(task='backbone')``, such as ``'ravlt-tiny'``. The backbone then
            has the maps and the norms of a detector or segmentor. The name of a classifier gives
            the backbone of its config as it is. timm's name of a model, such as
            ``'timm://vit_small_patch16_dinov3'``, gives the backbone that its weights fit.
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


def normalization(name: str) -> Dict[str, Any]:
    """What normalises the images of a backbone's released weights, for ``data_preprocessor``.

    Args:
        name: As for :func:`backbone_config`, or the address of the weights, ``mmlaplace://NAME``.

    Returns:
        ``mean`` and ``std`` of the channels of RGB, of values from 0 to 255. Those of CLIP, EVA-02
        and SigLIP are not ImageNet's.

    Raises:
        ValueError: If there is no such backbone. The message lists similar names.
        ImportError: For ``timm://NAME``, if timm is not installed.

    Examples:
        >>> from mmlaplace import normalization
        >>> normalization('siglip2-base')
        {'mean': [127.5, 127.5, 127.5], 'std': [127.5, 127.5, 127.5]}
    """
    if is_of_timm(name):
        stats = image_stats_of_timm(name)
    else:
        stats = image_stats_of(name if is_released(name) else released_weights(name, True))
    return dict(mean=[*stats.mean], std=[*stats.std])


def channels(backbone: Mapping[str, Any], maps: Optional[int] = None, **options: Any) -> List[int]:
    """The channels of the maps that a backbone returns, for ``in_channels`` of a neck or head.

    The backbone is built without memory for its weights. One of ours knows its channels. Another
    project's runs once, on an image without memory.

    Args:
        backbone: The dict of a backbone, as in ``model.backbone``.
        maps: The number of maps that a head reads. Default: None, any.
        **options: Options of the backbone to add or to change, as a config changes its base.

    Raises:
        ValueError: If the backbone has another number of maps than ``maps``.

    Examples:
        >>> from mmlaplace import channels
        >>> channels(dict(type='RAVLT', arch='tiny', out_indices=(1, 2, 3)))
        [128, 256, 512]
        >>> channels(dict(type='RAVLT', arch='tiny', out_indices=(1, 2, 3)), arch='large')
        [192, 448, 640]
    """
    own = {**backbone, **options}
    module = without_memory(own)
    if isinstance(module, PyramidBackbone):
        found = list(module.out_channels)
    else:
        found = [each.shape[1] for each in _maps(module, own, 128)]
    if maps not in (None, len(found)):
        fix = f'set its out_indices to {maps} stages'
        if isinstance(module, PlainBackbone):
            fix = f'{PLAIN_FIX}, as configs/heads/plain does'
        raise ValueError(
            f'the head reads {maps} maps, and {own.get("type")} has {len(found)}; {fix}'
        )
    return found


def without_memory(layer: Mapping[str, Any]) -> Any:
    """A backbone or neck without weights, in eval mode."""
    own = {k: v for k, v in layer.items() if k not in ('init_cfg', 'pretrained', '_delete_')}
    try:
        with torch.device('meta'):
            module = MODELS.build(own)
    except RuntimeError:  # of layers that read values while they are built
        module = MODELS.build(own).to('meta')
    module.eval()  # which returns nothing in some toolboxes
    return module


@torch.no_grad()
def maps_without_memory(
    backbone: Mapping[str, Any], necks: Sequence[Mapping[str, Any]] = ()
) -> List[List[Tensor]]:
    """The maps of a backbone of any project, and of each neck behind it, on the meta device.

    Args:
        backbone: The dict of the backbone.
        necks: The dicts of the necks. Default: ().

    Returns:
        Those of an image of 448 × 448 pixels.
    """
    module, *others = map(without_memory, [backbone, *necks])
    with torch.device('meta'):
        maps = _maps(module, backbone, SIDE)
        of_parts = [list(maps)]
        for neck in others:
            maps = neck(maps)
            of_parts.append(list(maps))
    return of_parts


@torch.no_grad()
def _maps(module: Any, backbone: Mapping[str, Any], side: int) -> Sequence[Tensor]:
    """The maps of a backbone without memory, as it returns them."""
    with torch.device('meta'):
        if not _says_its_sides(module):
            return module(torch.empty(1, image_channels(backbone), side, side))
        sides = zip(module.out_channels, module.map_sides(side))
        return [torch.empty(1, width, each, each) for width, each in sides]


def _says_its_sides(backbone: Any) -> bool:
    """Whether ``map_sides`` is true, so that no forward is needed, which may take seconds."""
    return (
        isinstance(backbone, PyramidBackbone)
        and type(backbone).forward is PyramidBackbone.forward
        and backbone.out_type == 'featmap'
    )


def is_plain(module: Any) -> bool:
    """Whether a backbone is a plain ViT of ours, whose maps all have the stride of a patch."""
    return (
        isinstance(module, PyramidBackbone)
        and module.num_stages == 1
        and len(set(module.map_sides(SIDE))) == 1
    )


def plain_pyramid(
    backbone: Mapping[str, Any], kind: str = 'SimpleFeaturePyramid', **options: Any
) -> Dict[str, Any]:
    """The dict of a neck that makes a pyramid of the map of a plain ViT, for ``model.neck``.

    Args:
        backbone: The dict of the backbone, whose channels and patches the neck gets.
        kind: ``'SimpleFeaturePyramid'`` (default), ViTDet's, or ``'ResizedPyramid'``, without
            parameters.
        **options: Options of the neck, such as ``strides`` or ``num_outs``.

    Raises:
        ValueError: For another ``kind``, and for a backbone whose maps have several strides.

    Examples:
        >>> from mmlaplace import plain_pyramid
        >>> plain_pyramid(dict(type='DINOv2'), num_outs=5)
        {'type': 'SimpleFeaturePyramid', 'patch_size': 14, 'in_channels': 384, 'num_outs': 5}
    """
    if kind not in PYRAMIDS:
        raise ValueError(f'the neck of a plain ViT must be one of {PYRAMIDS}, got {kind!r}')
    module = without_memory(backbone)
    if not is_plain(module):
        raise ValueError(
            f'{backbone.get("type")} has maps of several strides, or is of another project; a '
            f'{kind} is for a plain ViT, such as ViT, DINOv2, DINOv3 or XCiTBackbone: leave it out'
        )
    neck: Dict[str, Any] = dict(type=kind, patch_size=module.stage_strides[0])
    if kind == 'SimpleFeaturePyramid':
        neck['in_channels'] = module.out_channels[-1]
    return {**neck, **options}


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


def config_file(name: str) -> str:
    """The file of a config by its path, or by a name that a ``_base_`` may have.

    Args:
        name: A path, which is returned as it is, or such as
            ``'mmlaplace::heads/mask-rcnn_fpn_1x_coco.py'`` or
            ``'mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'``.

    Raises:
        ValueError: If the name before ``::`` is none of mmlaplace and the toolboxes.
        FileNotFoundError: If there is no such config.
        ImportError: If the toolbox is not installed.

    Examples:
        >>> from pathlib import Path
        >>> from mmlaplace.config_files import config_file
        >>> Path(config_file('mmlaplace::heads/retinanet_fpn_1x_coco.py')).name
        'retinanet_fpn_1x_coco.py'
    """
    scope, colons, path = name.partition('::')
    if not colons:
        return name
    if scope not in ('mmlaplace', *PACKAGES):
        starts = ', '.join(f'{package}::' for package in ('mmlaplace', *PACKAGES))
        raise ValueError(f'the name of a config begins with one of {starts}, got {name!r}')
    if scope in PACKAGES:
        require_toolbox(scope)
    try:
        file, _ = Config._get_cfg_path(name, '')
    except FileNotFoundError:
        if scope not in PACKAGES:
            raise
        folder = toolbox_folder(scope) / '.mim/configs'
        known = [found.relative_to(folder).as_posix() for found in folder.rglob('*.py')]
        near = [f'{scope}::{found}' for found in near_names(path, known)]
        raise FileNotFoundError(f'there is no config {name}; similar ones are {near}') from None
    return file


def _config_path(name: str) -> str:
    """The file of a config, by its path in ``configs/``."""
    configs = files_root() / 'configs'
    path = configs / name
    if not path.is_file():
        known = [str(found.relative_to(configs)) for found in configs.rglob('*.py')]
        near = [SCOPE + found for found in near_names(name, known)]
        raise FileNotFoundError(f'there is no config {SCOPE}{name}; similar ones are {near}')
    return str(path)
