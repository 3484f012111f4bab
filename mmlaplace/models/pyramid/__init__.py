"""Pyramids: what the backbones of all papers share."""

from .base import PyramidBackbone
from .family import Family
from .sizes import MICRO, STRIDES, arch
from .stage import Stage

__all__ = ['MICRO', 'STRIDES', 'Family', 'PyramidBackbone', 'Stage', 'arch']
