from typing import Set, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.model import BaseModule
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from .feature_map import map_to_tokens


class RotaryEmbedding2D(nn.Module):
    r"""Rotary position embedding over rows and columns.

    One half of the coordinate pairs of a head turns by the row, the other by the column, pair p
    by :math:`\mathrm{position} \cdot \theta^{-p / P}` for P pairs an axis. Positions are whole
    token steps, so a larger image continues them. Coordinates beyond the largest multiple of 4
    are left as they are.

    Args:
        head_dims: Channels d of a head.
        theta: Base :math:`\theta` of the wavelengths. Default: 100, as maps have tens of rows,
            not thousands (RoPE-ViT, arXiv 2403.13298).
    """

    def __init__(self, head_dims: int, theta: float = 100.0) -> None:
        super().__init__()
        self.pairs = head_dims // 4
        self.rotated_dims = 4 * self.pairs
        self.theta = theta

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Turn ``(B, heads, N, d)``, ``N = H * W``; same shape and dtype."""
        height, width = hw_shape
        with no_autocast(x.device):
            (turned,) = upcast(x[..., : self.rotated_dims])
            # No buffer: a model in half precision would round it.
            exponents = torch.arange(self.pairs, dtype=turned.dtype, device=x.device)
            frequencies = self.theta ** (-exponents / max(self.pairs, 1))
            rows = torch.arange(height, device=x.device).repeat_interleave(width)
            columns = torch.arange(width, device=x.device).repeat(height)
            angles = torch.cat(
                [rows[:, None] * frequencies, columns[:, None] * frequencies], dim=-1
            )
            cos, sin = angles.cos(), angles.sin()
            first, second = turned.chunk(2, dim=-1)
            turned = torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)
            return torch.cat([turned.to(x.dtype), x[..., self.rotated_dims :]], dim=-1)


def resize_map(x: Tensor, hw_shape: Tuple[int, int], mode: str = 'bilinear') -> Tensor:
    """Interpolate a map ``(1, C, H, W)`` to another size; the same map where it has that size.

    In at least fp32; what is no map, such as a tensor of another arch, comes back as it is.
    """
    if x.dim() != 4 or tuple(x.shape[2:]) == tuple(hw_shape):
        return x
    resized = F.interpolate(upcast(x)[0], tuple(hw_shape), mode=mode, align_corners=False)
    return resized.to(x.dtype)


class PositionEmbedding(BaseModule):
    """Add a learned vector to each token of a map, and put a class token in front of them.

    Args:
        embed_dims: Channels C.
        resolution: Height and width of the token map at the training image size. For other maps
            the positions are resized bilinearly, in the forward and when weights are loaded.
        class_token: Whether there is a class token; it has a position of its own. Default: False.
        drop_rate: Dropout rate of the sums. Default: 0.
        decay: Whether weight decay acts on the positions, as the authors of SOFT and PVT have it;
            those of DeiT do not. The class token itself never decays. Default: True.
    """

    def __init__(
        self,
        embed_dims: int,
        resolution: Tuple[int, int],
        class_token: bool = False,
        drop_rate: float = 0.0,
        decay: bool = True,
    ) -> None:
        super().__init__()
        self.decay = decay
        self.map = nn.Parameter(torch.zeros(1, embed_dims, *resolution))
        if class_token:
            self.class_token = nn.Parameter(torch.zeros(1, 1, embed_dims))
            self.class_position = nn.Parameter(torch.zeros(1, 1, embed_dims))
        else:
            self.class_token = None
        self.drop = nn.Dropout(drop_rate)
        for parameter in self.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, N, C) -> (B, N, C)`` for a map ``(H, W)``, or N + 1 with the class token first."""
        x = x + map_to_tokens(resize_map(self.map, hw_shape))
        if self.class_token is not None:
            first = self.class_token + self.class_position
            x = torch.cat([first.expand(x.shape[0], -1, -1), x], dim=1)
        return self.drop(x)

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters that are not to decay."""
        return {'class_token'} if self.decay else {'map', 'class_token', 'class_position'}

    def resize_weight(self, name: str, value: Tensor) -> Tensor:
        """The map of a checkpoint in the size of this one."""
        return resize_map(value, self.map.shape[2:]) if name == 'map' else value
