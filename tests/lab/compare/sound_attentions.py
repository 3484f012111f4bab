"""Ten attentions that look strange and are right. The contract must accuse none of them."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from mmlaplace.models import BaseAttention, Frame, QKVAttention
from mmlaplace.models.layers import linear_attention
from mmlaplace.ops.precision import no_autocast, upcast

PAIRS = 'each query reads each key'


class FloatEverywhere(QKVAttention):
    """Everything is cast to fp32, fp64 too, as most people write it."""

    frame = Frame(lepe_kernel=5)

    def mix(self, q, k, v, hw_shape):
        with torch.autocast(v.device.type, enabled=False):
            query = torch.cat([q.float().softmax(-1), (-q.float()).softmax(-1)], -1)
            key = torch.cat([k.float().softmax(-1), (-k.float()).softmax(-1)], -1)
            context = key.transpose(-2, -1) @ v.float() / k.shape[2]
            total = query @ key.mean(2, keepdim=True).transpose(-2, -1)
            return (query @ context / (total + 1e-6)).to(v.dtype)


class MultiheadOfTorch(BaseAttention):
    """torch's own module, with its dropout."""

    not_promised = dict(linear=PAIRS, onnx='its export knows one number of tokens')

    def __init__(self, embed_dims, num_heads, input_resolution, init_cfg=None):
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        self.attn = nn.MultiheadAttention(embed_dims, num_heads, dropout=0.1, batch_first=True)

    def forward(self, x, hw_shape, mask=None):
        self.check_token_map(x, hw_shape)
        self.check_mask(mask)
        return self.attn(x, x, x, need_weights=False)[0]


class LoudOutputs(QKVAttention):
    """Outputs of order 1,000, by a gain for each channel in fp32, and dropouts on both sides."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gain = nn.Parameter(torch.full((self.embed_dims,), 5e3))

    def mix(self, q, k, v, hw_shape):
        with no_autocast(v.device):
            query, key, value = upcast(q, k, F.dropout(v, 0.2, self.training))
            out = linear_attention(F.softplus(query), F.softplus(key), value, 1e-6)
            return F.dropout(out, p=0.2, training=self.training)

    def project_out(self, out, projected):
        with no_autocast(out.device):
            return upcast(super().project_out(out, projected))[0] * self.gain


class LargeKernelGate(BaseAttention):
    """No queries and no keys: a large convolution and the mean of the map gate the input."""

    def __init__(self, embed_dims, num_heads, input_resolution, init_cfg=None):
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        self.inner = nn.Linear(embed_dims, embed_dims)
        self.conv = nn.Conv2d(embed_dims, embed_dims, 7, padding=3, groups=embed_dims)
        self.squeeze = nn.Sequential(nn.Linear(embed_dims, 4), nn.ReLU(), nn.Linear(4, embed_dims))
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x, hw_shape, mask=None):
        self.check_mask(mask)
        inner = F.gelu(self.inner(x))
        height, width = hw_shape
        maps = inner.transpose(1, 2).reshape(inner.shape[0], self.embed_dims, height, width)
        local = self.conv(maps).flatten(2).transpose(1, 2)
        gate = self.squeeze(inner.mean(1, keepdim=True)).sigmoid()
        return self.proj(local * gate * inner)


class DecaysAlongRows(QKVAttention):
    """A weight of 0.995 that must stay below 1, and a parameter of integers."""

    not_promised = dict(linear=PAIRS)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.decay = nn.Parameter(torch.full((self.num_heads, 1, 1), 0.995))
        self.power = nn.Parameter(torch.tensor([1, 2]), requires_grad=False)

    def mix(self, q, k, v, hw_shape):
        with no_autocast(v.device):
            query, key, value, decay = upcast(q, k, v, self.decay)
            height, width = hw_shape
            rows = torch.arange(height, device=v.device).repeat_interleave(width)
            columns = torch.arange(width, device=v.device).repeat(height)
            apart = [(places[:, None] - places).abs() for places in (rows, columns)]
            apart = apart[0] * self.power[0] + apart[1] * self.power[1]
            # The rate of a decay is only a number for weights below 1.
            logits = apart.to(value.dtype) * -(1 - decay).sqrt()
            logits = logits + query @ key.transpose(-2, -1) * self.head_dims**-0.5
            return (logits.softmax(-1) @ value).to(v.dtype)


class RowsThenColumns(QKVAttention):
    """Softmax along each row, then along each column."""

    not_promised = dict(linear='rows and columns are as long as the map')

    def mix(self, q, k, v, hw_shape):
        maps = [x.unflatten(2, hw_shape) for x in (q, k, v)]
        with no_autocast(v.device):
            query, key, value = upcast(*maps)
            value = F.scaled_dot_product_attention(query, key, value)
            query, key, value = (x.transpose(2, 3) for x in (query, key, value))
            value = F.scaled_dot_product_attention(query, key, value).transpose(2, 3)
        return value.flatten(2, 3).to(v.dtype)


class PositiveRandomFeatures(QKVAttention):
    """Exponentials of fixed random projections, stabilised within each head of each image."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        projection = torch.randn(self.head_dims, 32)
        self.register_buffer('projection', projection / projection.norm(dim=0))

    def features(self, x, dims):
        x = x * self.head_dims**-0.25
        logits = x @ self.projection.to(x.dtype) - x.square().sum(-1, keepdim=True) / 2
        return (logits - logits.amax(dims, keepdim=True)).exp() + 1e-6

    def mix(self, q, k, v, hw_shape):
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = self.features(query, -1), self.features(key, (-2, -1))
            return linear_attention(query, key, value, 1e-12).to(v.dtype)


class MasksLinearly(QKVAttention):
    """Linear without a mask. With one, the weights of all pairs are masked."""

    accepts_mask = True

    def mix(self, q, k, v, hw_shape, mask=None):
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = F.relu(query) + 0.05, F.relu(key) + 0.05
            if mask is None:
                return linear_attention(query, key, value, 0).to(v.dtype)
            weights = (query @ key.transpose(-2, -1)) * mask
            return (weights @ value / weights.sum(-1, keepdim=True)).to(v.dtype)


class FourierOfTheMap(BaseAttention):
    """A filter of frequencies, whose table is resized to the map."""

    not_promised = dict(
        onnx='ONNX has no complex numbers', parameters='MKL transforms no empty batch'
    )

    def __init__(self, embed_dims, num_heads, input_resolution, init_cfg=None):
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        self.filter = nn.Parameter(torch.randn(2, embed_dims, 7, 4) / 4)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x, hw_shape, mask=None):
        self.check_mask(mask)
        height, width = hw_shape
        with no_autocast(x.device):
            maps, table = upcast(x.transpose(1, 2).unflatten(2, hw_shape), self.filter)
            table = F.interpolate(table, (height, width // 2 + 1), mode='bilinear')
            waves = torch.fft.rfft2(maps, norm='ortho') * torch.complex(table[0], table[1])
            maps = torch.fft.irfft2(waves, s=(height, width), norm='ortho')
        return self.proj(maps.flatten(2).transpose(1, 2).to(x.dtype))


class DropsItsPath(QKVAttention):
    """In training, whole images lose the mixed values, by a draw of its own."""

    def mix(self, q, k, v, hw_shape):
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            out = linear_attention(F.elu(query) + 1, F.elu(key) + 1, value, 1e-6)
            if self.training:
                kept = torch.rand(out.shape[0], 1, 1, 1, device=out.device) < 0.8
                out = out * kept / 0.8
        return out.to(v.dtype)
