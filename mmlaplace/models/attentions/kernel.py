from typing import Any, Optional, Tuple

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops import kernel_attention
from mmlaplace.ops._native import computes
from mmlaplace.ops._pairwise import logarithm_of_kernel
from mmlaplace.ops.nystrom_attention import METRICS
from mmlaplace.ops.precision import no_autocast, upcast

from ..layers.kernels import choose_kernel
from ..layers.pairs import check_pairs_fit
from .base import QKVAttention

# Matrices of all pairs at a time, without and with gradients.
MATRICES = dict(none=(1, 2), rows=(2, 6), symmetric=(3, 5), whitened=(4, 6))
NORMALIZATIONS = tuple(MATRICES)


@MODELS.register_module()
class KernelAttention(QKVAttention):
    r"""Exact attention under a Gaussian or Laplacian kernel, with a weight for each pair of tokens.

    Per head:

    .. math::
        G_{ij} = \exp(-\lVert q_i - k_j \rVert_2^2 / (2 \sigma^2)) \quad \text{or} \quad
        G_{ij} = \exp(-\lVert q_i - k_j \rVert_1 / \lambda), \quad Y = G V

    It is the exact form of attentions that approximate it in linear time:
    :class:`SkyformerAttention`, :class:`SOFTAttention` (with ``qkv='shared_qk'``) and
    :class:`LaplacianAttention` (``kernel='laplacian', normalization='whitened'``). Time is
    :math:`O(N^2 d)` and memory :math:`O(N^2)` per head, so it serves for comparison. Everything is
    fp32 under any autocast.

    With ``normalization='rows'`` and no dropout of weights, it is one op, :func:`kernel_attention`.
    The compiled op stores no N x N values, so the memory is :math:`O(N d)`. It serves at some
    hundred tokens, in place of softmax, and in the windows of :class:`WindowAttention`.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        kernel: ``'gaussian'`` (default) or ``'laplacian'``.
        bandwidth: :math:`\sigma` of the Gaussian (default ``head_dims ** 0.25``) or
            :math:`\lambda` of the Laplacian kernel (default 4).
        normalization: ``'none'`` (default): Y = G V, which grows with the number of tokens.
            ``'rows'``: each row is divided by its sum, so that weights add up to one, as softmax's
            do. ``'symmetric'``: each entry by the roots of
            the sums of its row and its column, as in SOFT++. ``'whitened'``: each column is brought
            to mean zero and unit variance, times :math:`\gamma / N`, plus 1 / N, as in
            LaplacianFormer, with a learned :math:`\gamma` per head that starts at the square root
            of the training N.
        whitening_eps: Added to the variance of a column. Default: 1e-5.
        attn_drop: Dropout rate of the weights. Default: 0.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``.

    Raises:
        ValueError: For an unknown kernel or normalisation, or a bandwidth that is not positive. In
            the forward, for a map whose matrices of pairs would need more than 4 GB, where they are
            stored.

    Cost: N²C to mix; 4C² weights.

    Source: SOFT (arXiv 2110.11945), Skyformer (arXiv 2111.00035) and LaplacianFormer (arXiv
    2604.20368).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import KernelAttention
        >>> attention = KernelAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
        >>> from mmlaplace.models import WindowAttention
        >>> exact = dict(type='KernelAttention', kernel='laplacian', normalization='rows')
        >>> windows = WindowAttention(64, 2, (14, 14), window_size=7, attn_cfg=exact)
        >>> windows(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    not_promised = dict(linear='each query reads each key')
    no_prefix_tokens = ''
    tested_options = (
        dict(kernel='laplacian', normalization='whitened', rope=True),
        dict(normalization='rows', sr_ratio=2),
        dict(kernel='laplacian', normalization='rows', rope=True),
        dict(kernel='laplacian', normalization='rows', attn_drop=0.1),
        dict(normalization='symmetric', qkv='shared_qk'),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        kernel: str = 'gaussian',
        bandwidth: Optional[float] = None,
        normalization: str = 'none',
        whitening_eps: float = 1e-5,
        attn_drop: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.kernel_fn, self.bandwidth = choose_kernel(kernel, bandwidth, self.head_dims)
        self.kernel = kernel
        if normalization not in NORMALIZATIONS:
            raise ValueError(
                f'normalization must be one of {NORMALIZATIONS}, got {normalization!r}'
            )
        if whitening_eps <= 0:
            raise ValueError(f'whitening_eps must be positive, got {whitening_eps}')
        self.normalization = normalization
        self.mixes_queries = normalization == 'whitened'
        self.whitening_eps = whitening_eps
        self.attn_drop = nn.Dropout(attn_drop)
        self.register_parameter('gamma', None)
        if normalization == 'whitened':
            height, width = self.input_resolution
            tokens = height * width + self.num_prefix_tokens
            self.gamma = nn.Parameter(torch.full((num_heads,), tokens**0.5))

    def no_weight_decay(self) -> set:
        """Names of the parameters without weight decay: the scale starts far from zero."""
        return {'gamma'}

    def weights(self, q: Tensor, k: Tensor) -> Tensor:
        """The weights ``(B, heads, N, n)`` of queries ``(B, heads, N, d)`` and n keys."""
        if self.normalization == 'rows':  # by the logarithm, as a far token's kernels are all 0
            logarithm = logarithm_of_kernel(METRICS[self.kernel], q, k, self.bandwidth)
            return logarithm.softmax(-1)
        return self.normalized(self.kernel_fn(q, k, self.bandwidth))

    def normalized(self, kernel: Tensor) -> Tensor:
        """The weights ``(B, heads, N, n)`` of a kernel matrix, if they are not those of rows."""
        if self.normalization == 'symmetric':
            # A token far from all others has a sum that underflows to 0, and then weights of 0.
            rows = kernel.sum(-1, keepdim=True).clamp(min=1e-30)
            columns = kernel.sum(-2, keepdim=True).clamp(min=1e-30)
            return kernel * rows.rsqrt() * columns.rsqrt()
        if self.normalization == 'whitened':
            keys = kernel.shape[-1]
            variance = kernel.var(-2, unbiased=False, keepdim=True)
            centred = kernel - kernel.mean(-2, keepdim=True)
            scale = self.gamma.to(kernel.dtype)[:, None, None] / keys
            return scale * centred * (variance + self.whitening_eps).rsqrt() + 1 / keys
        return kernel

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        drops = self.attn_drop.training and self.attn_drop.p > 0
        in_tiles = self.normalization == 'rows' and not drops
        if not (in_tiles and computes('kernel_attention', q.device.type)):
            check_pairs_fit(self, q, k, MATRICES[self.normalization])
        if in_tiles:
            return kernel_attention(q, k, v, self.bandwidth, kernel=self.kernel)
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            return (self.attn_drop(self.weights(query, key)) @ value).to(v.dtype)
