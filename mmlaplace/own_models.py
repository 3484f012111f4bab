"""For configs: a classifier, detector or segmentor for classes of one's own, as a dict."""

import os
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional, Sequence

from mmengine.config import Config

from .checkpoints.published import IMAGENET
from .checkpoints.released import is_name
from .config_files import backbone_config, channels, normalization
from .model_zoo import files_root, near_names, read_backbones, read_models

LAST_MAP = 3
IMAGENET_RGB = dict(
    num_classes=1000,
    mean=[*IMAGENET.mean],
    std=[*IMAGENET.std],
    to_rgb=True,
)


def model_config(
    name: str,
    num_classes: int,
    backbone: Optional[str] = None,
    weights: Optional[str] = None,
    class_weight: Optional[Sequence[float]] = None,
    **backbone_options: Any,
) -> Dict[str, Any]:
    """The dict of a model for classes of your own, for ``model`` of a config.

    Every head gets the number of classes, and lists with a weight for each class its length. A
    classifier has no mixup and no top-5, which few images and few classes do not suit.

    Args:
        name: For a classifier, a backbone, such as ``'mlla-tiny'``. For a detector or segmentor, a
            file of ``configs/heads`` without ``.py``, such as ``'mask-rcnn_fpn_1x_coco'``. Or a
            model of ``list_models()``, such as ``'mask-rcnn_mlla-tiny_fpn_ms-1x_coco'``.
        num_classes: The number of classes, without a background.
        backbone: One of ``list_models(task='backbone')`` for a head of ``configs/heads``, which
            needs one. Another name has its own. Default: None.
        weights: Path or address of the weights that the backbone starts from, such as
            ``'mmlaplace://mlla-tiny'``. Default: None, random weights. Those of a whole detector
            are the config's ``load_from``.
        class_weight: A weight for each class in the losses of a segmentor. Default: None, 1 each.
        **backbone_options: Options of the backbone to change, such as ``frozen_stages=1``.

    Raises:
        ValueError: If there is no such name, or a backbone is missing or too many.
        ImportError: If the toolbox of a head is not installed.

    Examples:
        >>> from mmlaplace import model_config
        >>> model = model_config('mlla-tiny', num_classes=3, frozen_stages=2)
        >>> model['head']['num_classes'], model['backbone']['frozen_stages']
        (3, 2)
    """
    cfg = _config_of(name, backbone)
    model = cfg.model.to_dict()
    if 'data_preprocessor' in cfg:  # mmpretrain's is beside the model
        model.setdefault('data_preprocessor', cfg.data_preprocessor.to_dict())
    _set_classes(model, num_classes)
    if cfg.default_scope == 'mmpretrain':
        model['train_cfg'] = None
        model['head']['topk'] = (1,)
    if class_weight is not None:
        _set_class_weight(model, num_classes, list(class_weight))
    if weights and is_name(weights):
        model['data_preprocessor'].update(normalization(weights))
    start = dict(type='Pretrained', checkpoint=weights) if weights else None
    model['backbone'].update(init_cfg=start, **backbone_options)
    return model


def heads() -> List[str]:
    """The names of the files of ``configs/heads``, those for plain ViTs as ``'plain/NAME'``."""
    folder = files_root() / 'configs/heads'
    return sorted(
        path.relative_to(folder).with_suffix('').as_posix() for path in folder.rglob('*.py')
    )


def _config_of(name: str, backbone: Optional[str]) -> Config:
    """The config that has the model."""
    if name in heads():
        if not backbone:
            raise ValueError(
                f"{name!r} of configs/heads needs a backbone, such as backbone='mlla-tiny'"
            )
        with _environment(BACKBONE=backbone):
            return Config.fromfile(files_root() / f'configs/heads/{name}.py')
    if backbone:
        raise ValueError(
            f'{name!r} has a backbone of its own, and backbone={backbone!r} is given too; leave it '
            f'out, or take a head, of which similar names are {near_names(name, heads())}'
        )
    configs = {model.name: model.config for model in [*read_models(), *read_backbones()]}
    if name not in configs:
        near = near_names(name, [*configs, *heads()])
        raise ValueError(
            f'there is no model, head or classifier {name!r}; similar names are {near}'
        )
    config = configs[name]
    return _plain_classifier(name) if config is None else Config.fromfile(config)


def _plain_classifier(name: str) -> Config:
    """A classifier of a backbone of which the model zoo has none, such as a small one."""
    base = Config.fromfile(
        files_root() / 'configs/classification/_base_/models/image_classifier.py'
    )
    backbone = backbone_config(name, out_indices=(LAST_MAP,))
    base.model.backbone = backbone
    base.model.head.in_channels = channels(backbone)[-1]
    base.merge_from_dict(dict(default_scope='mmpretrain', data_preprocessor=IMAGENET_RGB))
    return base


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """A context with environment variables, by which configs of heads name their backbone."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _set_classes(part: Any, num_classes: int) -> None:
    """Set the number of classes wherever a part of a model has one, but in an RPN, which has one.

    Of a list of weights for the classes, of which some have one more for the background, the last
    stays what it is.
    """
    if isinstance(part, (list, tuple)):
        for each in part:
            _set_classes(each, num_classes)
    if not isinstance(part, dict):
        return
    for key in ('num_classes', 'num_things_classes'):
        before = part.get(key)
        if not before:  # stuff of a Mask2Former for instances
            continue
        part[key] = num_classes
        for loss in part.values():
            given = loss.get('class_weight') if isinstance(loss, dict) else None
            if isinstance(given, (list, tuple)):
                further = list(given[before:])
                loss['class_weight'] = [given[0]] * num_classes + further
    for key, value in part.items():
        if key != 'rpn_head':
            _set_classes(value, num_classes)


def _set_class_weight(model: Dict[str, Any], num_classes: int, class_weight: List[float]) -> None:
    """Give the losses of a segmentor a weight for each class."""
    if len(class_weight) != num_classes:
        raise ValueError(
            f'class_weight has {len(class_weight)} values for {num_classes} classes; give one for '
            'each'
        )
    losses = [
        model[head]['loss_decode']
        for head in ('decode_head', 'auxiliary_head')
        if 'loss_decode' in (model.get(head) or {})
    ]
    if not losses:
        raise ValueError(
            'class_weight is for the losses of a segmentor (loss_decode), and this model has none; '
            'leave it out'
        )
    for loss in losses:
        loss['class_weight'] = class_weight
