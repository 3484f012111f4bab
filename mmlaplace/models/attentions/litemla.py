from typing import List, Optional, Sequence, Tuple, Union

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import ModuleList, Sequential
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import Linear, linear_attention, map_to_tokens, tokens_to_map
from ..layers.build import build_map_norm
from .base import BaseAttention


@MODELS.register_module()
class LiteMLA(BaseAttention):
    r"""Multi-scale linear attention of EfficientViT: ReLU features of tokens and what is around.

    Queries, keys and values are a map of 3C channels. For each scale there is another such map: a
    depthwise convolution of that size, and a 1 x 1 convolution of the channels of a head. Each map
    has its own heads, so there are heads x (1 + scales) of them. Per head:

    .. math::
        y_i = \frac{\mathrm{relu}(q_i) \sum_j \mathrm{relu}(k_j)^T v_j}
                   {\mathrm{relu}(q_i) \cdot \sum_j \mathrm{relu}(k_j) + \epsilon}, \quad
        \mathrm{out} = \mathrm{BN}(\mathrm{proj}(Y))

    Time is linear, :math:`O(N C d\,(1 + \mathrm{scales}))`. Sums and the division are fp32 under
    any autocast. A query without a key of its signs gives exactly zero. Heads of the authors'
    models have 16 or 32 channels, and their blocks have no norm before the attention.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        scales: Odd side of the depthwise convolution of each further map. Default: (5,).
        qkv_bias: Whether the linear and these convolutions have a bias. Default: False.
        eps: :math:`\epsilon`, against the sum. Default: 1e-15.
        norm_cfg: Config of the norm of the output. Default: ``dict(type='BN')``, which makes an
            image depend on the others of its batch while training.

    Raises:
        ValueError: For a scale that is not odd and positive.

    Source: EfficientViT (arXiv 2205.14756).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LiteMLA
        >>> attention = LiteMLA(64, num_heads=4, input_resolution=(14, 14), scales=(3, 5))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    mixes_tokens = False  # also of other tokens' values: the convolutions are in the values
    variants = (dict(scales=(3, 5), qkv_bias=True), dict(scales=()))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        scales: Sequence[int] = (5,),
        qkv_bias: bool = False,
        eps: float = 1e-15,
        norm_cfg: Optional[dict] = None,
        init_cfg: Union[dict, List[dict], None] = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        if not all(isinstance(size, int) and size > 0 and size % 2 for size in scales):
            raise ValueError(f'scales must be odd and positive, got {tuple(scales)}')
        self.eps = eps
        channels = 3 * embed_dims
        self.qkv = Linear(embed_dims, channels, qkv_bias)
        self.aggregations = ModuleList()
        for size in scales:
            options = dict(padding=size // 2, groups=channels, bias=qkv_bias)
            around = nn.Conv2d(channels, channels, size, **options)
            of_heads = nn.Conv2d(channels, channels, 1, groups=3 * num_heads, bias=qkv_bias)
            self.aggregations.append(Sequential(around, of_heads))
        self.proj = Linear((1 + len(scales)) * embed_dims, embed_dims, bias=False)
        self.norm = build_map_norm(norm_cfg or dict(type='BN'), embed_dims)

    def forward(
        self, x: Tensor, hw_shape: Tuple[int, int], mask: Optional[Tensor] = None
    ) -> Tensor:
        self.check_token_map(x, hw_shape)
        self.check_mask(mask)
        maps = tokens_to_map(self.qkv(x), hw_shape)  # (B, 3C, H, W), by head: q, k, v
        maps = torch.cat([maps, *(aggregate(maps) for aggregate in self.aggregations)], dim=1)
        count = maps.shape[1] // (3 * self.head_dims)
        heads = maps.reshape(x.shape[0], count, 3, self.head_dims, x.shape[1]).transpose(-2, -1)
        q, k, v = heads.unbind(2)  # (B, heads * (1 + scales), N, d) each
        with no_autocast(x.device):
            query, key = (F.relu(tokens) for tokens in upcast(q, k))
            mixed = linear_attention(query, key, v, self.eps / x.shape[1])
        out = self.proj(mixed.transpose(1, 2).flatten(2))  # (B, N, C)
        return map_to_tokens(self.norm(tokens_to_map(out, hw_shape)))
