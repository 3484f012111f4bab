"""Token mixers, one mechanism per file. A new one is a file here and its import line."""

from .base import BaseAttention, QKVAttention
from .laplacian import LaplacianAttention
from .softmax import SoftmaxAttention

__all__ = ['BaseAttention', 'LaplacianAttention', 'QKVAttention', 'SoftmaxAttention']
