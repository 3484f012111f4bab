"""The backbone with softmax to linearize, by the name of released weights or from a config."""

from typing import Any, Dict, NamedTuple, Optional

from mmengine.config import Config

from ..checkpoints.of_timm import is_of_timm
from ..checkpoints.released import released_name
from ..config_files import backbone_config, normalization
from ..model_zoo import OF_CLASSIFIER


class Host(NamedTuple):
    """A backbone, and what goes with it.

    Attributes:
        backbone: Its dict, without weights.
        checkpoint: Where its weights are, or None.
        normalization: ``mean``, ``std`` and ``bgr_to_rgb`` of its images, or None if not known.
    """

    backbone: Dict[str, Any]
    checkpoint: Optional[str]
    normalization: Optional[Dict[str, Any]]


def named_host(name: str) -> Host:
    """The backbone that released weights fit. Nothing is downloaded.

    Args:
        name: ``timm://NAME`` or ``mmlaplace://NAME``.

    Raises:
        ValueError: If there is no such name. The message lists similar ones.
        ImportError: If timm is needed and not installed.

    Examples:
        >>> from mmlaplace.linearizing import named_host
        >>> named_host('mmlaplace://dinov3-small').backbone
        {'type': 'DINOv3', 'arch': 'small', 'img_size': 256}
    """
    backbone = backbone_config(name if is_of_timm(name) else released_name(name))
    return Host(backbone, name, dict(normalization(name), bgr_to_rgb=True))


def host_of(cfg: Config, checkpoint: Optional[str] = None) -> Host:
    """The backbone of a config, such as of a classifier, without its settings for training."""
    backbone = cfg.model.backbone.to_dict()
    for setting in ('init_cfg', *OF_CLASSIFIER):
        backbone.pop(setting, None)
    given = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    normalization = None
    if given.get('mean') is not None:
        rgb = bool(given.get('to_rgb') or given.get('bgr_to_rgb'))
        normalization = dict(mean=[*given['mean']], std=[*given['std']], bgr_to_rgb=rgb)
    return Host(backbone, checkpoint, normalization)
