"""Token mixers, one mechanism per file. A new one is a file here and its import line."""

from .base import BaseAttention, QKVAttention
from .laplacian import LaplacianAttention
from .pola import PolaAttention
from .soft import SOFTAttention
from .softmax import SoftmaxAttention
from .window import WindowAttention

__all__ = [
    'BaseAttention',
    'LaplacianAttention',
    'PolaAttention',
    'QKVAttention',
    'SOFTAttention',
    'SoftmaxAttention',
    'WindowAttention',
]
