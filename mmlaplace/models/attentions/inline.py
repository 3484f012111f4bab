from typing import Any, Optional, Tuple

import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import map_to_tokens, tokens_to_map
from ..layers.feature_map import convolve_each
from .base import QKVAttention
from .frame import Frame

KERNELS = {
    'identity': lambda x: x,
    'relu': F.relu,
    'leaky_relu': F.leaky_relu,
    'exp': lambda x: (0.2 * x).exp(),
}


@MODELS.register_module()
class InLineAttention(QKVAttention):
    r"""InLine attention: linear weights, normalised by subtraction and therefore injective.

    Per head, with features :math:`\phi`:

    .. math::
        w_{ij} = \frac{1}{N \sqrt{d}} \big( \phi(q_i) \cdot \phi(k_j)
                 - \phi(q_i) \cdot \mathrm{mean}_j\, \phi(k_j) \big) + \frac{1}{N}, \quad
        y_i = \sum_j w_{ij} v_j

    Rows of weights sum to one without a division. For each image, two linears compute one filter
    for each channel from the mean of the input. The depthwise convolution of V with these filters
    is added. Time is linear, :math:`O(N C d)`. Sums are fp32 under any autocast.

    Weights are signed and not bounded: the output grows with the cube of the input, so a norm must
    come before the attention. The two linears have PyTorch's initialisation, so the local branch
    starts large. Prefix tokens are in the mean that the filters come from, as in the authors' code.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        kernel: The features: ``'identity'`` (default), ``'relu'``, ``'leaky_relu'``, or ``'exp'``,
            which is exp(0.2 x).
        filters_from: The tokens whose mean gives the filters. ``'input'`` (default): those of the
            attention. ``'residual'``: those of the block before its norm, as on CSWin, whose blocks
            pass them.
        **frame: Fields of :class:`Frame` that differ from ``Frame(lepe_kernel=3)``. Filters have
            no bias.

    Raises:
        ValueError: For an unknown ``kernel`` or ``filters_from``.

    Cost: NCd to mix; 4C² + 10Cd weights.

    Published: PVT-T 78.2, PVT-S 82.0, Swin-T 82.4, Swin-B 84.1.

    Source: InLine attention (arXiv 2412.06590).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import InLineAttention
        >>> attention = InLineAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(lepe_kernel=3)
    fixed_options = ('sr_ratio', 'lepe_filters', 'lepe_bias')
    no_prefix_tokens = ''
    tested_options = (dict(kernel='exp', qkv='q_kv'), dict(kernel='relu', lepe_kernel=0))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        kernel: str = 'identity',
        filters_from: str = 'input',
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if kernel not in KERNELS:
            raise ValueError(f'kernel must be one of {tuple(KERNELS)}, got {kernel!r}')
        self.kernel = kernel
        if filters_from not in ('input', 'residual'):
            raise ValueError(f"filters_from must be 'input' or 'residual', got {filters_from!r}")
        self.filters_from = filters_from
        if self.lepe is not None:
            filters = self.frame.lepe_kernel**2 * embed_dims
            self.lepe = nn.Sequential(
                nn.Conv1d(embed_dims, embed_dims, 1, groups=num_heads),
                nn.GELU(),
                nn.Conv1d(embed_dims, filters, 1, groups=num_heads),
            )

    def forward(
        self,
        x: Tensor,
        hw_shape: Tuple[int, int],
        mask: Optional[Tensor] = None,
        residual: Optional[Tensor] = None,
    ) -> Tensor:
        """Mix tokens ``(B, N, C)``, with filters of the mean of ``residual`` if it is given."""
        if residual is None and self.filters_from == 'residual':
            raise ValueError(
                "filters_from='residual' needs the tokens before the norm, which the blocks of "
                "CSWin alone give; set filters_from='input' on other hosts"
            )
        return super().forward(x, hw_shape, mask, residual)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = KERNELS[self.kernel](query), KERNELS[self.kernel](key)
            mean = value.mean(-2, keepdim=True)  # (B, heads, 1, d)
            # Weights that sum to zero mix the differences from the mean alike.
            summed = key.transpose(-2, -1) @ (value - mean) / key.shape[-2]  # (B, heads, d, d)
            return (self.head_dims**-0.5 * (query @ summed) + mean).to(v.dtype)

    def local_branch(self, v: Tensor, x: Tensor, hw_shape: Tuple[int, int]) -> Optional[Tensor]:
        """The convolution of V with the filters of each image."""
        if self.lepe is None:
            return None
        size = self.frame.lepe_kernel
        filters = self.lepe(x.mean(1).unsqueeze(-1))  # (B, C * size², 1)
        maps = tokens_to_map(v, hw_shape)  # (B, C, H, W)
        out = convolve_each(maps, filters.squeeze(-1).unflatten(1, (-1, size, size)))
        return map_to_tokens(out)
