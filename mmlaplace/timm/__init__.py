"""The backbones as models of timm: ``import mmlaplace.timm`` registers them there.

``timm.create_model('ravlt_tiny', pretrained=True)`` then works, and so does every other size.
``import mmlaplace`` alone neither needs timm nor imports it.

Each arch and each published classifier is a model for which the :class:`Family` has settings of
timm. Families that timm has itself have none: PVTv2, Swin, DeiT, XCiT, EfficientViT, SwiftFormer
and MobileViTv2. ``pretrained=True`` loads the file of the authors, from the address in
``pretrained_cfg``.
"""

import inspect
import sys
import warnings
from typing import Any, Dict, Iterator, NamedTuple, Tuple

import torch.nn as nn

from ..dependencies import missing_package

try:
    from timm.models import (
        build_model_with_cfg,
        generate_default_cfgs,
        is_model,
        model_entrypoint,
        register_model,
        resolve_pretrained_cfg,
    )

    from .classifier import TimmClassifier
except ImportError as error:
    raise missing_package('timm 1.0.31 or later', 'timm', error) from error

from mmengine.registry import MODELS as REGISTRY
from torch import Tensor

from ..checkpoints import PUBLISHED
from ..checkpoints.own_names import in_own_names
from ..checkpoints.released import NO_LICENCE, address_of, released_place
from ..models import FAMILIES, Family


class Model(NamedTuple):
    """A model of timm.

    Attributes:
        backbone: Class of the backbone.
        options: Arguments of :class:`TimmClassifier`: those of the backbone, and the neck.
        settings: What timm is to know of it, as :class:`Family` defines it.
    """

    backbone: Any
    options: Dict[str, Any]
    settings: Dict[str, Any]


def _settings(family: Family, name: str) -> Dict[str, Any]:
    """The settings of a model, of all starts of its name."""
    settings: Dict[str, Any] = {}
    for start in sorted(family.timm, key=len):  # longer starts change the shorter ones
        if name.startswith(start):
            settings.update(family.timm[start])
    if settings and family.licence not in ('', NO_LICENCE):
        settings['license'] = family.licence.lower()
    return settings


def _models() -> Iterator[Tuple[str, Model]]:
    """All models by name. Of a published arch, the published classifier comes last, and counts."""
    for family in FAMILIES.values():
        for backbone, start in family.backbones.items():
            for arch in backbone.arch_zoo:
                name = f'{start}_{arch}'.replace('-', '_')
                if settings := _settings(family, name):
                    yield name, Model(backbone, dict(arch=arch), settings)
        for name, published in family.published.items():
            if settings := _settings(family, name):
                options = dict(published.backbone)
                backbone = REGISTRY.get(options.pop('type'))
                neck = dict(neck=published.neck) if published.neck else {}
                yield name, Model(backbone, {**options, **neck}, settings)


def _stages(model: Model) -> list:
    """The stages of the model's host."""
    known = inspect.signature(model.backbone.host).parameters
    return model.backbone.host(**{k: v for k, v in model.options.items() if k in known})


def _default_cfg(name: str, model: Model) -> Dict[str, Any]:
    """The default config of a model in timm, known before the model is built."""
    size = side = model.options.get('img_size', 224)
    stages = _stages(model)
    settings = dict(model.settings)
    for stage in stages:
        side = -(-side // stage.stride)
    first_conv = settings.pop('first_conv', 'projection')
    weights = PUBLISHED[name].weights if name in PUBLISHED else ''
    return {
        'crop_pct': 0.875,
        'crop_mode': 'center',
        'url': weights or None,
        'input_size': (3, size, size),
        **settings,
        'pool_size': None if stages[-1].num_prefix_tokens else (side, side),
        'first_conv': f'backbone.stages.0.patch_embed.{first_conv}',
        'classifier': 'head.fc',
    }


def checkpoint_filter_fn(state_dict: Dict[str, Tensor], model: nn.Module) -> Dict[str, Tensor]:
    """The tensors of a file by the names in the model, converted if they are the authors'."""
    return in_own_names(state_dict, model.state_dict(), 'the file')


def _create(name: str, model: Model, pretrained: bool, **kwargs: Any) -> nn.Module:
    """Build a model as ``timm.create_model`` asks for it."""
    source = resolve_pretrained_cfg(
        name, kwargs.get('pretrained_cfg'), kwargs.get('pretrained_cfg_overlay')
    )
    elsewhere = source.file or source.state_dict or source.hf_hub_id
    if pretrained and not elsewhere and source.url == default_cfgs[name].default.url:
        # The file has the authors' names, and what is beside the weights, timm does not read.
        overlay = kwargs.get('pretrained_cfg_overlay') or {}
        try:  # before a model without weights is built
            released_place(address_of(name))
        except ValueError as error:
            raise ValueError(
                f"{error}. timm takes a path by pretrained_cfg_overlay=dict(file='PATH')"
            ) from error
        # custom_load calls load_pretrained.
        released = dict(file=address_of(name), custom_load=True)
        kwargs['pretrained_cfg_overlay'] = {**overlay, **released}
    stages = len(_stages(model))
    features = dict(feature_cls='getter', out_indices=tuple(range(stages)) if stages > 1 else 3)
    return build_model_with_cfg(
        TimmClassifier,
        name,
        pretrained,
        feature_cfg=features,
        pretrained_filter_fn=checkpoint_filter_fn,
        backbone=model.backbone,
        **kwargs,
    )


def _register(name: str, model: Model) -> None:
    """Add a model to timm, unless timm has one of this name."""

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _create(name, model, pretrained, **{**model.options, **kwargs})

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f'{model.backbone.__name__} as {name}, a :class:`TimmClassifier`.'
    if is_model(name) and model_entrypoint(name).__module__ != __name__:
        warnings.warn(f'timm has its own {name}, which mmlaplace does not replace', stacklevel=2)
        return
    setattr(sys.modules[__name__], name, register_model(create))


__all__ = ['MODELS', 'TimmClassifier']
MODELS = dict(_models())
default_cfgs = generate_default_cfgs(  # where timm's register_model looks
    {name: _default_cfg(name, model) for name, model in MODELS.items()}
)
for _name, _model in MODELS.items():
    _register(_name, _model)
