from typing import Any, Optional, Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import Landmarks, softmax_attention
from ..layers.checks import check_counts
from ..layers.pseudo_inverse import check_iteration, pseudo_inverse
from ..layers.token_conv import TokenConv
from .base import Dims, Projected, QKVAttention
from .frame import Frame

METHODS = ('pool', 'runs')


@MODELS.register_module()
class NystromformerAttention(QKVAttention):
    r"""Nyströmformer: the Nyström form of softmax attention.

    Per head, with queries and keys scaled by :math:`d^{-1/4}`, and landmarks :math:`\tilde Q,
    \tilde K` (m, d) that are means of them:

    .. math::
        F = \mathrm{softmax}(Q \tilde K^T), \quad A = \mathrm{softmax}(\tilde Q \tilde K^T), \quad
        B = \mathrm{softmax}(\tilde Q K^T), \quad Y = F \, A^+ (B V)

    :math:`A^+` is computed by an iteration of six steps. These do not converge, and give a
    regularised inverse. So more steps change the function. If queries and keys are large, the
    weights may be negative and large. Where there are as many landmarks as tokens, it is exact
    softmax attention. Time is :math:`O(N m d + m^3)` per head. Everything is fp32 under any
    autocast. Landmarks are of the map alone. Prefix tokens are queries and keys like the others.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        num_landmarks: Number m of landmarks. ``'pool'`` needs a square. Default: 49.
        landmark_method: ``'pool'`` (default) averages cells of the map, √m x √m of them. ``'runs'``
            averages runs of successive tokens, as the authors do. Runs ignore the rows of the map.
        num_iters: Steps of the iteration for the inverse. Default: 6.
        newton_start_per: How matrices share the initial scale of the iteration. ``'matrix'``
            (default): each matrix has its own. ``'batch'``: all images and heads share one, as in
            the authors' configurations. The result for an image then depends on the other images of
            the batch.
        conv_kernel_size: Taps of the authors' convolution of the values, which runs along the
            flattened tokens, with one filter for each head. The frame's ``lepe_kernel`` replaces it
            by a convolution in two dimensions. It leaves out prefix tokens. Default: 0, none.
        out_dims: Channels of queries, keys, values and the output. A value other than C needs a
            place without a residual connection around the attention. As in the authors' T2T-ViT, d
            above stays C / heads. Default: C.
        value_shortcut: Whether the values are added to the output, as in the authors' T2T-ViT.
            Default: False.
        **frame: Fields of :class:`Frame` that differ from ``Frame(lepe_kernel=3,
            lepe_filters='head', lepe_bias=False)``. Queries and keys need landmarks of the same
            tokens, so there is no ``sr_ratio``.

    Raises:
        ValueError: For an unknown ``landmark_method`` or ``newton_start_per``, or numbers out of
            range.

    Cost: NCm + hm³ to mix; 4C² + 9h weights.

    Published: SOFT's table, with pooled landmarks: 78.6.

    Source: Nyströmformer (arXiv 2102.03902).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import NystromformerAttention
        >>> attention = NystromformerAttention(64, num_heads=2, input_resolution=(14, 14))
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(lepe_kernel=3, lepe_filters='head', lepe_bias=False)
    fixed_options = ('sr_ratio',)
    same_tokens = 'it inverts a matrix of landmarks of queries and of keys'
    mixes_queries = True
    no_prefix_tokens = ''
    tested_options = (
        dict(landmark_method='runs', num_landmarks=6, conv_kernel_size=5),
        dict(num_landmarks=4, rope=True, value_shortcut=True),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        num_landmarks: int = 49,
        landmark_method: str = 'pool',
        num_iters: int = 6,
        newton_start_per: str = 'matrix',
        conv_kernel_size: int = 0,
        out_dims: Optional[int] = None,
        value_shortcut: bool = False,
        **kwargs: Any,
    ) -> None:
        dims = None if out_dims is None else Dims(out_dims, out_dims, out_dims)
        super().__init__(embed_dims, num_heads, input_resolution, dims=dims, **kwargs)
        if landmark_method not in METHODS:
            raise ValueError(f'landmark_method must be one of {METHODS}, got {landmark_method!r}')
        check_iteration(num_iters, newton_start_per)
        check_counts(num_landmarks=num_landmarks)
        self.num_landmarks = num_landmarks
        self.pool = Landmarks(num_landmarks) if landmark_method == 'pool' else None
        self.num_iters = num_iters
        self.newton_start_per = newton_start_per
        self.conv = TokenConv(num_heads, conv_kernel_size) if conv_kernel_size else None
        self.value_shortcut = value_shortcut

    def landmarks(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Means of tokens, ``(B, heads, N, d)`` to ``(B, heads, m, d)``."""
        if self.pool is not None:
            return self.pool(x, hw_shape)
        tokens, runs = x.shape[2], self.num_landmarks
        if runs >= tokens:
            return x
        # The last runs have a token more where the tokens do not divide.
        length = tokens // runs
        end = (runs - tokens % runs) * length
        shorter = x[:, :, :end].unflatten(2, (-1, length)).mean(3)
        longer = x[:, :, end:].unflatten(2, (-1, length + 1)).mean(3)
        return torch.cat([shorter, longer], dim=2)

    def pseudo_invert(self, mat: Tensor) -> Tensor:
        """Steps towards the inverse of ``(B, heads, m, m)``, which is not ridged here."""
        return pseudo_inverse(mat, self.num_iters, self.newton_start_per)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            shrink = (self.embed_dims // self.num_heads) ** -0.25
            query, key = query * shrink, key * shrink
            some_queries = self.landmarks(self.of_map(query), hw_shape)
            some_keys = self.landmarks(self.of_map(key), hw_shape)
            if some_keys.shape[2] == key.shape[2]:
                out = softmax_attention(query, key, value, scale=1.0)
            else:
                few = some_keys.transpose(-2, -1)  # (B, heads, d, m)
                inverse = self.pseudo_invert((some_queries @ few).softmax(-1))
                gathered = softmax_attention(some_queries, key, value, scale=1.0)
                out = (query @ few).softmax(-1) @ (inverse @ gathered)
            if self.conv is not None:
                local = self.conv(self.of_map(value).to(self.conv.weight.dtype))
                out = out + self.after_prefix(local).to(out.dtype)
            return out.to(v.dtype)

    def project_out(self, out: Tensor, projected: Projected) -> Tensor:
        out = super().project_out(out, projected)
        return out + projected.v if self.value_shortcut else out
