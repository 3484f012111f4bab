import math
from typing import Any, Optional, Tuple

import torch
import torch.nn as nn
from mmengine.model import Sequential
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops import (
    cholesky_inverse,
    newton_schulz_inverse,
    nystrom_attention,
)
from mmlaplace.ops._inverse import add_ridge
from mmlaplace.ops.newton_start_scale import newton_start_scale
from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import Landmarks
from ..layers.checks import check_counts
from ..layers.kernels import choose_kernel
from ..layers.solvers import svd_inverse
from .base import QKVAttention
from .frame import Frame

STARTS = ('matrix', 'batch')
SOLVERS = ('newton_schulz', 'svd', 'cholesky')
RIDGE = 1e-2  # of the authors, where W is not normalised


@MODELS.register_module()
class SOFTAttention(QKVAttention):
    r"""Softmax-free attention: the Nyström form of a Gaussian kernel, in time linear in the tokens.

    Per head, with Q = K scaled by :math:`d^{-1/4}`, landmarks L sampled from Q and brought through
    LayerNorm and GELU, and :math:`k(x, y) = \exp(-\lVert x - y \rVert_2^2 / 2)`:

    .. math::
        C = k(Q, L), \quad W = k(L, L), \quad
        \mathrm{out} = \mathrm{proj}\big( C\, W^\dagger\, (C^T V) + \mathrm{DWConv}(V) \big)

    With ``normalized`` (SOFT++), :math:`W^\dagger` becomes :math:`D^{-1/2} W^\dagger D^{-1/2}`
    with the row sums D of W. This divides its norm by about the mean row sum.

    The inverse is the authors' Newton iteration. It starts at :math:`\alpha W`, so the inverse
    leaves out directions of W with vanishing eigenvalues, such as those of equal landmarks. Its
    gradient is implicit. SOFT adds a ridge and takes :math:`\alpha = 1.8 / r^2`, r the largest row
    sum of W. SOFT++ has no ridge and takes :math:`\alpha = 2 / r^2`. It halves this :math:`\alpha`,
    ten times at most, while :math:`\lVert I - \alpha W^2 \rVert_1 > 1.01`. If W is close to I, as
    for landmarks far apart, the iteration from the authors' start would end at 0 instead of the
    inverse. In this case, :math:`\alpha` is halved once here.

    If keys differ from queries (``qkv='qkv'``), landmarks come from the queries, and the second C
    is computed from the keys: :math:`k(Q, L)\, W^\dagger\, k(K, L)^T V`. A prefix token, such as
    a class token, is part of no landmark. Its value is used in place of its convolution, as in the
    authors' code.

    With ``kernel='laplacian'``, as in an ablation of LaplacianFormer (arXiv 2604.20368), it is
    :math:`k(x, y) = \exp(-d^{1/4} \lVert x - y \rVert_1 / \lambda)`, and all else stays. The
    bandwidth of either kernel is that of tokens before they are scaled, :math:`d^{1/4} x`. So
    :math:`\lambda` compares with that of :class:`LaplacianAttention`. The bandwidth of the paper's
    ablation is not at hand.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        normalized: Whether this is SOFT++. Default: True.
        landmark_method: How landmarks are taken from Q, see :class:`Landmarks`. Default:
            ``'conv'``, as in the papers. ``'pool'``, ``'random'`` and ``'first'`` are their
            ablations.
        num_landmarks: Fixed number m, for maps of any size. Default: 49, unless ``pool_ratio`` is
            given.
        pool_ratio: Side r of the cells. Without ``num_landmarks``, m grows with the image.
            ``'conv'`` takes both options. Default, with ``'conv'`` and ``num_landmarks``: the
            largest r that gives that many cells at ``input_resolution``.
        newton_start_per: How matrices share :math:`\alpha`. ``'matrix'`` (default): each matrix has
            its own. ``'batch'``: all matrices share one, as in the authors' code of SOFT++. The
            result for an image then depends on the other images of the batch. Use ``'batch'`` for
            converted weights if exact agreement matters.
        num_iters: Newton steps. Default: 20.
        ridge: Added to the diagonal of W. Default: 1e-2. With ``normalized`` it is 0, but 1e-2 for
            the solver ``'cholesky'``, which needs a ridge.
        solver: ``'newton_schulz'`` (default), the iteration above, ``'svd'``, the Moore–Penrose
            inverse by its decomposition, or ``'cholesky'``, the exact inverse. The last two also
            invert the small eigenvalues that the Newton steps leave out. So they give another model
            where W is close to singular.
        kernel: ``'gaussian'`` (default), the papers', or ``'laplacian'``.
        bandwidth: :math:`\sigma` of the Gaussian :math:`\exp(-d^{1/2} \lVert x - y \rVert_2^2 / (2
            \sigma^2))` or :math:`\lambda` of the Laplacian kernel. Default: :math:`d^{1/4}` of the
            Gaussian, which gives the formula above, and 4 of the Laplacian, LaplacianFormer's best.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv='shared_qk', lepe_kernel=3,
            lepe_filters='head', lepe_bias=False)``. There are no rotary positions.

    Raises:
        ValueError: For an unknown ``newton_start_per``, ``solver`` or kernel, numbers out of range,
            or landmark options that exclude each other.

    Cost: NCm + hm³ to mix; 3C² + r²d² + d + 81h weights.

    Published: their own pyramid: SOFT tiny 79.3; SOFT++ tiny 80.9, small 82.6.

    Source: SOFT (arXiv 2110.11945) and SOFT++ (arXiv 2207.03341).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SOFTAttention
        >>> attention = SOFTAttention(64, num_heads=2, input_resolution=(14, 14), pool_ratio=2)
        >>> attention(torch.randn(1, 12 * 16, 64), hw_shape=(12, 16)).shape
        torch.Size([1, 192, 64])
    """

    frame = Frame(qkv='shared_qk', lepe_kernel=3, lepe_filters='head', lepe_bias=False)
    fixed_options = ('sr_ratio', 'key_positions', 'rope', 'rope_form', 'rope_on')
    not_promised = dict(
        gradients='they are those of an inverse, and where W is singular the iteration is none'
    )
    mixes_queries = True
    no_prefix_tokens = ''
    tested_options = (
        dict(normalized=False, pool_ratio=2),
        dict(landmark_method='pool', num_landmarks=4),
        dict(landmark_method='random', num_landmarks=9),
        dict(landmark_method='first', pool_ratio=2),
        dict(qkv='qkv', pool_ratio=2, solver='cholesky'),
        dict(normalized=False, pool_ratio=2, solver='svd'),
        dict(kernel='laplacian', pool_ratio=2),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        normalized: bool = True,
        landmark_method: str = 'conv',
        num_landmarks: Optional[int] = None,
        pool_ratio: Optional[int] = None,
        newton_start_per: str = 'matrix',
        num_iters: int = 20,
        ridge: Optional[float] = None,
        solver: str = 'newton_schulz',
        kernel: str = 'gaussian',
        bandwidth: Optional[float] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if newton_start_per not in STARTS:
            raise ValueError(f'newton_start_per must be one of {STARTS}, got {newton_start_per!r}')
        if solver not in SOLVERS:
            raise ValueError(f'solver must be one of {SOLVERS}, got {solver!r}')
        if ridge is None:
            # Equal landmarks make W singular, which Cholesky's factors cannot be of.
            ridge = RIDGE if solver == 'cholesky' or not normalized else 0.0
        check_counts(num_iters=num_iters)
        if not 0 <= ridge < math.inf:
            raise ValueError(f'ridge must be finite and not negative, got {ridge}')
        if landmark_method == 'conv' and pool_ratio is None:
            num_landmarks = 49 if num_landmarks is None else num_landmarks
            check_counts(num_landmarks=num_landmarks)
            pool_ratio = max(int(min(self.input_resolution) / num_landmarks**0.5), 1)
        self.kernel = kernel
        self.kernel_fn, self.bandwidth = choose_kernel(kernel, bandwidth, self.head_dims)
        self.normalized = normalized
        self.newton_start_per = newton_start_per
        self.num_iters = num_iters
        self.ridge = ridge
        self.solver = solver
        self.landmarks = Landmarks(num_landmarks, pool_ratio, landmark_method, self.head_dims)
        self.landmark_norm = Sequential(nn.LayerNorm(self.head_dims), nn.GELU())

    def invert(self, mat: Tensor) -> Tensor:
        r""":math:`W^\dagger` of kernel matrices ``(B, heads, m, m)``, normalised for SOFT++."""
        if self.solver == 'svd':
            inverse = svd_inverse(mat, self.ridge)
        elif self.solver == 'cholesky':
            inverse = cholesky_inverse(mat, self.ridge, check=False)
        else:
            # Another ridge than the authors' could push the start beyond twice the inverse.
            authors_ridge = 0.0 if self.normalized else RIDGE
            start_mat = mat if self.ridge == authors_ridge else add_ridge(mat, self.ridge)
            scale = newton_start_scale(
                start_mat,
                2.0 if self.normalized else 1.8,
                halve=self.normalized,
                per_batch=self.newton_start_per == 'batch',
            )
            inverse = newton_schulz_inverse(
                mat, self.num_iters, self.ridge, start_scale=scale, check=False
            )
        if not self.normalized:
            return inverse
        root = mat.sum(-1).rsqrt()
        return root.unsqueeze(-1) * inverse * root.unsqueeze(-2)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        shrink = self.head_dims**-0.25
        # Landmarks of the scaled queries, since all ways to take them are linear.
        of_map = q[:, :, self.num_prefix_tokens :]
        landmarks = self.landmarks(of_map, hw_shape) * shrink  # fp32 where they are means
        landmarks = self.landmark_norm(landmarks.to(self.landmark_norm[0].weight.dtype))
        with no_autocast(v.device):
            (landmarks,) = upcast(landmarks)  # (B, heads, m, d)
            mat = self.kernel_fn(landmarks, landmarks, self.bandwidth * shrink)
            inverse = self.invert(mat)  # (B, heads, m, m)
        # k(shrink q, L; shrink b) is k(q, L / shrink; b), which leaves q as it is.
        return nystrom_attention(
            q, k, v, landmarks / shrink, inverse, self.bandwidth, kernel=self.kernel
        )

    def local_of_all(self, local: Tensor, v: Tensor) -> Tensor:
        """The local branch of all tokens, which is the own value for prefix tokens."""
        return torch.cat([v[:, : self.num_prefix_tokens], local], dim=1)
