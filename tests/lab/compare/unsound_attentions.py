"""Twenty attentions that look right and are not, and the points of the contract that say so."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from mmlaplace.models import BaseAttention, QKVAttention
from mmlaplace.ops.precision import no_autocast, upcast


def linear_attention(query, key, value, eps=1e-6):
    """Sums over the keys, then over the features."""
    context = key.transpose(-2, -1) @ value
    total = query @ key.sum(-2, keepdim=True).transpose(-2, -1)
    return query @ context / (total + eps)


class Elu(QKVAttention):
    """The linear attention that most of these are made of. It is right itself."""

    def mix(self, q, k, v, hw_shape):
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            return linear_attention(F.elu(query) + 1, F.elu(key) + 1, value).to(v.dtype)


class StabilisedByTheBatch(QKVAttention):
    """Exponential features are made small by the largest key of all images.

    point: batch
    """

    def mix(self, q, k, v, hw_shape):
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            key = (key - key.max()).exp()
            query = (query - query.amax(-1, keepdim=True)).exp()
            return linear_attention(query, key, value, eps=1e-2).to(v.dtype)


class MasksOfAnotherImage(QKVAttention):
    """Images and heads are one axis, whose masks are in the order (heads, images).

    point: mask
    """

    accepts_mask = True
    not_promised = dict(linear='each query reads each key')

    def mix(self, q, k, v, hw_shape, mask=None):
        batch, heads, tokens, _ = q.shape
        with no_autocast(v.device):
            query, key, value = (x.flatten(0, 1) for x in upcast(q, k, v))
            logits = query @ key.transpose(-2, -1) * self.head_dims**-0.5
            if mask is not None:
                mask = mask.expand(batch, heads, tokens, key.shape[1])
                logits = logits.masked_fill(~mask.transpose(0, 1).flatten(0, 1), float('-inf'))
            out = logits.softmax(-1) @ value
        return out.unflatten(0, (batch, heads)).to(v.dtype)


class MaskTurnedRound(QKVAttention):
    """Keys are rows of the mask, and queries its columns.

    point: mask
    """

    accepts_mask = True
    not_promised = dict(linear='each query reads each key')

    def mix(self, q, k, v, hw_shape, mask=None):
        bias = None
        if mask is not None:
            mask = mask.expand(*mask.shape[:2], q.shape[2], k.shape[2]).transpose(-2, -1)
            bias = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -1e4)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


class TableOfTheLastMap(Elu):
    """The table of positions is kept for the number of tokens, not for height and width.

    point: repeat
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tables = {}

    def table(self, v, hw_shape):
        height, width = hw_shape
        if height * width not in self.tables:
            rows = torch.linspace(0, math.pi, height, device=v.device).cos()[:, None]
            columns = torch.linspace(0, math.pi, width, device=v.device).sin()
            self.tables[height * width] = (rows + columns).flatten()[:, None]
        return self.tables[height * width]

    def mix(self, q, k, v, hw_shape):
        return super().mix(q, k + self.table(v, hw_shape).to(k.dtype), v, hw_shape)


