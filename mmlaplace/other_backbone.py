"""For configs: a detector or segmentor on another backbone, behind a pyramid where it needs one."""

import copy
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence

from mmengine.config import Config
from mmengine.registry import DefaultScope

from .config_files import (
    PYRAMIDS,
    SIDE,
    is_plain,
    maps_without_memory,
    plain_pyramid,
    without_memory,
)
from .model_zoo import import_toolbox
from .models import PyramidBackbone

# Of the settings of a backbone here, those for training, which another one takes over.
FOR_TRAINING = ('drop_path_rate', 'frozen_stages', 'with_cp')
OF_MAPS = ('out_indices', 'out_type')  # of a backbone, which the head decides
OF_BACKBONE = ('type', 'patch_size', 'in_channels')  # of a pyramid of one map
# Of configs/heads, in the place of the SGD for a ResNet.
ADAMW: Dict[str, Any] = dict(type='AdamW', lr=1e-4, weight_decay=0.05)


class Maps(NamedTuple):
    """The maps that a backbone returns, or a neck.

    Attributes:
        channels: The channels of each.
        strides: The strides, in pixels of the image. That of patches of 14 pixels is 14.
    """

    channels: List[int]
    strides: List[int]


def maps_of(backbone: Mapping[str, Any], necks: Sequence[Mapping[str, Any]] = ()) -> Maps:
    """The maps of a backbone of any project, behind some necks. Nothing is computed."""
    maps = maps_without_memory(backbone, necks)[-1]
    return Maps([each.shape[1] for each in maps], [round(SIDE / each.shape[-1]) for each in maps])


def on_backbone(
    cfg: Config,
    backbone: Mapping[str, Any],
    normalization: Optional[Mapping[str, Any]] = None,
) -> Config:
    """The config of a detector or segmentor, with a backbone of ours in the place of its own.

    A pyramid gets the ``out_indices`` of the strides that the head reads. Behind a plain ViT,
    :func:`~mmlaplace.config_files.plain_pyramid` makes them: in the place of an ``FPN``, and
    otherwise in front of the neck or the heads. Then the channels of the next part follow. Images
    are padded to whole cells of the largest stride.

    An optimizer of SGD becomes AdamW with a rate of 1e-4, as in ``configs/heads``. ``load_from`` is
    left out. Of the settings of the former backbone, if it is ours, those for training stay:
    ``frozen_stages``, ``drop_path_rate`` and ``with_cp``.

    Args:
        cfg: The config, of mmdet or mmseg. It does not change.
        backbone: The dict of the backbone, such as
            :func:`~mmlaplace.config_files.backbone_config` gives it.
        normalization: ``mean``, ``std`` and ``bgr_to_rgb`` for its images. Default: None, those of
            the config.

    Raises:
        ValueError: If the config is of another toolbox or has no backbone, if the strides that its
            head reads are not known, if no pyramid of the backbone has them, and if no part has the
            channels to change.
        ImportError: If the toolbox is not installed.

    Examples:
        >>> from contextlib import redirect_stdout
        >>> from mmengine.config import Config
        >>> from mmlaplace.config_files import config_file
        >>> from mmlaplace.other_backbone import on_backbone
        >>> cfg = Config.fromfile(config_file('mmdet::retinanet/retinanet_r50_fpn_1x_coco.py'))
        >>> with redirect_stdout(None):  # mmdet prints at its import
        ...     made = on_backbone(cfg, dict(type='DINOv3', arch='small'))
        >>> made.model.neck.strides
        (8, 16, 32)
    """
    if cfg.get('default_scope') not in ('mmdet', 'mmseg') or 'backbone' not in cfg.get('model', {}):
        raise ValueError(
            f'a head for another backbone is in the config of a whole detector or segmentor, got '
            f'one of default_scope={cfg.get("default_scope")!r} with the model '
            f'{cfg.get("model", {}).get("type")!r}; take one of configs/heads'
        )
    import_toolbox(cfg.default_scope)
    values = cfg.to_dict()
    former = values['model']['backbone']
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        values['model'] = _model_on(values['model'], dict(backbone))
    # A config that computes its neck keeps the dict of the backbone under a name of its own.
    new = Config({name: value for name, value in values.items() if value != former})
    preprocessor = new.model.get('data_preprocessor')
    if normalization and preprocessor is not None:
        preprocessor.update(normalization)
        preprocessor.pop('rgb_to_bgr', None)
    imports = new.get('custom_imports') or dict(imports=[])
    new.custom_imports = dict(imports, imports=[*{*imports['imports'], 'mmlaplace'}])
    new.load_from = None
    if new.get('optim_wrapper', {}).get('optimizer', {}).get('type') == 'SGD':
        _train_by_adamw(new)
    return new


