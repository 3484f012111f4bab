"""Attentions, layers and backbones; importing them registers them."""

from .attentions import (
    BaseAttention,
    LaplacianAttention,
    PolaAttention,
    QKVAttention,
    SOFTAttention,
    SoftmaxAttention,
    WindowAttention,
)
from .backbones import (
    SOFT,
    LaplacianFormer,
    PolaFormerDeiT,
    PolaFormerPVT,
    PolaFormerPVTv2,
    PolaFormerSwin,
    PyramidBackbone,
)

__all__ = [
    'SOFT',
    'BaseAttention',
    'LaplacianAttention',
    'LaplacianFormer',
    'PolaAttention',
    'PolaFormerDeiT',
    'PolaFormerPVT',
    'PolaFormerPVTv2',
    'PolaFormerSwin',
    'PyramidBackbone',
    'QKVAttention',
    'SOFTAttention',
    'SoftmaxAttention',
    'WindowAttention',
]
