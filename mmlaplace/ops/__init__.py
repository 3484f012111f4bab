"""The ops behind the attentions, each a public function with its PyTorch reference beside it."""

from .gaussian_kernel import gaussian_kernel
from .laplacian_kernel import laplacian_kernel
from .spd_inverse import cholesky_inverse, inverse_residual, newton_schulz_inverse

__all__ = [
    'cholesky_inverse',
    'gaussian_kernel',
    'inverse_residual',
    'laplacian_kernel',
    'newton_schulz_inverse',
]
