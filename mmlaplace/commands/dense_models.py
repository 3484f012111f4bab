"""Convert the authors' detectors and segmentors, and compare them with our configs."""

from functools import cache
from pathlib import Path
from typing import Any, List, Mapping, Optional, Tuple

import torch
from torch import Tensor, nn

from ..checkpoints import Converted
from ..checkpoints.dense import (
    CLASSES,
    DENSE,
    convert,
    fitting_dense,
    kind_of,
    other_kind,
    table_of,
    unknown_backbone,
)
from ..checkpoints.names import misfit
from ..checkpoints.published import PREFIX, are_own
from ..model_zoo import build_model, get_config, read_models


def config_of(name: str) -> str:
    """The config of a released detector or segmentor, by name."""
    return DENSE[name].config or name


def config_path(config: str) -> Path:
    """The file of a config."""
    return next(m.config for m in read_models() if m.name == config and m.config is not None)


@cache
def meta_model(config: str) -> nn.Module:
    """The model of a config, without memory for its weights."""
    cfg = get_config(config)
    cfg.model.backbone.init_cfg = None
    with torch.device('meta'):
        return build_model(cfg)


def convert_dense(
    tensors: Mapping[str, Tensor], model: Optional[str], image_size: Tuple[int, int] = (1, 1)
) -> Tuple[Converted, List[str]]:
    """As :func:`mmlaplace.commands.converters.convert`, of a detector or segmentor.

    Norms of maps that the config does not return are dropped.

    Raises:
        ValueError, ImportError: As there.
    """
    table = table_of(tensors)
    if table is None and are_own(tensors):
        raise ValueError(
            'its names are those of mmlaplace already, so there is nothing to convert; load it as '
            'it is'
        )
    if not kind_of(tensors):
        raise ValueError(
            f'it has no head of a detector or segmentor, and {model} is one; if it is a '
            "classifier, give it to the backbone's init_cfg"
        )
    if table is None:
        raise ValueError(unknown_backbone(tensors))
    converted = convert(tensors, table, image_size)
    fit = fitting_dense(converted.weights)
    # Of those with these heads, the ones for as many classes.
    fit = [n for n in fit if not _unfit(meta_model(config_of(n)), converted.weights)[0]] or fit
    if not (fit or model):
        raise ValueError(
            f'it is a {kind_of(tensors)} of a size or with heads that no config of ours has; '
            'load_weights converts it for a model that you build, or for its backbone alone'
        )
    own = meta_model(config_of(model or fit[0]))
    if reason := other_kind(converted.weights, own.state_dict()):
        raise ValueError(f'it does not fit {model}: {reason}')
    reason, unused = _unfit(own, converted.weights)
    if reason:
        other = f'; it fits {" or ".join(fit)}' if fit and model not in (None, *fit) else ''
        raise ValueError(f'it does not fit {model or fit[0]}: {reason}{other}')
    report = [(k, 'dropped' if own in unused else own, s) for k, own, s in converted.report]
    weights = {name: value for name, value in converted.weights.items() if name not in unused}
    return Converted(weights, report), [model] if model else fit


def _unfit(model: nn.Module, weights: Mapping[str, Tensor]) -> Tuple[str, List[str]]:
    """Why weights do not fit a model, or nothing; and those that it does not use."""
    own = {key: value.shape for key, value in model.state_dict().items()}
    inside = [key[len(PREFIX) :] for key in weights if key.startswith(PREFIX)]
    backbone: Any = model.backbone
    unused = {PREFIX + key for key in backbone.other_outputs(inside)} - own.keys()
    missing = [key for key in own if key not in weights]
    unexpected = [key for key in weights if key not in own and key not in unused]
    other = [key for key in own if key in weights and weights[key].shape != own[key]]
    if not (missing or unexpected or other):
        return '', [key for key in weights if key in unused]
    given = {key: weights[key].shape for key in other}
    reason = misfit(missing, unexpected, other, given, own)
    heads = [key for key in CLASSES if key in other]
    if heads and not missing and not unexpected and not any(k.startswith(PREFIX) for k in other):
        reason = (
            f'its {heads[0]} has {len(weights[heads[0]])} rows for its classes, and that of the '
            f'config {own[heads[0]][0]}; build a model with the num_classes of the file, and '
            'load_weights converts it on the way'
        )
    return reason, []
