from typing import Any, Tuple

import torch.nn as nn
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from .depthwise import DepthwiseConv
from .feature_map import map_to_tokens, tokens_to_map


class DeformableConv(DepthwiseConv):
    """A depthwise convolution whose places of sampling a further convolution shifts.

    Shifts start at zero, where it is :class:`DepthwiseConv`. All channels have the same shifts. The
    sampling runs in fp32 under any autocast.

    Args:
        embed_dims, kernel_size, num_heads, filters_per, bias: As in :class:`DepthwiseConv`.

    Raises:
        ImportError: Without torchvision.

    Source: Deformable Convolutional Networks (arXiv 1703.06211).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.deformable import DeformableConv
        >>> DeformableConv(64, 5, num_heads=2)(torch.randn(1, 6 * 8, 64), hw_shape=(6, 8)).shape
        torch.Size([1, 48, 64])
    """

    def __init__(self, embed_dims: int, kernel_size: int = 3, *args: Any, **kwargs: Any) -> None:
        super().__init__(embed_dims, kernel_size, *args, **kwargs)
        try:
            # Not mmcv's: mmcv-lite has no ops, and the full one wants batches that 32 divides.
            from torchvision.ops import deform_conv2d
        except ImportError as error:
            raise ImportError(
                f'a deformable convolution needs torchvision, which did not import ({error}); '
                'install the torchvision that belongs to your torch, as '
                'https://pytorch.org/get-started says'
            ) from error
        self.deform = deform_conv2d
        self.offset = nn.Conv2d(
            embed_dims, 2 * kernel_size**2, kernel_size, padding=kernel_size // 2
        )
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        maps = tokens_to_map(x, hw_shape)  # (B, C, H, W)
        offset = self.offset(maps)  # (B, 2 k^2, H, W)
        weight, bias = self.filters()
        with no_autocast(x.device):
            wide = upcast(maps, offset, weight)
            out = self.deform(
                *wide, None if bias is None else upcast(bias)[0], padding=self.conv.padding
            )
        return map_to_tokens(out.to(x.dtype))
