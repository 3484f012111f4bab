from typing import Any, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from .feature_map import DepthwiseConv, map_to_tokens, tokens_to_map
from .shared_conv import SharedConv2d
from .tables import computed_once


class SampledConv2d(SharedConv2d):
    """A depthwise convolution of maps that samples each tap at a shifted position.

    ``(B, C, H, W), (B, k^2, 2, N) -> (B, C, H, W)``. Shifts are in tokens, of rows and of columns.
    """

    def forward(self, x: Tensor, shifts: Tensor) -> Tensor:  # type: ignore[override]
        weight, bias = self.weight, self.bias
        if x.shape[1] > self.in_channels:
            weight, bias = self.filters(x.shape[1] // self.in_channels)
        height, width = x.shape[2:]
        with no_autocast(x.device):
            maps, shifts, weight = upcast(x, shifts, weight)
            taps = computed_once(taps_of_tokens, height, width, weight.shape[-1], like=x)
            rows, columns = (shifts + taps).unbind(2)  # (B, k^2, N)
            # The middles of the outer tokens lie half a token inside of -1 and 1.
            grid = torch.stack([(2 * columns + 1) / width, (2 * rows + 1) / height], dim=-1) - 1
            # Of torch, as mmcv's op wants batches that 32 divides, and torchvision's took seven
            # times as long on a CPU. A row of the kernel at a time takes less memory.
            out: Any = 0.0
            for near, filters in zip(grid.split(weight.shape[-1], dim=1), weight[:, 0].unbind(1)):
                samples = F.grid_sample(maps, near, align_corners=False)  # (B, C, k, N)
                out = out + torch.einsum('bctn,ct->bnc', samples, filters)
            if bias is not None:
                out = out + upcast(bias)[0]
        return tokens_to_map(out.to(x.dtype), (height, width))


class DeformableConv(DepthwiseConv):
    r"""A depthwise convolution whose sampling positions are shifted by a further convolution.

    With :math:`p` the position of a token, and a map of V that is interpolated between tokens and
    zero outside:

    .. math:: y(p) = \sum_{t = 1}^{k^2} w_t \, v(p + t + \Delta_t(p)) + b

    Shifts :math:`\Delta` start at zero, where the layer equals :class:`DepthwiseConv`. All channels
    share the shifts. Training keeps samples of :math:`k^2` times the memory of the map for the
    gradients. The sampling runs in fp32 under any autocast.

    Args:
        embed_dims, kernel_size, num_heads, filters_per, bias: As in :class:`DepthwiseConv`.

    Source: Deformable Convolutional Networks (arXiv 1703.06211).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.deformable import DeformableConv
        >>> DeformableConv(64, 5, num_heads=2)(torch.randn(1, 6 * 8, 64), hw_shape=(6, 8)).shape
        torch.Size([1, 48, 64])
    """

    conv_types = (SampledConv2d, SampledConv2d)

    def __init__(self, embed_dims: int, kernel_size: int = 3, *args: Any, **kwargs: Any) -> None:
        super().__init__(embed_dims, kernel_size, *args, **kwargs)
        self.offset = nn.Conv2d(
            embed_dims, 2 * kernel_size**2, kernel_size, padding=kernel_size // 2
        )
        for parameter in self.offset.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        maps = tokens_to_map(x, hw_shape)  # (B, C, H, W)
        shifts = self.offset(maps).flatten(2).unflatten(1, (-1, 2))  # (B, k^2, (y, x), N)
        return map_to_tokens(self.conv(maps, shifts))


def taps_of_tokens(height: int, width: int, size: int, device: torch.device) -> Tensor:
    """Rows and columns that each token samples without shifts, ``(k^2, 2, N)``."""
    near = torch.arange(size, device=device) - size // 2
    rows = near[:, None] + torch.arange(height, device=device)
    columns = near[:, None] + torch.arange(width, device=device)
    both = torch.broadcast_tensors(rows[:, None, :, None], columns[None, :, None])
    return torch.stack(both, dim=2).flatten(3).flatten(0, 1)
