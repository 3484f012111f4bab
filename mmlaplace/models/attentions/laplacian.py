from typing import Optional, Set, Tuple

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops import (
    cholesky_inverse,
    gaussian_kernel,
    laplacian_kernel,
    newton_schulz_inverse,
)
from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import LandmarkPool
from .base import QKVAttention

# The paper's optimum of 0.5/1/2/4/8 for the Laplacian; SOFT's bandwidth d^(1/4) for the Gaussian.
KERNELS = {
    'laplacian': (laplacian_kernel, lambda head_dims: 4.0),
    'gaussian': (gaussian_kernel, lambda head_dims: head_dims**0.25),
}
SOLVERS = ('auto', 'newton_schulz', 'cholesky')
SCALE_FORMS = ('normalized', 'literal')


@MODELS.register_module()
class LaplacianAttention(QKVAttention):
    r"""Nyström attention under a Laplacian kernel, whitened, in time linear in the tokens.

    Per head, with landmarks L (m, d) pooled from the key map and the kernel
    :math:`k(x, y) = \exp(-\lVert x - y \rVert_1 / \lambda)`:

    .. math::
        C_q = k(Q, L), \quad A = (k(L, L) + \varepsilon I)^{-1} k(K, L)^T, \quad
        \hat G = C_q A \approx k(Q, K)

        \bar c = \mathrm{mean}_i\, C_q[i], \quad \sigma_j^2 = A_j^T \mathrm{Cov}_i(C_q)\, A_j

        Z V = s\, (C_q - 1 \bar c^T)
              \big[ A\, \mathrm{diag}(\sigma^2 + \varepsilon_w)^{-1/2}\, V \big]
              + \mathrm{mean}_j V_j

    This is exactly the N x N matrix :math:`\hat G`, each column brought to mean zero and unit
    variance, plus 1/N, applied to V; the matrix itself never exists. The scale s is 1 in the
    literal form, whose output grows with N, or :math:`\gamma / N` with a learned :math:`\gamma`
    per head that starts at the square root of the training N. Everything but the linears and the
    convolution runs in fp32 under any autocast.

    Args:
        embed_dims, num_heads, input_resolution, qkv_bias, share_qk: As in :class:`QKVAttention`.
        rope, dw_kernel_size, proj_drop, init_cfg: As there.
        landmarks: A fixed number m of landmarks, a square such as 49, pooled adaptively from the
            keys (with their rotary positions) of a map of any size. The default, 49, unless
            ``pool_ratio`` is given.
        pool_ratio: Pool r x r keys into a landmark instead: m grows with the image. The paper
            has (8, 4, 2, 1) in its stages, which at 224 x 224 is m = 49 everywhere.
        kernel: ``'laplacian'`` (default) or ``'gaussian'``.
        kernel_scale: :math:`\lambda` of the Laplacian (default 4) or :math:`\sigma` of the
            Gaussian kernel (default ``head_dims ** 0.25``).
        scale_form: ``'normalized'`` (default, :math:`s = \gamma / N`) or ``'literal'`` (s = 1).
        solver: ``'newton_schulz'``, ``'cholesky'``, or ``'auto'`` (default): Cholesky on a CPU,
            where it was measured to be the faster, Newton–Schulz elsewhere.
        num_iters: Newton–Schulz steps. Default: 20.
        ridge: :math:`\varepsilon`. Default: 1e-2.
        whitening_eps: :math:`\varepsilon_w`. Default: 1e-5.

    Raises:
        ValueError: For an unknown kernel, scale form or solver, numbers out of range, both
            landmark arguments at once, or landmarks that are no square.

    Source: LaplacianFormer (arXiv 2604.20368).
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        landmarks: Optional[int] = None,
        pool_ratio: Optional[int] = None,
        kernel: str = 'laplacian',
        kernel_scale: Optional[float] = None,
        scale_form: str = 'normalized',
        solver: str = 'auto',
        num_iters: int = 20,
        ridge: float = 1e-2,
        whitening_eps: float = 1e-5,
        **kwargs,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        for name, value, known in (
            ('kernel', kernel, tuple(KERNELS)),
            ('scale_form', scale_form, SCALE_FORMS),
            ('solver', solver, SOLVERS),
        ):
            if value not in known:
                raise ValueError(f'{name} must be one of {known}, got {value!r}')
        kernel_function, default_scale = KERNELS[kernel]
        kernel_scale = default_scale(self.head_dims) if kernel_scale is None else kernel_scale
        if not 0 < kernel_scale < float('inf'):
            raise ValueError(f'kernel_scale must be positive and finite, got {kernel_scale}')
        if num_iters < 1:
            raise ValueError(f'num_iters must be at least 1, got {num_iters}')
        if ridge < 0 or whitening_eps <= 0:
            raise ValueError(
                f'ridge ({ridge}) must not be negative, whitening_eps ({whitening_eps}) positive'
            )
        self.kernel_function = kernel_function
        self.kernel_scale = kernel_scale
        self.solver = solver
        self.num_iters = num_iters
        self.ridge = ridge
        self.whitening_eps = whitening_eps
        self.pool = LandmarkPool(landmarks, pool_ratio)
        if scale_form == 'normalized':
            height, width = self.input_resolution
            self.gamma = nn.Parameter(torch.full((num_heads,), (height * width) ** 0.5))
        else:
            self.register_parameter('gamma', None)

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters that are not to decay: the scale starts far from zero."""
        return {'gamma'}

    def kernel(self, x: Tensor, y: Tensor) -> Tensor:
        """``k(x, y)``: ``(B, heads, N, d), (B, heads, M, d) -> (B, heads, N, M)``."""
        return self.kernel_function(x, y, self.kernel_scale)

    def invert(self, mat: Tensor) -> Tensor:
        """``(mat + ridge * I)^-1`` by the solver chosen; NaN for a matrix with a NaN."""
        solver = self.solver
        if solver == 'auto':
            solver = 'cholesky' if mat.device.type in ('cpu', 'meta') else 'newton_schulz'
        if solver == 'cholesky':
            return cholesky_inverse(mat, ridge=self.ridge, check=False)
        return newton_schulz_inverse(mat, self.num_iters, self.ridge, check=False)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            marks = self.pool(key, hw_shape)
            query_kernel = self.kernel(query, marks)
            key_kernel = query_kernel if q is k else self.kernel(key, marks)
            weights = self.invert(self.kernel(marks, marks)) @ key_kernel.transpose(-2, -1)

            num_tokens = value.shape[-2]
            centered = query_kernel - query_kernel.mean(-2, keepdim=True)
            covariance = centered.transpose(-2, -1) @ centered / num_tokens
            # A quadratic form of a covariance; only rounding can bring it below zero.
            variance = (weights * (covariance @ weights)).sum(-2).clamp(min=0)
            whitened = value * (variance + self.whitening_eps).rsqrt().unsqueeze(-1)
            mixed = centered @ (weights @ whitened)
            if self.gamma is not None:
                mixed = mixed * (self.gamma.to(mixed.dtype)[:, None, None] / num_tokens)
            return (mixed + value.mean(-2, keepdim=True)).to(v.dtype)
