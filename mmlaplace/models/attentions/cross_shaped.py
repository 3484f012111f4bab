from typing import Any, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from ..layers import DepthwiseConv, map_to_tokens, softmax_attention, tokens_to_map
from ..layers.checks import check_counts
from ..layers.shared_conv import SharedConv2d
from ..layers.tables import computed_once
from ..layers.windows import Windows, windows_of
from .base import QKVAttention
from .frame import Frame

Sides = Tuple[int, int]


class Stripes(NamedTuple):
    """The stripes in which some of the heads mix tokens.

    Attributes:
        heads: Which heads these are.
        side: Height and width of a stripe.
        windows: How the tokens of a map lie in the stripes.
    """

    heads: slice
    side: Sides
    windows: Windows


class StripedConv2d(SharedConv2d):
    """A depthwise convolution of tokens that does not cross the borders of stripes.

    ``(B, N, C) -> (B, N, C)``. The channels of each head are convolved inside the stripes of it.
    """

    def forward(  # type: ignore[override]
        self, x: Tensor, stripes: Sequence[Stripes]
    ) -> Tensor:
        weight, bias = self.weight, self.bias
        if x.shape[2] > self.in_channels:
            weight, bias = self.filters(x.shape[2] // self.in_channels)
        dims, outs = x.shape[2] // stripes[-1].heads.stop, []
        for heads, side, windows in stripes:
            own = slice(heads.start * dims, heads.stop * dims)
            maps = F.conv2d(
                tokens_to_map(windows.split(x[..., own]), side),
                weight[own],
                None if bias is None else bias[own],
                padding=self.padding,
                groups=own.stop - own.start,
            )
            outs.append(windows.join(map_to_tokens(maps)))
        return torch.cat(outs, dim=2)


class StripedConv(DepthwiseConv):
    """:class:`DepthwiseConv` inside stripes, which take the place of the sides of the map."""

    conv_types = (StripedConv2d, StripedConv2d)

    def forward(  # type: ignore[override]
        self, x: Tensor, stripes: Sequence[Stripes]
    ) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        return self.conv(x, stripes)


@MODELS.register_module()
class CrossShapedAttention(QKVAttention):
    r"""Softmax attention in stripes: half of the heads in columns, half in rows, as in CSWin.

    .. math:: \mathrm{softmax}(Q K^T / \sqrt{d})\, V \text{ inside each stripe}

    The first half of the heads has stripes of ``stripe_width`` columns and all rows, the second of
    ``stripe_width`` rows and all columns. Of an odd number of heads, the first half has one more.
    The depthwise convolution of V is computed inside stripes too, so it does not cross their
    borders. If the stripes do not divide the map, queries, keys and values are zero-padded on both
    sides. Time is :math:`O(N (H + W) s C)` for stripes of s tokens.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        stripe_width: Width s of a stripe, in tokens. A stripe that is wider than the map shrinks.
            Default: 7.
        **frame: Fields of :class:`Frame` that differ from ``Frame(lepe_kernel=3)``.

    Raises:
        ValueError: If ``stripe_width < 1``.

    Cost: N(H + W)sC, softmax in stripes of s tokens to mix; 4C² + 9C weights.

    Published: T 82.8, S 83.6, B 84.2.

    Source: CSWin Transformer (arXiv 2107.00652).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import CrossShapedAttention
        >>> attention = CrossShapedAttention(64, 2, input_resolution=(14, 14), stripe_width=2)
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(lepe_kernel=3)
    lepe_type = StripedConv
    fixed_options = ('sr_ratio',)
    not_promised = dict(linear='stripes are as long as the map')
    no_multihead = no_prefix_tokens = 'its stripes are rows and columns of a map'
    tested_options = (dict(stripe_width=2, lepe_filters='head_channel', rope=True),)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        stripe_width: int = 7,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        check_counts(stripe_width=stripe_width)
        self.stripe_width = stripe_width

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        outs = []
        for heads, _, windows in self.stripes(v, hw_shape):
            parts = []
            for x in (q, k, v):  # (B, heads, N, d)
                tokens = x[:, heads].transpose(1, 2).flatten(2)
                parts.append(split_heads(windows.split(tokens), x.shape[3]))
            mixed = softmax_attention(*parts).transpose(1, 2).flatten(2)
            outs.append(split_heads(windows.join(mixed), v.shape[3]))
        return torch.cat(outs, dim=1)

    def local_branch(self, v: Tensor, x: Tensor, hw_shape: Tuple[int, int]) -> Optional[Tensor]:
        """The convolution of V inside stripes."""
        return None if self.lepe is None else self.lepe(v, self.stripes(v, hw_shape))

    def stripes(self, like: Tensor, hw_shape: Sides) -> Tuple[Stripes, ...]:
        """The stripes of each half of the heads, on the device of a tensor."""
        sizes = (tuple(hw_shape), self.num_heads, self.stripe_width)
        return computed_once(stripes_of, *sizes, like=like)


def split_heads(x: Tensor, head_dims: int) -> Tensor:
    """``(B, N, C) -> (B, heads, N, d)``."""
    # Not by unflatten, after which the TorchScript exporter takes N for a constant.
    return x.reshape(*x.shape[:2], x.shape[2] // head_dims, head_dims).transpose(1, 2)


def stripes_of(
    hw_shape: Sides, num_heads: int, stripe_width: int, device: torch.device
) -> Tuple[Stripes, ...]:
    """Columns for the first half of the heads, and rows for the others, if there are others.

    They are windows of a map that is padded on both sides, which is a shift down and right.
    """
    height, width = hw_shape
    half = (num_heads + 1) // 2
    columns = slice(0, half), (height, min(stripe_width, width))
    rows = slice(half, num_heads), (min(stripe_width, height), width)
    found = []
    for heads, side in (columns, rows)[:num_heads]:
        top, left = -height % side[0] // 2, -width % side[1] // 2
        found.append(Stripes(heads, side, windows_of(hw_shape, side, (-top, -left), device)))
    return tuple(found)
