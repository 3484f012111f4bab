import math
from typing import Any, Optional, Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops._inverse import add_ridge
from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import Landmarks
from ..layers.checks import check_counts
from ..layers.kernels import choose_kernel
from ..layers.landmarks import spread_numbers
from ..layers.pseudo_inverse import check_iteration, pseudo_inverse
from ..layers.tables import computed_once
from .base import QKVAttention

METHODS = ('pool', 'random')


@MODELS.register_module()
class SkyformerAttention(QKVAttention):
    r"""Skyformer: the Nyström form of a Gaussian kernel between queries and keys.

    Per head, with :math:`k(x, y) = \exp(-\lVert x - y \rVert_2^2 / (2 \sigma^2))` and landmarks L
    of queries and of keys:

    .. math::
        W = k(L, L) + \epsilon I, \quad D = \mathrm{diag}(W 1), \quad
        M = \big( D^{-1/2} W D^{-1/2} \big)^+

        Y = k(Q, L) \, D^{-1/2} M^T D^{-1/2} \, k(L, K) \, V

    M is six steps of Nyströmformer's iteration. Time is :math:`O(N m d + m^3)` per head. It has no
    parameters of its own. The output is not divided by a sum of weights. So its scale depends on
    that of queries and keys, and it vanishes where these are large. It also grows with the number
    of tokens. Everything is fp32 under any autocast. :class:`KernelAttention` is the exact form.
    Landmarks are of the map alone. Prefix tokens are queries and keys like the others.

    With ``kernel='laplacian'``, as in an ablation of LaplacianFormer (arXiv 2604.20368), it is
    :math:`k(x, y) = \exp(-\lVert x - y \rVert_1 / \lambda)`, and all else stays.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        num_landmarks: Number of landmarks of the queries, and as many of the keys. ``'pool'`` needs
            a square. Default: 49.
        landmark_method: ``'pool'`` (default) averages cells of the map. ``'random'`` draws tokens
            with replacement, as the authors do. In training, every forward pass draws new tokens
            for each image. In eval mode the tokens are always the same.
        kernel: ``'gaussian'`` (default) or ``'laplacian'``.
        bandwidth: :math:`\sigma` of the Gaussian or :math:`\lambda` of the Laplacian kernel.
            Skyformer's authors use :math:`\sigma = 32^{1/4}` for any d. Default: :math:`d^{1/4}` of
            the Gaussian, and 4 of the Laplacian, LaplacianFormer's best.
        ridge: :math:`\epsilon`. Default: 0.1.
        num_iters: Steps of the iteration for the inverse. Default: 6.
        newton_start_per: How matrices share the initial scale of the iteration. ``'matrix'``
            (default): each matrix has its own. ``'batch'``: all images and heads share one, as in
            the authors' code. The result for an image then depends on the other images of the
            batch.
        accumulation: Sets of random landmarks. A column of :math:`k(\cdot, L)` is a sum over the
            landmarks with the same index in each set. In W, both rows and columns are such sums.
            The first half of all landmarks comes from the queries, as in the authors' code.
            Default: 1.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Raises:
        ValueError: For an unknown kernel, ``landmark_method`` or ``newton_start_per``, numbers out
            of range, or ``accumulation`` of pooled landmarks.

    Cost: NCm + hm³ to mix; 4C² weights.

    Source: Skyformer (arXiv 2111.00035).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SkyformerAttention
        >>> attention = SkyformerAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    mixes_queries = True
    no_prefix_tokens = ''
    tested_options = (
        dict(landmark_method='random', num_landmarks=6, lepe_kernel=3),
        dict(rope=True, num_landmarks=4),
        dict(num_landmarks=4, sr_ratio=2),
        dict(landmark_method='random', num_landmarks=4, accumulation=2, lepe_kernel=3),
        dict(kernel='laplacian', num_landmarks=9),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        num_landmarks: int = 49,
        landmark_method: str = 'pool',
        kernel: str = 'gaussian',
        bandwidth: Optional[float] = None,
        ridge: float = 0.1,
        num_iters: int = 6,
        newton_start_per: str = 'matrix',
        accumulation: int = 1,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if landmark_method not in METHODS:
            raise ValueError(f'landmark_method must be one of {METHODS}, got {landmark_method!r}')
        check_iteration(num_iters, newton_start_per)
        self.kernel_fn, self.bandwidth = choose_kernel(kernel, bandwidth, self.head_dims)
        if not 0 <= ridge < math.inf:
            raise ValueError(f'ridge must be finite and not negative, got {ridge}')
        check_counts(num_landmarks=num_landmarks, accumulation=accumulation)
        if accumulation > 1 and landmark_method == 'pool':
            raise ValueError(
                f'accumulation={accumulation} draws several sets of landmarks, which would be '
                "equal with landmark_method='pool'; set landmark_method='random' or accumulation=1"
            )
        self.num_landmarks = num_landmarks
        self.accumulation = accumulation
        self.pool = Landmarks(num_landmarks) if landmark_method == 'pool' else None
        self.ridge = ridge
        self.num_iters = num_iters
        self.newton_start_per = newton_start_per

    def draw(self, q: Tensor, k: Tensor) -> Tensor:
        """Indices of a sets of landmarks in the queries and then the keys, ``(B, 2 a m)``."""
        images, queries, keys = q.shape[0], q.shape[2], k.shape[2]
        count = self.accumulation * self.num_landmarks
        if not self.training:
            return computed_once(spread_draw, count, queries, keys, like=q).expand(images, -1)
        of_queries = torch.randint(queries, (images, count), device='cpu')
        of_keys = torch.randint(keys, (images, count), device='cpu')
        return torch.cat([of_queries, of_keys + queries], dim=1).to(q.device)

    def landmarks(self, q: Tensor, k: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Landmarks of queries and of keys, in a sets, ``(B, heads, 2 a m, d)``."""
        if self.pool is not None:
            pooled = self.pool(q, hw_shape), self.pool(k, hw_shape and self.kv_shape(hw_shape))
            return torch.cat(pooled, dim=2)
        tokens = torch.cat([q, k], dim=2)
        index = self.draw(q, k)
        index = index[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
        return tokens.gather(2, index)

    def pseudo_invert(self, mat: Tensor) -> Tensor:
        """Steps towards the inverse of ``(B, heads, m, m)``, which is not ridged here."""
        return pseudo_inverse(mat, self.num_iters, self.newton_start_per)

    def summed(self, kernel: Tensor, dim: int = -1) -> Tensor:
        """Values of all 2 a m landmarks, summed over the a sets to 2 m."""
        if self.accumulation == 1:
            return kernel
        sets = kernel.chunk(self.accumulation, dim)
        return sum(sets)  # type: ignore[return-value]  # of more than none

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            landmarks = self.landmarks(self.of_map(query), self.of_map(key), hw_shape)
            mat = self.summed(self.kernel_fn(landmarks, landmarks, self.bandwidth))
            mat = add_ridge(self.summed(mat, -2), self.ridge)
            root = mat.sum(-1, keepdim=True).rsqrt()  # (B, heads, 2 m, 1)
            normalized = root * mat * root.transpose(-2, -1)
            inverse = self.pseudo_invert(normalized)
            query_kernel = self.summed(self.kernel_fn(query, landmarks, self.bandwidth))
            key_kernel = self.summed(self.kernel_fn(key, landmarks, self.bandwidth))
            gathered = root * (key_kernel.transpose(-2, -1) @ value)  # (B, heads, 2 m, d)
            gathered = root * (inverse.transpose(-2, -1) @ gathered)
            return (query_kernel @ gathered).to(v.dtype)


def spread_draw(count: int, queries: int, keys: int, device: torch.device) -> Tensor:
    """Indices of ``count`` queries, and of as many keys behind all queries, ``(1, 2 * count)``."""
    of_queries, of_keys = spread_numbers(2 * count).chunk(2)
    drawn = torch.cat([(of_queries * queries).long(), (of_keys * keys).long() + queries])
    return drawn[None].to(device)
