"""The ops that the attentions call. Each is a public function with a PyTorch reference.

``python .dev_scripts/make_pages.py`` writes the lines below, one for each function that has the
name of its file, and ``Examples:`` in its docstring. Those of ``backend`` are written by hand.
"""

from .backend import current_backend as current_backend
from .backend import exporting as exporting
from .backend import use_backend as use_backend
from .cholesky_inverse import cholesky_inverse as cholesky_inverse
from .gaussian_kernel import gaussian_kernel as gaussian_kernel
from .inverse_residual import inverse_residual as inverse_residual
from .kernel_attention import kernel_attention as kernel_attention
from .laplacian_kernel import laplacian_kernel as laplacian_kernel
from .linear_attention import linear_attention as linear_attention
from .newton_schulz_inverse import newton_schulz_inverse as newton_schulz_inverse
from .normalized_nystrom_attention import (
    normalized_nystrom_attention as normalized_nystrom_attention,
)
from .nystrom_attention import nystrom_attention as nystrom_attention
from .pooled_landmarks import pooled_landmarks as pooled_landmarks

__all__ = [
    'cholesky_inverse',
    'current_backend',
    'exporting',
    'gaussian_kernel',
    'inverse_residual',
    'kernel_attention',
    'laplacian_kernel',
    'linear_attention',
    'newton_schulz_inverse',
    'normalized_nystrom_attention',
    'nystrom_attention',
    'pooled_landmarks',
    'use_backend',
]
