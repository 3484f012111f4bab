"""Backbones, one family per file."""

from .base import PyramidBackbone
from .laplacianformer import LaplacianFormer
from .polaformer import PolaFormerDeiT, PolaFormerPVT, PolaFormerPVTv2, PolaFormerSwin
from .soft import SOFT

__all__ = [
    'SOFT',
    'LaplacianFormer',
    'PolaFormerDeiT',
    'PolaFormerPVT',
    'PolaFormerPVTv2',
    'PolaFormerSwin',
    'PyramidBackbone',
]
