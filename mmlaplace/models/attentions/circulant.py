from typing import Any, Set, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops._checks import is_compiling
from mmlaplace.ops.backend import exporting_to_onnx
from mmlaplace.ops.precision import no_autocast, upcast

from .base import QKVAttention
from .frame import Frame

WEIGHTS_PER = ('channel', 'head')


@MODELS.register_module()
class CirculantAttention(QKVAttention):
    r"""Circulant attention: the weight of a value depends on its offset from the query alone.

    The map is a torus, on which an offset s leads from each place p to another one. Per channel:

    .. math::
        a_s = \frac{1}{\sqrt{N}} \sum_p q_p \, k_{p+s}, \quad
        w = \mathrm{softmax}_s(a), \quad
        y_p = \sum_s w_s \, v_{p+s}, \quad
        \mathrm{out} = \mathrm{proj}(Y \odot \mathrm{SiLU}(\mathrm{gate}(X)))

    The matrix of weights is block circulant with circulant blocks. Both sums are products of
    Fourier transforms, so the time is :math:`O(C N \log N)` on a map of any size. Graphs of
    torch.compile, torch.export and ONNX have products with matrices of cosines in the place of the
    transforms, and take :math:`O(C N (H + W))`. Transforms and softmax are fp32 under any autocast.

    There is one set of weights for each channel, so ``num_heads`` counts nothing by default. The
    paper divides the scores by N. This divides by √N, as the authors' code does. Biases of queries
    and keys would change no weight, so the linears have none. The gate has one.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        weights_per: What has weights of its own. ``'channel'`` (default). ``'head'``: the scores of
            the d channels of a head are added and divided by √d, and they share the weights.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv_bias=False, gate=True)``.

    Raises:
        ValueError: For an unknown ``weights_per``.

    Cost: NC log N to mix; 5C² weights.

    Published: DeiT-T 75.0, DeiT-S 81.0, DeiT-B 82.3.

    Source: Vision Transformers are Circulant Attention Learners (arXiv 2512.21542).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import CirculantAttention
        >>> attention = CirculantAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(qkv_bias=False, gate=True)
    fixed_options = ('sr_ratio',)
    no_multihead = no_prefix_tokens = 'its weights are of offsets on a map'
    tested_options = (dict(weights_per='head', gate=False),)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        weights_per: str = 'channel',
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if weights_per not in WEIGHTS_PER:
            raise ValueError(f'weights_per must be one of {WEIGHTS_PER}, got {weights_per!r}')
        self.weights_per = weights_per
        own_bias = self.frame.gate and not self.frame.qkv_bias
        self.gate_bias = nn.Parameter(torch.zeros(embed_dims)) if own_bias else None

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            # Not by unflatten, after which the TorchScript exporter takes the sides for constants.
            query, key, value = (
                x.transpose(2, 3).reshape(*x.shape[:2], x.shape[3], *hw_shape)
                for x in upcast(q, k, v)
            )
            scores = correlate(query, key)  # (B, heads, d, H, W), of offsets
            if self.weights_per == 'head':
                scores = scores.sum(2, keepdim=True) * self.head_dims**-0.5
            scores = scores * (hw_shape[0] * hw_shape[1]) ** -0.5
            weights = scores.flatten(3).softmax(3).view(scores.shape)
            return correlate(weights, value).flatten(3).transpose(2, 3).to(v.dtype)

    def apply_gate(self, out: Tensor, gate: Tensor) -> Tensor:
        """The output ``(B, N, C)`` times SiLU of the gate."""
        return out * F.silu(gate if self.gate_bias is None else gate + self.gate_bias)

    def no_weight_decay(self) -> Set[str]:
        """The bias of the gate."""
        return {'gate_bias'}


def correlate(x: Tensor, y: Tensor) -> Tensor:
    r"""The circular cross-correlation :math:`z_s = \sum_p x_p \, y_{p+s}` over a map.

    Args:
        x, y: Maps ``(..., H, W)``, whose first axes may be broadcast.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.attentions.circulant import correlate
        >>> x = torch.zeros(2, 3)
        >>> x[1, 0] = 1  # one row down
        >>> correlate(x, torch.arange(6.0).view(2, 3))
        tensor([[3., 4., 5.],
                [0., 1., 2.]])
    """
    # ONNX has no such transforms, and torch none of an empty batch. Inductor of torch 2.11 gives
    # wrong gradients of them.
    if is_compiling() or exporting_to_onnx() or len(x) == 0:
        return _correlate_by_matrices(x, y)
    spectrum = torch.fft.rfft2(x).conj() * torch.fft.rfft2(y)
    return torch.fft.irfft2(spectrum, s=x.shape[-2:])


def _waves(side: int, like: Tensor) -> Tuple[Tensor, Tensor]:
    """Cosines and sines of all frequencies ``(side, side)`` at all places."""
    places = torch.arange(side, device=like.device)
    turns = (places[:, None] * places) % side  # whole turns are left out before they are rounded
    angles = turns.to(like.dtype) * (2 * torch.pi / side)
    return angles.cos(), angles.sin()


def _correlate_by_matrices(x: Tensor, y: Tensor) -> Tensor:
    """:func:`correlate` by real products alone."""
    height, width = x.shape[-2:]
    (rows_cos, rows_sin), (cos, sin) = (_waves(side, x) for side in (height, width))

    def transform(maps: Tensor) -> Tuple[Tensor, Tensor]:
        real, imaginary = maps @ cos, -(maps @ sin)
        return rows_cos @ real + rows_sin @ imaginary, rows_cos @ imaginary - rows_sin @ real

    (a, b), (c, d) = transform(x), transform(y)
    real, imaginary = a * c + b * d, a * d - b * c  # of the conjugate of x, times y
    real, imaginary = (
        rows_cos @ real - rows_sin @ imaginary,
        rows_cos @ imaginary + rows_sin @ real,
    )
    return (real @ cos - imaginary @ sin) / (height * width)