class RedrawsItsFeatures(QKVAttention):
    """Random features are drawn again at each twelfth call, also in eval mode.

    point: repeat
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.register_buffer('projection', torch.randn(self.head_dims, 2 * self.head_dims))
        self.calls = 0

    def mix(self, q, k, v, hw_shape):
        self.calls += 1
        if self.calls % 12 == 0:
            self.projection = torch.randn_like(self.projection)
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            projection = self.projection.to(query.dtype) / self.head_dims
            return linear_attention(
                F.relu(query @ projection) + 1e-3, F.relu(key @ projection) + 1e-3, value
            ).to(v.dtype)


class SumInChunks(torch.autograd.Function):
    """The sum of ``k v`` over tokens, 64 at a time."""

    @staticmethod
    def forward(ctx, key, value):
        ctx.save_for_backward(key, value)
        return key.transpose(-2, -1) @ value

    @staticmethod
    def backward(ctx, grad):
        key, value = ctx.saved_tensors
        grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        for start in range(0, max(key.shape[2] // 64, 1) * 64, 64):
            part = slice(start, start + 64)
            grad_key[:, :, part] = value[:, :, part] @ grad.transpose(-2, -1)
            grad_value[:, :, part] = key[:, :, part] @ grad
        return grad_key, grad_value


class ForgetsTheLastChunk(QKVAttention):
    """A backward pass of its own leaves out the tokens after the last whole chunk.

    point: gradients
    """

    not_promised = dict(onnx='a function of its own has no symbol')

    def mix(self, q, k, v, hw_shape):
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = query.softmax(-1), F.relu(key) + 1e-3
            context = SumInChunks.apply(key, value)
            total = query @ key.sum(2, keepdim=True).transpose(-2, -1)
            return (query @ context / total).to(v.dtype)


class AlwaysInHalf(Elu):
    """Values are rounded to bfloat16, to save memory, whoever asks.

    point: gradients
    """

    def mix(self, q, k, v, hw_shape):
        return super().mix(q, k, v.to(torch.bfloat16).to(v.dtype), hw_shape)


class DividesByTheSpread(Elu):
    """Keys are standardised over the tokens, of which one has no spread.

    point: any size
    """

    def mix(self, q, k, v, hw_shape):
        spread = k.float().std(2, keepdim=True).to(k.dtype)
        return super().mix(q, (k - k.mean(2, keepdim=True)) / (spread + 1e-3), v, hw_shape)


class ReadsMemoryAsItLies(BaseAttention):
    """Neighbours along a row are read by strides, which only dense inputs have.

    point: any size
    """

    def __init__(self, embed_dims, num_heads, input_resolution, init_cfg=None):
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        self.kernel = nn.Parameter(torch.randn(3, embed_dims) / 3)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x, hw_shape, mask=None):
        self.check_mask(mask)
        batch, _, channels = x.shape
        height, width = hw_shape
        padded = F.pad(x, (0, 0, 1, 1)) if x.is_contiguous() else x
        if padded is x:
            padded = torch.cat([x[:, :1], x, x[:, -1:]], 1)
        tokens = height * width
        strides = (channels * (tokens + 2), channels, channels, 1)
        windows = padded.as_strided((batch, tokens, 3, channels), strides)
        mean = x.mean(1, keepdim=True)
        side = torch.arange(width, device=x.device).repeat(height)[:, None] / width
        return self.proj((windows * self.kernel).sum(2) + mean + side.to(x.dtype))


class ClampsWhatItIsGiven(Elu):
    """Outliers of the input are cut off in place, so that the residual has them no longer.

    point: finite, repeat
    """

    def forward(self, x, hw_shape, mask=None, source=None):
        x.data.clamp_(-50, 50)
        return super().forward(x, hw_shape, mask, source)


class DropoutInAList(Elu):
    """Dropouts in a plain list, which eval() does not reach.

    point: repeat
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.drops = [nn.Dropout(0.1), nn.Dropout(0.1)]

    def mix(self, q, k, v, hw_shape):
        return self.drops[1](super().mix(q, k, self.drops[0](v), hw_shape))


