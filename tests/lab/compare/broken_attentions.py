"""Attentions with one fault each, which the contract must find at the line that FAULT marks."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from mmlaplace.models import BaseAttention, QKVAttention
from mmlaplace.models.layers import linear_attention
from mmlaplace.ops.precision import no_autocast, upcast


class Right(QKVAttention):
    """A linear attention without a fault."""

    def phi(self, q, k):
        with no_autocast(q.device):
            return [F.relu(x) + 0.1 for x in upcast(q, k)]

    def mix(self, q, k, v, hw_shape):
        query, key = self.phi(q, k)
        return linear_attention(query, key, v, 1e-6)


class CrossesImages(Right):
    """point: batch"""

    def mix(self, q, k, v, hw_shape):  # FAULT
        return super().mix(q, k, v, hw_shape) + v.mean((0, 2), keepdim=True)


class SquareOnly(Right):
    """point: any size"""

    def mix(self, q, k, v, hw_shape):
        side = int(v.shape[2] ** 0.5)
        v = v.reshape(*v.shape[:2], side, side, v.shape[3])  # FAULT
        return super().mix(q, k, v.flatten(2, 3), hw_shape)


class ForgetsTheMap(Right):
    """point: positions"""

    def mix(self, q, k, v, hw_shape):  # FAULT
        return super().mix(q, k, v * torch.linspace(0, 1, v.shape[2])[:, None], hw_shape)


class GivesPlacesToClassTokens(Right):
    """point: prefix"""

    no_prefix_tokens = ''

    def mix(self, q, k, v, hw_shape):  # FAULT
        height, width = hw_shape
        place = torch.arange(v.shape[2], dtype=v.dtype) % width
        return super().mix(q, k, v * (1 + place[:, None]), hw_shape)


class DividesByZero(Right):
    """point: finite"""

    def mix(self, q, k, v, hw_shape):
        v = v / v.std(2, keepdim=True)  # FAULT
        return super().mix(q, k, v, hw_shape)


class OverflowsInHalf(QKVAttention):
    """point: fp16"""

    def mix(self, q, k, v, hw_shape):
        query, key = F.relu(q), F.relu(k)
        norm = query @ key.sum(2, keepdim=True).transpose(-2, -1)  # FAULT
        return query @ (key.transpose(-2, -1) @ (v / v.shape[2])) / (norm / v.shape[2] + 1e-6)


class WrongBackward(Right):
    """point: gradients"""

    def mix(self, q, k, v, hw_shape):  # FAULT
        return super().mix(q, k, v + v.detach(), hw_shape)


class UnusedParameter(Right):
    """point: parameters"""

    def __init__(self, embed_dims, num_heads, input_resolution, **kwargs):
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.scale = nn.Parameter(torch.ones(embed_dims))

    def mix(self, q, k, v, hw_shape):  # FAULT
        return super().mix(q, k, v, hw_shape)


class IgnoresTheMask(BaseAttention):
    """point: mask"""

    def __init__(self, embed_dims, num_heads, input_resolution):
        super().__init__(embed_dims, num_heads, input_resolution)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x, hw_shape, mask=None):  # FAULT
        return self.proj(x + x.mean(1, keepdim=True))


class LeaksHidden(Right):
    """point: mask"""

    accepts_mask = True

    def mix(self, q, k, v, hw_shape, mask=None):  # FAULT
        return super().mix(q, k, v, hw_shape)


class KeepsAnAverage(Right):
    """point: repeat"""

    def __init__(self, embed_dims, num_heads, input_resolution, **kwargs):
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.register_buffer('mean', torch.zeros(()))

    def mix(self, q, k, v, hw_shape):  # FAULT
        self.mean = self.mean.lerp(v.detach().mean().to(self.mean), 0.1)
        return super().mix(q, k, v, hw_shape)


class UnsavedState(Right):
    """point: save"""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.drawn = torch.rand(())

    def mix(self, q, k, v, hw_shape):  # FAULT
        return super().mix(q, k, v * self.drawn, hw_shape)


class BranchesOnAValue(Right):
    """point: compile"""

    def mix(self, q, k, v, hw_shape):
        if v.sum().item() > 0:  # FAULT
            v = v * 2
        return super().mix(q, k, v, hw_shape)


class FixedSizeInExport(Right):
    """point: onnx"""

    def mix(self, q, k, v, hw_shape):  # FAULT
        places = torch.arange(int(v.shape[2]) - 1, -1, -1).sort().indices.flip(0)
        return super().mix(q, k, v[:, :, places], hw_shape)


class SquareOfTokens(Right):
    """point: linear"""

    def mix(self, q, k, v, hw_shape):
        query, key = self.phi(q, k)
        weights = query @ key.transpose(-2, -1)  # FAULT
        return (weights / weights.sum(-1, keepdim=True)).to(v.dtype) @ v
