"""Backbones: hosts as data, and the backbone families that use them."""

from .base import PyramidBackbone
from .cswin import CSWin
from .efficientvit import EfficientViT, EfficientViTLarge
from .families import (
    PVT,
    SOFT,
    LaplacianFormer,
    PolaFormerDeiT,
    PolaFormerPVT,
    PolaFormerPVTv2,
    PolaFormerSwin,
    PVTv2,
    SOFTPlusPlus,
    Swin,
    ViT,
)
from .mlla import MLLA
from .mobilevitv2 import MobileViTv2
from .ravlt import RAVLT, MAViT
from .stage import Stage
from .swiftformer import SwiftFormer
from .xcit import XCiTBackbone

__all__ = [
    'CSWin',
    'MLLA',
    'PVT',
    'RAVLT',
    'SOFT',
    'EfficientViT',
    'EfficientViTLarge',
    'LaplacianFormer',
    'MAViT',
    'MobileViTv2',
    'PVTv2',
    'PolaFormerDeiT',
    'PolaFormerPVT',
    'PolaFormerPVTv2',
    'PolaFormerSwin',
    'PyramidBackbone',
    'SOFTPlusPlus',
    'Stage',
    'SwiftFormer',
    'Swin',
    'ViT',
    'XCiTBackbone',
]
