from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
import torch.nn as nn
from mmengine.model import ModuleList, Sequential
from mmengine.registry import MODELS
from torch import Tensor

from ..layers import linear_attention, map_to_tokens, tokens_to_map
from ..layers.build import build_map_norm
from ..layers.checks import check_counts
from .base import BaseAttention


@MODELS.register_module()
class LiteMLA(BaseAttention):
    r"""Multi-scale linear attention of EfficientViT: ReLU features of tokens and neighbours.

    Queries, keys and values of all heads are one map. Each scale adds another such map, computed
    from the first by a depthwise convolution of that size and a 1 x 1 convolution within each head.
    Each map has its own heads, so the attention has heads x (1 + scales) of them. Per head:

    .. math::
        y_i = \frac{\mathrm{relu}(q_i) \sum_j \mathrm{relu}(k_j)^T v_j}
                   {\mathrm{relu}(q_i) \cdot \sum_j \mathrm{relu}(k_j) + \epsilon}, \quad
        \mathrm{out} = \mathrm{BN}(\mathrm{proj}(Y))

    Time is linear, :math:`O(N C d\,(1 + \mathrm{scales}))`. Sums and the division are fp32 under
    any autocast. A query gives exactly zero if its ReLU features have no positive product with any
    key. Heads of the authors' models have 16 or 32 channels, and their blocks have no norm before
    the attention.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        scales: Odd kernel size of the depthwise convolution of each further map. Default: (5,).
        qkv_bias: Whether the linear and these convolutions have a bias. Default: False.
        eps: :math:`\epsilon`, which is added to the sum. Default: 1e-15.
        norm_cfg: Config of the norm of the output. ``dict(type=torch.nn.Identity)`` is none.
            Default: ``dict(type='BN')``. In training, the result for an image then depends on the
            other images of its batch.
        qkv_norm_cfg: Config of a norm of queries, keys and values. Default: none.
        proj_bias: Whether the last linear has a bias. Default: False.
        head_dims: Channels d of a head. With it, ``num_heads`` need not divide C. Default: C /
            heads.
        out_dims: Channels of the output. A value other than C needs a place without a residual
            connection around the attention. Default: C.

    Raises:
        ValueError: For a scale that is not odd and positive, or ``head_dims`` or ``out_dims`` that
            is no integer of at least 1.

    Cost: NCd(1 + S) to mix; (4 + S)C² + 3SC(25 + d) weights.

    Published: L1 84.5, L2 85.1; ADE20K L1 49.2, L2 50.7.

    Source: EfficientViT (arXiv 2205.14756).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import LiteMLA
        >>> attention = LiteMLA(64, num_heads=4, input_resolution=(14, 14), scales=(3, 5))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    no_prefix_tokens = 'it convolves the map of queries, keys and values'
    mixes_tokens = False  # also of other tokens' values: the convolutions are in the values
    not_promised = dict(batch='in training, BatchNorm has the statistics of all images')
    tested_options = (
        dict(scales=(3, 5), qkv_bias=True),
        dict(scales=(), qkv_norm_cfg=dict(type='BN'), proj_bias=True),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        scales: Sequence[int] = (5,),
        qkv_bias: bool = False,
        eps: float = 1e-15,
        norm_cfg: Optional[dict] = None,
        qkv_norm_cfg: Optional[dict] = None,
        proj_bias: bool = False,
        head_dims: Optional[int] = None,
        out_dims: Optional[int] = None,
        init_cfg: Union[dict, List[dict], None] = None,
    ) -> None:
        # Heads of a given width need not divide C.
        dividing = num_heads if head_dims is None else 1
        super().__init__(embed_dims, dividing, input_resolution, init_cfg)
        out_dims = embed_dims if out_dims is None else out_dims
        head_dims = self.head_dims if head_dims is None else head_dims
        check_counts(num_heads=num_heads, head_dims=head_dims, out_dims=out_dims)
        self.num_heads, self.head_dims = num_heads, head_dims
        if not isinstance(scales, (list, tuple)) or not all(
            isinstance(size, int) and size > 0 and size % 2 for size in scales
        ):
            raise ValueError(f'scales must be odd and positive, such as (5,), got {scales!r}')
        self.eps = eps
        inner = num_heads * head_dims
        channels = 3 * inner
        self.qkv = nn.Linear(embed_dims, channels, qkv_bias)
        self.qkv_norm = build_map_norm(qkv_norm_cfg, channels) if qkv_norm_cfg else None
        self.aggregations = ModuleList()
        for size in scales:
            options: Dict[str, Any] = dict(padding=size // 2, groups=channels, bias=qkv_bias)
            around = nn.Conv2d(channels, channels, size, **options)
            of_heads = nn.Conv2d(channels, channels, 1, groups=3 * num_heads, bias=qkv_bias)
            self.aggregations.append(Sequential(around, of_heads))
        self.proj = nn.Linear((1 + len(scales)) * inner, out_dims, bias=proj_bias)
        self.norm = build_map_norm(norm_cfg or dict(type='BN'), out_dims)

    def forward(
        self, x: Tensor, hw_shape: Tuple[int, int], mask: Optional[Tensor] = None
    ) -> Tensor:
        self.check_token_map(x, hw_shape)
        self.check_mask(mask)
        maps = tokens_to_map(self.qkv(x), hw_shape)  # (B, 3 heads d, H, W), by head: q, k, v
        maps = maps if self.qkv_norm is None else self.qkv_norm(maps)
        maps = torch.cat([maps, *(aggregate(maps) for aggregate in self.aggregations)], dim=1)
        count = maps.shape[1] // (3 * self.head_dims)
        heads = maps.reshape(x.shape[0], count, 3, self.head_dims, x.shape[1]).transpose(-2, -1)
        q, k, v = heads.unbind(2)  # (B, heads * (1 + scales), N, d) each
        mixed = linear_attention(q, k, v, self.eps, features='relu', eps_of_sum=True)
        out = self.proj(mixed.transpose(1, 2).flatten(2))  # (B, N, C)
        return map_to_tokens(self.norm(tokens_to_map(out, hw_shape)))
