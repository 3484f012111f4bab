from typing import List, Optional, Tuple, Union

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers.checks import check_counts
from ..layers.tables import computed_once
from .base import BaseAttention


@MODELS.register_module()
class SeparableAttention(BaseAttention):
    r"""Separable self-attention of MobileViTv2: one weighted sum of keys multiplies all values.

    With a score s of each token, and linears K and V of the input:

    .. math::
        c = \sum_j \mathrm{softmax}_j(s)\, k_j, \quad
        \mathrm{out}_i = \mathrm{proj}\big( c \odot \mathrm{relu}(v_i) \big)

    Time is linear, :math:`O(N C^2)`, and the state is one vector. There are no heads, and tokens
    know no positions. The softmax and the sum are fp32 under any autocast.

    With patches of p x p tokens, tokens at the same place in their patches share a sum, and tokens
    at different places do not mix. The sides of a map need not be multiples of p. The authors'
    block resizes the map instead, and does not go back.

    Args:
        embed_dims, input_resolution, init_cfg: As in :class:`BaseAttention`.
        num_heads: Must divide ``embed_dims``, and has no other effect.
        patch_size: Side p. Default: 1. The authors' models have 2, and convolutions around the
            attention.

    Raises:
        ValueError: If ``patch_size`` is no integer of at least 1.

    Cost: NC to mix; 3C² + C weights.

    Published: width 0.5 70.2, 1.0 78.1, 2.0 81.2, at 256 pixels.

    Source: MobileViTv2 (arXiv 2206.02680).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SeparableAttention
        >>> attention = SeparableAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    mixes_tokens = False
    no_prefix_tokens = 'its sums are of places in the patches of a map'
    tested_options = (dict(patch_size=2),)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        patch_size: int = 1,
        init_cfg: Union[dict, List[dict], None] = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        check_counts(patch_size=patch_size)
        self.patch_size = patch_size
        self.qkv = nn.Linear(embed_dims, 1 + 2 * embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(
        self, x: Tensor, hw_shape: Tuple[int, int], mask: Optional[Tensor] = None
    ) -> Tensor:
        self.check_token_map(x, hw_shape)
        self.check_mask(mask)
        score, k, v = self.qkv(x).split([1, self.embed_dims, self.embed_dims], dim=-1)
        with no_autocast(x.device):
            scores, key, value = upcast(score, k, v)
            sizes = (*hw_shape, self.patch_size, key.dtype)
            there, elsewhere = computed_once(places_of_tokens, *sizes, like=x)
            weights = scores.masked_fill(elsewhere, float('-inf')).softmax(1)  # (B, N, places)
            contexts = weights.transpose(1, 2) @ key  # (B, places, C)
            mixed = F.relu(value) * (there @ contexts)
        return self.proj(mixed.to(v.dtype))


def places_of_tokens(
    height: int, width: int, patch_size: int, dtype: torch.dtype, device: torch.device
) -> Tuple[Tensor, Tensor]:
    """One for each token at its place in a patch, ``(N, places)``, and where it is not."""
    rows = torch.arange(height, device=device) % patch_size
    columns = torch.arange(width, device=device) % patch_size
    row = min(patch_size, width)  # of a patch
    place = (rows[:, None] * row + columns).flatten()
    count = min(patch_size, height) * row  # each has a token
    there = place[:, None] == torch.arange(count, device=device)
    return there.to(dtype), ~there
