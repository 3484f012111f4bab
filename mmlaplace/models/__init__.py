"""Attentions, layers and backbones; importing them registers them."""

from .attentions import BaseAttention, LaplacianAttention, QKVAttention, SoftmaxAttention
from .backbones import LaplacianFormer, PyramidBackbone

__all__ = [
    'BaseAttention',
    'LaplacianAttention',
    'LaplacianFormer',
    'PyramidBackbone',
    'QKVAttention',
    'SoftmaxAttention',
]