def _train_by_adamw(cfg: Config) -> None:
    kept = {key: v for key, v in cfg.optim_wrapper.items() if key in ('type', 'clip_grad')}
    cfg.optim_wrapper = dict(
        kept, optimizer=dict(ADAMW), constructor='NoDecayOptimWrapperConstructor'
    )
    for scheduler in cfg.get('param_scheduler') or ():
        if 'eta_min' in scheduler:  # of SGD's rate; it may be as large as AdamW's
            scheduler['eta_min'] = 0.0


def _model_on(model: Dict[str, Any], backbone: Dict[str, Any]) -> Dict[str, Any]:
    """The dict of a model on another backbone."""
    former = model['backbone']
    backbone = {key: value for key, value in backbone.items() if key not in OF_MAPS}
    necks = _as_list(model.get('neck'))
    old, new = without_memory(former), without_memory(backbone)
    if not isinstance(new, PyramidBackbone):
        raise ValueError(
            f'the backbone for a head must be one of mmlaplace, got {backbone.get("type")!r}; '
            'python -m mmlaplace list --task backbone shows them'
        )
    if isinstance(old, PyramidBackbone):
        kept = {name: former[name] for name in FOR_TRAINING if name in former}
        backbone = {**kept, **backbone}
    # Parts before these numbers give the maps whose channels the next part reads.
    before, after = 0, 0
    others = list(necks)
    try:
        wanted = maps_of(former).strides
    except Exception as error:  # any of another project's layers
        raise ValueError(
            f'the strides that the head reads are not known, as {former.get("type")} does not run '
            f'without weights ({type(error).__name__}: {error}); take a head of configs/heads'
        ) from error
    found = maps_of(backbone).strides
    pyramid = bool(necks) and necks[0].get('type') in PYRAMIDS
    if not is_plain(new):
        if pyramid or sorted({*wanted}) != wanted or not {*wanted} <= {*found}:
            raise ValueError(
                f'the head reads {"a pyramid of one map" if pyramid else "maps"} at strides '
                f'{_row(wanted)}, and {backbone.get("type")} has maps at strides {_row(found)}; '
                'take a head whose strides it has, such as one of configs/heads'
            )
        backbone['out_indices'] = tuple(found.index(stride) for stride in wanted)
    elif pyramid:
        options = {k: v for k, v in necks[0].items() if k not in OF_BACKBONE}
        others[0] = plain_pyramid(backbone, necks[0]['type'], **options)
        before = after = 1
    elif not is_plain(old) and wanted != found:
        before = int(bool(necks) and _is_fpn(necks[0]))
        others[:before] = [_pyramid_for(wanted, necks, backbone)]
        after = 1
        _pad_images(model.get('data_preprocessor'), max(wanted))
    was, now = maps_of(former, necks[:before]), maps_of(backbone, others[:after])
    made = copy.deepcopy(model)
    made.update(backbone=backbone)
    if others:
        made['neck'] = others if len(others) > 1 else others[0]
    if 'pretrained' in made:  # of the former backbone
        made['pretrained'] = None
    rest = _as_list(made.get('neck'))[after:]
    heads = [part for name, part in made.items() if name not in ('backbone', 'neck')]
    changed = [_set_in_channels(part, was.channels, now.channels) for part in rest[:1] or heads]
    stage = (model.get('roi_head') or {}).get('shared_head')  # of the former backbone
    if was.channels != now.channels and (stage or not any(changed)):
        reason = 'has a shared_head, which is a stage of it' if stage else 'takes no other number'
        raise ValueError(
            f'the head reads {was.channels} channels of {former.get("type")} and {reason}, so it '
            f'cannot read the {now.channels} of {backbone.get("type")}; take a head of '
            'configs/heads'
        )
    try:
        maps_of(backbone, _as_list(made.get('neck')))
    except Exception as error:  # any of another project's layers
        raise ValueError(
            f'the neck {rest[0].get("type") if rest else others} cannot take the {now.channels} '
            f'channels of {backbone.get("type")} ({type(error).__name__}: {error}); take a head of '
            'configs/heads'
        ) from error
    return made


