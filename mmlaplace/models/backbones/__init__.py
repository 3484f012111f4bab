"""Backbones, one paper per file with its :class:`Family`. A line below exports each class."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Dict

from ...checkpoints.dense import DENSE
from ...checkpoints.published import PUBLISHED
from ..pyramid import Family
from .cswin import CSWin
from .deit import ViT
from .dinov2 import DINOv2
from .efficientvit import EfficientViT, EfficientViTLarge
from .laplacianformer import LaplacianFormer
from .mavit import MAViT
from .mlla import MLLA
from .mobilevitv2 import MobileViTv2
from .polaformer import PolaFormerDeiT, PolaFormerPVT, PolaFormerPVTv2, PolaFormerSwin
from .polaformerpp import PolaFormerPP
from .pvt import PVT, PVTv2
from .ravlt import RAVLT
from .soft import SOFT, SOFTPlusPlus
from .swiftformer import SwiftFormer
from .swin import Swin, SwinV2
from .vit3 import HViT3
from .xcit import XCiTBackbone

__all__ = [
    'CSWin',
    'DINOv2',
    'FAMILIES',
    'MLLA',
    'PVT',
    'RAVLT',
    'SOFT',
    'EfficientViT',
    'EfficientViTLarge',
    'HViT3',
    'LaplacianFormer',
    'MAViT',
    'MobileViTv2',
    'PVTv2',
    'PolaFormerDeiT',
    'PolaFormerPP',
    'PolaFormerPVT',
    'PolaFormerPVTv2',
    'PolaFormerSwin',
    'SOFTPlusPlus',
    'SwiftFormer',
    'Swin',
    'SwinV2',
    'ViT',
    'XCiTBackbone',
]

FAMILIES: Dict[str, Family] = {
    module.name: import_module(f'.{module.name}', __name__).FAMILY
    for module in iter_modules(__path__)
}
for family in FAMILIES.values():
    PUBLISHED.update(family.published)
    DENSE.update(family.dense)
