from typing import List, Optional, Tuple, Union

import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from ..layers import DepthwiseConv, map_to_tokens, tokens_to_map
from .base import BaseAttention


@MODELS.register_module()
class LargeKernelAttention(BaseAttention):
    r"""Large kernel attention of VAN: convolutions of the input, whose result multiplies the input.

    .. math::
        u = \mathrm{GELU}(W_1 x), \quad
        \mathrm{out} = W_2 \big( u \odot W\, \mathrm{DWConv}_7(\mathrm{DWConv}_5(u)) \big)

    The 7 x 7 depthwise convolution has a dilation of 3, so a token sees 23 x 23 tokens around it
    and nothing beyond. Time is linear, :math:`O(N C\,(C + 74))`. There are no heads and no
    normaliser. It is a convolutional baseline for linear attentions.

    Args:
        embed_dims, input_resolution, init_cfg: As in :class:`BaseAttention`.
        num_heads: Must divide ``embed_dims``, and has no other effect.
        shortcut: Whether the input is added to the output, as in the authors' code. Their block
            also has its own residual connection, from before the norm. Default: False.

    Cost: 74NC to mix; 3C² + 74C weights.

    Source: VAN (arXiv 2202.09741).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LargeKernelAttention
        >>> attention = LargeKernelAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    no_prefix_tokens = 'it is a convolution of the map'
    mixes_tokens = False
    tested_options = (dict(shortcut=True),)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        shortcut: bool = False,
        init_cfg: Union[dict, List[dict], None] = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        self.shortcut = shortcut
        self.value = nn.Linear(embed_dims, embed_dims)
        self.near = DepthwiseConv(embed_dims, 5)
        self.far = nn.Conv2d(embed_dims, embed_dims, 7, padding=9, dilation=3, groups=embed_dims)
        self.weight = nn.Linear(embed_dims, embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(
        self, x: Tensor, hw_shape: Tuple[int, int], mask: Optional[Tensor] = None
    ) -> Tensor:
        self.check_token_map(x, hw_shape)
        self.check_mask(mask)
        value = F.gelu(self.value(x))  # (B, N, C)
        around = self.far(tokens_to_map(self.near(value, hw_shape), hw_shape))
        out = self.proj(value * self.weight(map_to_tokens(around)))
        return x + out if self.shortcut else out
