from typing import Any, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import RotaryOfAllHeads, map_to_tokens, tokens_to_map
from ..layers.drawing import draw_normal_
from ..layers.feature_map import convolve_each, taps
from .base import Projected, QKVAttention
from .frame import Frame

SCALE = 9**-0.5  # of the loss of both inner models: that of a convolution's 3 x 3 weights


@MODELS.register_module()
class TTTAttention(QKVAttention):
    r"""Test-time training of ViT³: a step on keys and values trains a small model for each image.

    Two inner models start from learned weights. One step of gradient descent on
    :math:`-\frac{1}{3N} \sum_j f(k_j) \cdot v_j` teaches them to give the values for the keys. Then
    they read the queries. Per head, with :math:`s = \mathrm{SiLU}`:

    .. math::
        f(x) = (x W_1) \odot s(x W_2), \quad
        W \leftarrow W - \eta \, \frac{G}{\lVert G \rVert + 1}, \quad
        y_i = f(q_i)

    G is the gradient, and each of its columns has a norm of its own. The second model is a 3 × 3
    depthwise convolution of d channels, with queries, keys and values of its own, and a norm for
    each filter. The last linear takes its output behind that of the heads. Time is linear,
    :math:`O(N C d)`. Gradients, steps and outputs are fp32 under any autocast. Gradients of the
    outer training pass through the step.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        inner_lr: Step size :math:`\eta`. 0 trains nothing on the image. Default: 1.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``. With ``rope=True``, rotary
            positions turn queries and keys of the first model, over all heads together, as in
            H-ViT³.

    Raises:
        ValueError: For a negative ``inner_lr``.

    Cost: 6NCd to mix; 4C² + 6Cd + 9d weights.

    Published: ViT³-T 76.5, S 81.6, B 82.6; H-ViT³-T 84.0, S 84.9, B 85.5, with MESA.

    Source: ViT³ (arXiv 2512.01643).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import TTTAttention
        >>> attention = TTTAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame()
    fixed_options = ('qkv', 'sr_ratio', 'key_positions', 'proj', 'rope_form', 'rope_on')
    mixes_tokens = False
    no_multihead = no_prefix_tokens = 'its inner model convolves a map'
    tested_options = (dict(rope=True, gate=True, lepe_kernel=3),)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        inner_lr: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        if inner_lr < 0:
            raise ValueError(f'inner_lr must not be negative, got {inner_lr}')
        self.inner_lr = inner_lr
        dims = self.head_dims
        self.parts += [dims] * 3
        self.qkv = nn.Linear(embed_dims, sum(self.parts), self.frame.qkv_bias)
        self.proj = nn.Linear(embed_dims + dims, embed_dims)
        if self.rotary is not None:
            self.rotary = RotaryOfAllHeads(embed_dims)
        shapes = dict(w1=(num_heads, dims, dims), w2=(num_heads, dims, dims), w3=(dims, 3, 3))
        for name, shape in shapes.items():
            start = draw_normal_(torch.empty(shape))
            self.register_parameter(name, nn.Parameter(start))

    def project(self, x: Tensor, hw_shape: Tuple[int, int]) -> Projected:
        """Tokens ``(B, N, C)`` to queries, keys, values, the gate and the convolved queries."""
        q, k, v, *gate, query, key, value = self.qkv(x).split(self.parts, dim=-1)
        gate = gate[0] if gate else None
        return Projected(q, k, v, gate, self.convolve(query, key, value, hw_shape))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value, w1, w2 = upcast(q, k, v, self.w1, self.w2)
            a, b = key @ w1, key @ w2  # (B, heads, n, d)
            gate, error = b.sigmoid(), value * (-SCALE / key.shape[2])
            across = key.transpose(-2, -1)
            w1 = self.step(w1, across @ (error * b * gate), dim=-2)  # (B, heads, d, d)
            w2 = self.step(w2, across @ (error * a * gate * (1 + b * (1 - gate))), dim=-2)
            return ((query @ w1) * F.silu(query @ w2)).to(v.dtype)

    def convolve(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """The convolution, trained on keys and values, of queries ``(B, N, d)`` each."""
        with no_autocast(v.device):
            query, key, value = (tokens_to_map(x, hw_shape) for x in upcast(q, k, v))
            error = value * (-SCALE / (hw_shape[0] * hw_shape[1]))
            # (B, d, 9), of the places that each tap sees. A stack of them takes far longer to sum.
            gradient = torch.stack([(seen * error).sum((2, 3)) for seen in taps(key, 3)], dim=-1)
            filters = self.step(upcast(self.w3)[0].flatten(1), gradient, dim=-1)
            out = convolve_each(query, filters.unflatten(-1, (3, 3)))
            return map_to_tokens(out).to(v.dtype)

    def step(self, weight: Tensor, gradient: Tensor, dim: int) -> Tensor:
        """The weight after a step, whose length is below the step size along an axis."""
        length = torch.linalg.vector_norm(gradient, dim=dim, keepdim=True)
        return weight - self.inner_lr * gradient / (length + 1)
