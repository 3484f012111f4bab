"""The backbones as models of timm: ``import mmlaplace.timm`` registers them there.

``timm.create_model('laplacianformer_tiny')`` then works, and so does every other size of the
families. ``import mmlaplace`` alone neither needs timm nor imports it.

A family is a row of ``FAMILIES``, and each of its archs is a model. The plain hosts PVT, PVTv2,
Swin and ViT are left out, as timm has models of these names.
"""

import sys
import warnings
from typing import Any, Dict, NamedTuple

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

from ..models.backbones import (
    SOFT,
    LaplacianFormer,
    PolaFormerDeiT,
    PolaFormerPVT,
    PolaFormerPVTv2,
    PolaFormerSwin,
    SOFTPlusPlus,
)


class Family(NamedTuple):
    """Settings of a backbone family for timm.

    Attributes:
        backbone: The class. Each name in its ``arch_zoo`` is a model.
        paper: Number of its paper at arXiv.
        first_conv: The convolution that sees the image, inside of the first patch embedding.
        crop_pct: Share of the resized image's side that the test crop keeps.
        crop_mode: ``'center'`` keeps the image's shape. ``'squash'`` makes it a square.
    """

    backbone: Any
    paper: str
    first_conv: str = 'projection'
    crop_pct: float = 0.875
    crop_mode: str = 'center'


# By what the names of the models begin with, as in model_zoo.PREFIXES. Images are resized for tests
# as in configs/.
FAMILIES = {
    'laplacianformer': Family(LaplacianFormer, '2604.20368'),
    'soft': Family(SOFT, '2110.11945', first_conv='layers.0', crop_pct=0.9),
    'softpp': Family(SOFTPlusPlus, '2207.03341', first_conv='layers.0'),
    'polaformer_pvt': Family(PolaFormerPVT, '2501.15061', crop_mode='squash'),
    'polaformer_pvtv2': Family(PolaFormerPVTv2, '2501.15061', crop_mode='squash'),
    'polaformer_swin': Family(PolaFormerSwin, '2501.15061', crop_mode='squash'),
    'polaformer_deit': Family(PolaFormerDeiT, '2501.15061', crop_mode='squash'),
}


def _default_cfg(family: Family) -> Dict[str, Any]:
    """The default config of a model in timm, known before the model is built."""
    stages = family.backbone.host()
    side = 224
    for stage in stages:
        side = -(-side // stage.stride)
    return dict(
        pool_size=None if stages[-1].cls_token else (side, side),
        crop_pct=family.crop_pct,
        crop_mode=family.crop_mode,
        first_conv=f'backbone.stages.0.patch_embed.{family.first_conv}',
        classifier='head.fc',
        paper_ids=f'arXiv:{family.paper}',
    )


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


__all__ = ['FAMILIES', 'MODELS', 'Family', 'TimmClassifier']
MODELS = {
    f'{prefix}_{arch}'.replace('-', '_'): (family, arch)
    for prefix, family in FAMILIES.items()
    for arch in family.backbone.arch_zoo
}
default_cfgs = generate_default_cfgs(  # where timm's register_model looks
    {name: _default_cfg(family) for name, (family, _) in MODELS.items()}
)
for _name, (_family, _arch) in MODELS.items():
    _register(_name, _family.backbone, _arch)
