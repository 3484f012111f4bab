"""The backbones as models of timm: ``import mmlaplace.timm`` registers them there.

``timm.create_model('laplacianformer_tiny')`` then works, and so does every other size.
``import mmlaplace`` alone neither needs timm nor imports it.

Each arch of a backbone for which the :class:`Family` has settings of timm is a model. The plain
hosts PVT, PVTv2, Swin and ViT have none, as timm has models of these names.
"""

import sys
import warnings
from typing import Any, Dict

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

from ..models import FAMILIES


def _default_cfg(backbone: Any, settings: Dict[str, Any]) -> Dict[str, Any]:
    """The default config of a model in timm, known before the model is built."""
    stages = backbone.host()
    side = 224
    for stage in stages:
        side = -(-side // stage.stride)
    first_conv = settings.get('first_conv', 'projection')
    return {
        'crop_pct': 0.875,
        'crop_mode': 'center',
        **settings,
        'pool_size': None if stages[-1].cls_token else (side, side),
        'first_conv': f'backbone.stages.0.patch_embed.{first_conv}',
        'classifier': 'head.fc',
    }


def _create(name: str, backbone: Any, pretrained: bool, **kwargs: Any) -> nn.Module:
    """Build a model as ``timm.create_model`` asks for it."""
    source = resolve_pretrained_cfg(
        name, kwargs.get('pretrained_cfg'), kwargs.get('pretrained_cfg_overlay')
    )
    if pretrained and not (source.has_weights or source.state_dict):
        raise ValueError(
            f'pretrained=True: there are no published weights of {name!r} yet. Set '
            'pretrained=False, and load a checkpoint of your training by mmlaplace.engine.'
            "load_weights(model, 'work_dirs/…/epoch_300.pth'). A file of weights alone can be "
            "given here, pretrained_cfg_overlay=dict(file='weights.pth')"
        )
    stages = len(backbone.host())
    features = dict(feature_cls='getter', out_indices=tuple(range(stages)) if stages > 1 else 3)
    return build_model_with_cfg(
        TimmClassifier, name, pretrained, feature_cfg=features, backbone=backbone, **kwargs
    )


def _register(name: str, backbone: type, arch: str) -> None:
    """Add a model to timm, unless timm has one of this name."""

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        return _create(name, backbone, pretrained, **{'arch': arch, **kwargs})

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f'{backbone.__name__} of the arch {arch!r}, a :class:`TimmClassifier`.'
    if is_model(name) and model_entrypoint(name).__module__ != __name__:
        warnings.warn(f'timm has its own {name}, which mmlaplace does not replace', stacklevel=2)
        return
    setattr(sys.modules[__name__], name, register_model(create))


__all__ = ['MODELS', 'TimmClassifier']
# By the name of the model: its class, its arch and its family's settings.
MODELS = {
    f'{start}_{arch}'.replace('-', '_'): (backbone, arch, family.timm[start])
    for family in FAMILIES.values()
    for backbone, start in family.backbones.items()
    if start in family.timm
    for arch in backbone.arch_zoo
}
default_cfgs = generate_default_cfgs(  # where timm's register_model looks
    {name: _default_cfg(backbone, settings) for name, (backbone, _, settings) in MODELS.items()}
)
for _name, (_backbone, _arch, _) in MODELS.items():
    _register(_name, _backbone, _arch)
