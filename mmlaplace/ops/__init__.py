"""The ops that the attentions call. Each is a public function with a PyTorch reference."""

from .backend import current_backend, exporting, use_backend
from .cholesky_inverse import cholesky_inverse
from .gaussian_kernel import gaussian_kernel
from .inverse_residual import inverse_residual
from .laplacian_kernel import laplacian_kernel
from .linear_attention import linear_attention
from .newton_schulz_inverse import newton_schulz_inverse
from .normalized_nystrom_attention import normalized_nystrom_attention
from .nystrom_attention import nystrom_attention
from .pooled_landmarks import pooled_landmarks

__all__ = [
    'cholesky_inverse',
    'current_backend',
    'exporting',
    'gaussian_kernel',
    'inverse_residual',
    'laplacian_kernel',
    'linear_attention',
    'newton_schulz_inverse',
    'normalized_nystrom_attention',
    'nystrom_attention',
    'pooled_landmarks',
    'use_backend',
]
