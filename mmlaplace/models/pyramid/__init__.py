"""Pyramids: what the backbones of all papers share."""

from .base import PyramidBackbone
from .family import Family
from .plain import PlainBackbone
from .sizes import MICRO, STRIDES, arch
from .stage import Stage

__all__ = ['MICRO', 'STRIDES', 'Family', 'PlainBackbone', 'PyramidBackbone', 'Stage', 'arch']
