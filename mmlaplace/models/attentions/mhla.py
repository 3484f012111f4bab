import math
from typing import Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import RMSNorm
from .base import Projected, QKVAttention
from .frame import Frame

# Weights of blocks at distance d of at most m, from which learning starts.
STARTS = {
    'cos': lambda d, m, sigma: (math.pi / 4 * d / m).cos(),
    'linear': lambda d, m, sigma: 1 - d / m,
    'exp': lambda d, m, sigma: (-d / sigma).exp(),
    'local': lambda d, m, sigma: (d <= 1.5).to(d.dtype),
    'gaussian': lambda d, m, sigma: (-(d**2) / (2 * (m / 3) ** 2)).exp(),
}
NORMALIZERS = ('weights', 'blocks')


@MODELS.register_module()
class MHLAAttention(QKVAttention):
    r"""Token-level multi-head linear attention: every block of tokens has a mixture of all states.

    The map is cut into blocks. Per head, with :math:`\phi(x) = \mathrm{relu}(x) + 10^{-6}`, the
    sums :math:`S_n = \sum_j \phi(k_j)^T v_j` and :math:`u_n = \sum_j \phi(k_j)` of block n, and a
    learned matrix M of blocks, for a token i of block m:

    .. math::
        y_i = \frac{\phi(q_i) \sum_n M_{mn} S_n}{\phi(q_i) \cdot \sum_n M_{mn} u_n + 10^{-6}}, \quad
        \mathrm{out} = \mathrm{proj}(Y + \mathrm{DWConv}(V))

    Time is :math:`O(N C d + b^2 C d)` with b blocks. Their number is fixed, so it is linear. Blocks
    of a larger map are larger. Sums and the division are fp32 under any autocast. M may become
    negative, and the normaliser then zero.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        grid: Rows and columns of blocks, b = grid². Default: 4.
        transform: How M starts, from the distances D between blocks: ``'cos'`` (default), of
            :math:`D \pi / 4` by the largest D; ``'linear'``; ``'exp'``, :math:`e^{-D / \sigma}`;
            ``'local'``, one up to D = 1.5; or ``'gaussian'``. All but the last are divided by the
            sums of columns.
        exp_sigma: :math:`\sigma` of ``'exp'``. Default: 3.
        normalizer: ``'weights'`` (default), as above, so that rows sum to one. ``'blocks'``, the
            authors' code: :math:`\sum_n M_{mn}\, \phi(q_{i(n)}) \cdot u_n` with i(n) the token of
            block n at the place of i in its own.
        pre_norm: Whether a LayerNorm comes first, as in the authors' code, beside that of the
            block. Default: False.
        qk_norm: Whether queries and keys have a root-mean-square norm over all channels. Default:
            False.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv_bias=False, lepe_kernel=5)``.

    Raises:
        ValueError: For an unknown ``transform`` or ``normalizer``, or numbers out of range.

    Source: MHLA: Token-Level Multi-Head Linear Attention (arXiv 2601.07832).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import MHLAAttention
        >>> attention = MHLAAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """
