from typing import Optional, Sequence, Tuple

import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModule, Sequential
from torch import Tensor

from .build import build_activation, build_map_norm, build_token_norm
from .feature_map import channels_last, map_to_tokens


def pad_to_multiple(x: Tensor, multiple: int) -> Tensor:
    """Add zeros at the bottom and the right of maps, so that ``multiple`` divides their sides."""
    height, width = x.shape[2:]
    bottom, right = -height % multiple, -width % multiple
    # A graph for dynamic sizes always pads. Elsewhere that would be a copy.
    known = isinstance(bottom, int) and isinstance(right, int)
    return x if known and not (bottom or right) else F.pad(x, (0, right, 0, bottom))


class OverlapPatchEmbed(BaseModule):
    """An overlapping strided convolution and a norm, which turn a map into fewer tokens.

    A side of S pixels becomes ⌈S / stride⌉ tokens.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels of the tokens.
        kernel_size: Odd side of the kernel, larger than ``stride``.
        stride: Downsampling rate.
        norm_cfg: Config of the norm. Default: ``dict(type='LN', eps=1e-6)``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import OverlapPatchEmbed
        >>> embed = OverlapPatchEmbed(3, 64, kernel_size=7, stride=4)
        >>> tokens, hw_shape = embed(torch.randn(1, 3, 30, 50))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 104, 64]), (8, 13))
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        kernel_size: int,
        stride: int,
        norm_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__()
        self.projection = nn.Conv2d(
            in_channels, embed_dims, kernel_size, stride=stride, padding=kernel_size // 2
        )
        self.norm = build_token_norm(norm_cfg or dict(type='LN', eps=1e-6), embed_dims)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = self.projection(channels_last(x))  # (B, C, H', W')
        return self.norm(map_to_tokens(x)), (x.shape[2], x.shape[3])


class PatchEmbed(BaseModule):
    """A convolution of stride p over p x p patches and a norm.

    A side of S pixels becomes ⌈S / p⌉ tokens. Inputs are zero-padded to a multiple of p. Without
    ``ceil_mode`` it becomes ⌊S / p⌋ tokens, and the rest of the input is dropped.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels of the tokens.
        patch_size: Side p.
        norm: Whether there is a norm. Default: True.
        norm_cfg: Config of the norm. Default: ``dict(type='LN')``.
        ceil_mode: Whether sides are rounded up. Default: True.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import PatchEmbed
        >>> tokens, hw_shape = PatchEmbed(3, 64, patch_size=4)(torch.randn(1, 3, 30, 50))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 104, 64]), (8, 13))
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        patch_size: int,
        norm: bool = True,
        norm_cfg: Optional[dict] = None,
        ceil_mode: bool = True,
    ) -> None:
        super().__init__()
        self.projection = nn.Conv2d(in_channels, embed_dims, patch_size, stride=patch_size)
        self.norm: nn.Module = nn.Identity()
        if norm:
            self.norm = build_token_norm(norm_cfg or dict(type='LN'), embed_dims)
        self.patch_size, self.ceil_mode = patch_size, ceil_mode

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = channels_last(x)
        if self.ceil_mode:
            x = pad_to_multiple(x, self.patch_size)
        x = self.projection(x)  # (B, C, H', W')
        return self.norm(map_to_tokens(x)), (x.shape[2], x.shape[3])


class PatchMerging(BaseModule):
    """Concatenate the four tokens of each 2 x 2 patch, then apply a norm and a linear, as in Swin.

    A side of S tokens becomes ⌈S / 2⌉ tokens. Maps are zero-padded to even sides.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels of the tokens.
        norm_cfg: Config of the norm. Default: ``dict(type='LN')``.
        norm_last: Whether the norm follows the linear, as in SwinV2. Default: False.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import PatchMerging
        >>> tokens, hw_shape = PatchMerging(64, 128)(torch.randn(1, 64, 8, 13))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 28, 128]), (4, 7))
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        norm_cfg: Optional[dict] = None,
        norm_last: bool = False,
    ) -> None:
        super().__init__()
        channels = embed_dims if norm_last else 4 * in_channels
        self.norm = build_token_norm(norm_cfg or dict(type='LN'), channels)
        self.norm_last = norm_last
        self.reduction = nn.Linear(4 * in_channels, embed_dims, bias=False)

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = pad_to_multiple(x, 2)
        height, width = x.shape[2:]
        x = x.view(*x.shape[:2], height // 2, 2, width // 2, 2)
        x = x.permute(0, 2, 4, 5, 3, 1).flatten(
            3
        )  # (B, H', W', 4 * C_in), the four column by column
        tokens, hw_shape = x.flatten(1, 2), (x.shape[1], x.shape[2])
        if self.norm_last:
            return self.norm(self.reduction(tokens)), hw_shape
        return self.reduction(self.norm(tokens)), hw_shape


class ConvPatchEmbed(BaseModule):
    """3 x 3 convolutions, each with a norm and an activation.

    A side of S pixels becomes ⌈S / s⌉ tokens, s the product of the strides.

    Args:
        in_channels: Channels of the input map.
        embed_dims: Channels of the tokens, the output of the last convolution.
        strides: Stride of each convolution.
        hidden_dims: Channels of the convolutions before the last. Default: 32.
        norm_cfg: Config of the norms of maps. Default: ``dict(type='BN')``.
        act_cfg: Config of the activations. Default: ``dict(type='ReLU')``.
        last_act: Whether the last convolution has an activation too. Default: True.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import ConvPatchEmbed
        >>> embed = ConvPatchEmbed(3, 64, strides=(2, 1, 2))
        >>> tokens, hw_shape = embed(torch.randn(1, 3, 30, 50))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 104, 64]), (8, 13))
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        strides: Sequence[int],
        hidden_dims: int = 32,
        norm_cfg: Optional[dict] = None,
        act_cfg: Optional[dict] = None,
        last_act: bool = True,
    ) -> None:
        super().__init__()
        self.layers = Sequential()
        channels = [in_channels, *[hidden_dims] * (len(strides) - 1), embed_dims]
        for inputs, outputs, stride in zip(channels, channels[1:], strides):
            conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
            norm = build_map_norm(norm_cfg or dict(type='BN'), outputs)
            act = build_activation(act_cfg or dict(type='ReLU', inplace=True))
            self.layers.extend([conv, norm, act])
        if not last_act:
            del self.layers[-1]

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C_in, H, W) -> tokens (B, N, C), (H', W')`` with ``N = H' * W'``."""
        x = self.layers(channels_last(x))  # (B, C, H', W')
        return x.permute(0, 2, 3, 1).flatten(1, 2), (x.shape[2], x.shape[3])


class PooledPatchEmbed(BaseModule):
    """Adaptive average pooling to p x p tokens, a 1 x 1 convolution, a norm and GELU, as in PVTv2.

    Args:
        embed_dims: Channels C.
        pool_size: Side p. A side with fewer tokens repeats some.
        norm_cfg: Config of the norm. Default: ``dict(type='LN')``.

    Raises:
        ValueError: For a ``pool_size`` that is no positive integer.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import PooledPatchEmbed
        >>> tokens, hw_shape = PooledPatchEmbed(64, pool_size=7)(torch.randn(1, 64, 30, 5))
        >>> tokens.shape, hw_shape
        (torch.Size([1, 49, 64]), (7, 7))
    """

    def __init__(self, embed_dims: int, pool_size: int, norm_cfg: Optional[dict] = None) -> None:
        super().__init__()
        if not isinstance(pool_size, int) or pool_size < 1:
            raise ValueError(f'pool_size must be a positive integer, got {pool_size!r}')
        self.projection = nn.Conv2d(embed_dims, embed_dims, 1)
        self.norm = build_token_norm(norm_cfg or dict(type='LN'), embed_dims)
        self.pool_size = pool_size

    def forward(self, x: Tensor) -> Tuple[Tensor, Tuple[int, int]]:
        """``(B, C, H, W) -> tokens (B, p * p, C), (p, p)``."""
        x = self.projection(F.adaptive_avg_pool2d(channels_last(x), self.pool_size))
        return F.gelu(self.norm(map_to_tokens(x))), (self.pool_size, self.pool_size)
