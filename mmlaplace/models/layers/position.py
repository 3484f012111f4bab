from typing import Tuple

import torch
import torch.nn as nn
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast


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
