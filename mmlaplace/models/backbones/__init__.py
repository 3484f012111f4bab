"""Backbones, one family per file."""

from .base import PyramidBackbone
from .laplacianformer import LaplacianFormer

__all__ = ['LaplacianFormer', 'PyramidBackbone']