def _row(numbers: Sequence[int]) -> str:
    return ', '.join(map(str, numbers))


def _as_list(necks: Any) -> List[Dict[str, Any]]:
    return list(necks) if isinstance(necks, (list, tuple)) else [necks] if necks else []


def _is_fpn(neck: Mapping[str, Any]) -> bool:
    return str(neck.get('type')).rpartition('.')[2] == 'FPN'


def _pyramid_for(
    strides: Sequence[int], necks: Sequence[Mapping[str, Any]], backbone: Mapping[str, Any]
) -> Dict[str, Any]:
    """The pyramid with these strides: as FPN in its place, and resized maps before other necks."""
    options: Dict[str, Any] = dict(strides=tuple(strides))
    if necks and _is_fpn(necks[0]):
        last = necks[0].get('end_level', -1)
        levels = slice(necks[0].get('start_level', 0), None if last == -1 else last + 1)
        options = dict(strides=tuple(strides[levels]), out_channels=necks[0]['out_channels'])
        options['num_outs'] = necks[0]['num_outs']
    kind = 'ResizedPyramid' if necks and not _is_fpn(necks[0]) else 'SimpleFeaturePyramid'
    neck = plain_pyramid(backbone, kind, **options)
    try:
        maps_of(backbone, [neck])
    except ValueError as error:
        raise ValueError(
            f'the head reads maps at strides {_row(strides)}, which no pyramid makes of the map of '
            f'{backbone.get("type")} ({error}); take a head of configs/heads/plain'
        ) from error
    return neck


def _pad_images(preprocessor: Optional[Dict[str, Any]], stride: int) -> None:
    """Let images end with a cell of this stride, or maps would reach over them."""
    if preprocessor is None:
        return
    if 'Seg' in str(preprocessor.get('type')):  # which pads to a fixed size in training
        preprocessor.setdefault('test_cfg', dict(size_divisor=stride))
    else:
        given = preprocessor.get('pad_size_divisor', 1)
        preprocessor['pad_size_divisor'] = given if given % stride == 0 else stride


def _set_in_channels(part: Any, was: Sequence[int], now: Sequence[int]) -> bool:
    """Set ``in_channels`` of a neck or head that read the former maps. Whether there are any."""
    if isinstance(part, (list, tuple)):
        return any([_set_in_channels(each, was, now) for each in part])
    if not isinstance(part, dict):
        return False
    index, given = part.get('in_index'), part.get('in_channels')
    several = isinstance(given, (list, tuple))
    read = [*given] if isinstance(given, (list, tuple)) else [given]
    if not isinstance(index, (list, tuple)):
        index = range(len(was)) if several else [index if isinstance(index, int) else -1]
    if 'type' in part and read == [was[i] for i in index]:
        channels = [now[i] for i in index]
        part['in_channels'] = channels if several else channels[0]
        if part.get('num_convs') == 0:  # of an FCNHead, which then has no width of its own
            part['channels'] = part['in_channels']
        return True
    return any([_set_in_channels(each, was, now) for each in part.values()])
