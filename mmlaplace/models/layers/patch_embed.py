from typing import Sequence, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor

from .feature_map import map_to_tokens


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Zeros at the bottom and the right of maps ``(B, C, H, W)``, to sides divisible by one."""
    height, width = x.shape[2:]
    return F.pad(x, (0, -width % multiple, 0, -height % multiple))


class OverlapPatchEmbed(BaseModule):
    """An overlapping strided convolution and a LayerNorm: a map into fewer tokens.

    A side of S pixels becomes ⌈S / stride⌉ tokens.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels of the tokens.
        kernel_size: Odd side of the kernel, larger than ``stride``.
        stride: Downsampling rate.
    """

    def __init__(self, in_channels: int, embed_dims: int, kernel_size: int, stride: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            in_channels, embed_dims, kernel_size, stride=stride, padding=kernel_size // 2
        )
        self.norm = nn.LayerNorm(embed_dims, eps=1e-6)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = self.projection(x)
        return self.norm(map_to_tokens(x)), tuple(x.shape[2:])


class PatchEmbed(BaseModule):
    """A convolution of stride p over p x p patches and a LayerNorm.

    A side of S pixels becomes ⌈S / p⌉ tokens: what is missing to the last patch is zero.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels of the tokens.
        patch_size: Side p.
        norm: Whether there is a LayerNorm. Default: True.
    """

    def __init__(
        self, in_channels: int, embed_dims: int, patch_size: int, norm: bool = True
    ) -> None:
        super().__init__()
        self.projection = nn.Conv2d(in_channels, embed_dims, patch_size, stride=patch_size)
        self.norm = nn.LayerNorm(embed_dims) if norm else nn.Identity()
        self.patch_size = patch_size

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = self.projection(pad_to_multiple(x, self.patch_size))
        return self.norm(map_to_tokens(x)), tuple(x.shape[2:])


class PatchMerging(BaseModule):
    """The four tokens of each 2 x 2 patch side by side, a LayerNorm and a linear, as in Swin.

    A side of S tokens becomes ⌈S / 2⌉: what is missing to the last patch is zero.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels of the tokens.
    """

    def __init__(self, in_channels: int, embed_dims: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * in_channels)
        self.reduction = nn.Linear(4 * in_channels, embed_dims, bias=False)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = pad_to_multiple(x, 2)
        x = torch.cat([x[..., i::2, j::2] for j in (0, 1) for i in (0, 1)], dim=1)
        return self.reduction(self.norm(map_to_tokens(x))), tuple(x.shape[2:])


class ConvPatchEmbed(BaseModule):
    """Convolutions 3 x 3, each with BatchNorm and ReLU.

    A side of S pixels becomes ⌈S / s⌉ tokens, s the product of the strides.

    Args:
        in_channels: Channels of the input map.
        channels: Channels behind each convolution; the last are those of the tokens.
        strides: Stride of each convolution.
    """

    def __init__(self, in_channels: int, channels: Sequence[int], strides: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.Sequential()
        for out_channels, stride in zip(channels, strides):
            conv = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1)
            self.layers.extend([conv, nn.BatchNorm2d(out_channels), nn.ReLU()])
            in_channels = out_channels

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = self.layers(x)
        return map_to_tokens(x), tuple(x.shape[2:])