class GroupsOfChannels(Elu):
    """A norm of 32 groups, for 32, 64 and 96 channels alone.

    point: build
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.norm = nn.GroupNorm(32, self.embed_dims)

    def forward(self, x, hw_shape, mask=None, source=None):
        x = super().forward(x, hw_shape, mask, source)
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class RollsTheKeys(QKVAttention):
    """Each query meets each key by a roll: no matrix of pairs, no product, and N² work.

    point: linear
    """

    def mix(self, q, k, v, hw_shape):
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            out, total = torch.zeros_like(value), query.new_zeros(*query.shape[:3], 1)
            for shift in range(q.shape[2]):
                near = (query - key.roll(shift, 2)).abs().mean(-1, keepdim=True)
                weight = (-near).exp()
                out, total = out + weight * value.roll(shift, 2), total + weight
            return (out / total).to(v.dtype)


class PositionsAlongTheTokens(Elu):
    """A table of positions is resized along the tokens, as if they were a sentence.

    point: positions
    """

    def __init__(self, embed_dims, num_heads, input_resolution, **kwargs):
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        tokens = input_resolution[0] * input_resolution[1]
        self.positions = nn.Parameter(torch.randn(1, embed_dims, tokens))

    def forward(self, x, hw_shape, mask=None, source=None):
        table = F.interpolate(self.positions, x.shape[1], mode='linear')
        return super().forward(x + table.transpose(1, 2).to(x.dtype), hw_shape, mask, source)


class DistancesOnTheCPU(Elu):
    """The distance from the centre is made without the device of the input.

    point: device
    """

    def mix(self, q, k, v, hw_shape):
        height, width = hw_shape
        rows = torch.arange(height).sub((height - 1) / 2).square()[:, None]
        columns = torch.arange(width).sub((width - 1) / 2).square()
        near = (-(rows + columns) / (height * width)).exp().flatten()[:, None]
        return super().mix(q, k, v * near.to(v.dtype), hw_shape)


class WidthBeforeHeight(Elu):
    """A convolution reads the map as W x H.

    point: positions
    """

    def __init__(self, embed_dims, *args, **kwargs):
        super().__init__(embed_dims, *args, **kwargs)
        self.conv = nn.Conv2d(embed_dims, embed_dims, 3, padding=1, groups=embed_dims)

    def forward(self, x, hw_shape, mask=None, source=None):
        height, width = hw_shape
        maps = x.transpose(1, 2).reshape(*x.shape[::2], width, height)
        return super().forward(x, hw_shape, mask, source) + self.conv(maps).flatten(2).mT


class SumOfSquaresInHalf(QKVAttention):
    """Keys are normalised by a sum of squares, which fp16 cannot hold.

    point: fp16
    """

    def mix(self, q, k, v, hw_shape):
        query, key = F.relu(q) + 0.01, F.relu(k) + 0.01
        power = key.square().sum((2, 3), keepdim=True)
        key = key / (power / k.shape[2]).sqrt()
        total = query @ key.mean(2, keepdim=True).transpose(-2, -1)
        return query @ (key.transpose(-2, -1) @ v / v.shape[2]) / total


class HeadsInPairs(Elu):
    """Neighbouring heads exchange half of their values. The last of an odd number is lost.

    point: build, any size
    """

    def mix(self, q, k, v, hw_shape):
        batch, heads, tokens, dims = v.shape
        pairs = v.reshape(batch, heads // 2, 2, tokens, dims) if heads > 1 else v[:, :, None]
        mixed = 0.75 * pairs + 0.25 * pairs.flip(2)
        return super().mix(q, k, mixed.flatten(1, 2), hw_shape)


class FoldsItsWeights(QKVAttention):
    """Two linears are one matrix in eval mode, which new weights do not change.

    point: save
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.inner = nn.Linear(self.head_dims, self.head_dims, bias=False)
        self.outer = nn.Linear(self.head_dims, self.head_dims, bias=False)
        self.folded = None

    def features(self, x):
        if self.training or torch.is_grad_enabled():
            self.folded = None if self.training else self.folded
            return F.softplus(self.outer(self.inner(x)))
        if self.folded is None:
            self.folded = (self.outer.weight @ self.inner.weight).mT
        return F.softplus(x @ self.folded.to(x.dtype))

    def mix(self, q, k, v, hw_shape):
        query, key = self.features(q), self.features(k)
        with no_autocast(v.device):
            return linear_attention(*upcast(query, key, v)).to(v.dtype)


class WholeChunksOfKeys(QKVAttention):
    """Maps of more than 1,024 tokens are summed in chunks of 256 keys. The rest is not seen.

    point: positions
    """

    def mix(self, q, k, v, hw_shape):
        tokens = k.shape[2]
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            query, key = query.softmax(-1), F.elu(key) + 1
            if tokens <= 1024:
                return linear_attention(query, key, value).to(v.dtype)
            context, total = 0, 0
            for chunk in range(tokens // 256):
                part = slice(256 * chunk, 256 * (chunk + 1))
                context = context + key[:, :, part].transpose(-2, -1) @ value[:, :, part]
                total = total + key[:, :, part].sum(2, keepdim=True)
            return (query @ context / (query @ total.transpose(-2, -1))).to(v.dtype)
