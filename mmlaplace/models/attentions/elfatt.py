from typing import Any, Optional, Tuple

import torch
from mmengine.model import ModuleList
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.backend import exporting, split_at

from ..layers import DepthwiseConv, join_windows, softmax_attention, split_windows
from ..layers.checks import check_counts
from ..layers.tables import computed_once
from .base import QKVAttention
from .cross_shaped import split_heads
from .efficient import efficient_attention
from .frame import Frame


@MODELS.register_module()
class ELFATTAttention(QKVAttention):
    r"""ELFATT: half of the heads are linear over the whole map, half have softmax inside blocks.

    With the first half of the heads :math:`\bar Q, \bar K, \bar V`, the others
    :math:`\tilde Q, \tilde K, \tilde V`, and f that cuts a map into blocks:

    .. math::
        \bar Y = \mathrm{softmax}(\bar Q)\, \mathrm{softmax}(\bar K)^T\, \bar V, \quad
        f(\tilde Y) = \mathrm{softmax}\big(f(\tilde Q) f(\tilde K)^T / \sqrt{d}\big)\, f(\tilde V)

        \mathrm{out} = \mathrm{proj}\big( [\bar Y + \mathrm{DWConv}(\bar V), \;
            \tilde Y + f^{-1}\, \mathrm{DWConv}(f(\tilde V))] \big)

    The linear half is :class:`EfficientLinearAttention`: a softmax of queries over channels, and
    one of keys over tokens. The convolution of the other half does not cross the borders of blocks.
    If blocks do not divide the map, the last ones are cut. Of an odd number of heads, one more has
    blocks. A single head is split into halves of its channels. Time is linear,
    :math:`O(N C (d + w^2))`. The softmaxes over the map are fp32 under any autocast.

    The authors have not released their code. Their formula does not name the axes of the softmaxes
    of the first half. These are here as in Efficient Attention, with which the authors compare the
    error of these heads. It says neither the size nor the shape of a block, so blocks are square,
    of Swin's size by default.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        window_size: Side w of a block, in tokens. Default: 7.
        **frame: Fields of :class:`Frame` that differ from ``Frame(lepe_kernel=3)``.

    Raises:
        ValueError: If ``window_size < 1``, or for a single head of one channel.

    Cost: NC(d + w) to mix; 4C² + 9C weights.

    Published: CSWin-T 83.1, CSWin-B 84.7, Swin-T 82.7, Swin-B 84.5.

    Source: ELFATT (arXiv 2501.06098).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import ELFATTAttention
        >>> attention = ELFATTAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(lepe_kernel=3)
    fixed_options = ('sr_ratio',)
    no_multihead = no_prefix_tokens = 'its windows are of a map'
    tested_options = (dict(window_size=3, lepe_filters='head_channel', rope=True),)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        window_size: int = 7,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        check_counts(window_size=window_size)
        if embed_dims == 1:
            raise ValueError(f'both halves need a channel, got embed_dims={embed_dims}')
        self.window_size = window_size
        # The axis of (B, heads, N, d) that is split, and where: heads, or the channels of one.
        self.half_of = 1 if num_heads > 1 else 3
        self.first = num_heads // 2 if num_heads > 1 else embed_dims // 2
        self.far_dims = self.first * (self.head_dims if num_heads > 1 else 1)
        if self.lepe is not None:
            frame = self.frame
            far_heads, near_heads = (self.first, num_heads - self.first)
            if num_heads == 1:  # whose channels are halved
                far_heads, near_heads = (1, 1)
            near_dims = embed_dims - self.far_dims
            options = (frame.lepe_filters, frame.lepe_bias)
            self.lepe = ModuleList(
                [
                    DepthwiseConv(self.far_dims, frame.lepe_kernel, far_heads, *options),
                    DepthwiseConv(near_dims, frame.lepe_kernel, near_heads, *options),
                ]
            )

    def sides(self, hw_shape: Tuple[int, int]) -> Tuple[int, int]:
        """Height and width of a block, which are not longer than those of the map."""
        height, width = (min(self.window_size, side) for side in hw_shape)
        return height, width

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        side = self.sides(hw_shape)
        mask = self.mask(v, hw_shape, side)
        far_parts, near_parts = [], []
        for x in (q, k, v):  # (B, heads, N, d), with half of the heads or channels for each
            first, second = split_at(x, self.first, self.half_of)
            far_parts.append(first)
            blocks = split_windows(self.merge_heads(second), hw_shape, side)
            near_parts.append(split_heads(blocks, second.shape[3]))
        far = efficient_attention(*far_parts)
        q, k, v = near_parts  # (B * blocks, heads, h * w, d)
        near = softmax_attention(q, k, v, mask)
        near = split_heads(join_windows(self.merge_heads(near), hw_shape, side), near.shape[3])
        return torch.cat([far, near], dim=self.half_of)

    def mask(self, v: Tensor, hw_shape: Tuple[int, int], side: Tuple[int, int]) -> Optional[Tensor]:
        """The places of blocks that are no padding, ``(B * blocks, 1, 1, h * w)``. None for all."""
        if not exporting() and not any(size % s for size, s in zip(hw_shape, side)):
            return None
        places = computed_once(places_with_tokens, tuple(hw_shape), side, like=v)
        return places.repeat(v.shape[0], 1, 1, 1)

    def local_branch(self, v: Tensor, x: Tensor, hw_shape: Tuple[int, int]) -> Optional[Tensor]:
        """The convolution of V, inside blocks for the second half."""
        if self.lepe is None:
            return None
        lepe: Any = self.lepe
        far_lepe, near_lepe = lepe
        side = self.sides(hw_shape)
        far, near = split_at(v, self.far_dims, 2)
        blocks = near_lepe(split_windows(near, hw_shape, side), side)
        return torch.cat([far_lepe(far, hw_shape), join_windows(blocks, hw_shape, side)], dim=2)


def places_with_tokens(
    hw_shape: Tuple[int, int], side: Tuple[int, int], device: torch.device
) -> Tensor:
    """The places of blocks that are no padding, ``(blocks, 1, 1, h * w)``."""
    tokens = torch.ones(1, hw_shape[0] * hw_shape[1], 1, device=device)
    places = split_windows(tokens, hw_shape, side) > 0  # (blocks, h * w, 1)
    return places.transpose(1, 2).unsqueeze(1)
