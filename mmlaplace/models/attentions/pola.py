from typing import Any, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast

from ..layers import linear_attention, map_to_tokens, pola_streams, resize_map, signed_powers
from ..layers.deformable import DeformableConv
from ..layers.pola_attention import OP as POLA
from ..layers.pola_attention import in_runtime
from ..layers.signed_powers import shift_of
from .base import Projected, QKVAttention
from .frame import Frame

ALPHA = 4.0  # the largest learned power minus 1
GATE_FORMS = ('linear', 'matrix')
GATE_INITS = ('kaiming_uniform', 'zeros', 'normal', 'uniform', 'ones')  # of torch.nn.init


@MODELS.register_module()
class PolaAttention(QKVAttention):
    r"""Polarity-aware linear attention: same-signed and opposite-signed pairs, sharpened by powers.

    Per head, with learned scales s and powers :math:`p = 1 + \alpha\, \mathrm{sigmoid}(\cdot)` of
    each channel, and the features :math:`\phi(x) = [\mathrm{relu}(x)^p, \mathrm{relu}(-x)^p]`,
    :math:`\bar\phi(x) = [\mathrm{relu}(-x)^p, \mathrm{relu}(x)^p]`:

    .. math::
        Y_s = \frac{\phi(Q)\, \phi(K)^T V_1}{\phi(Q)\, \phi(K)^T 1 + n \epsilon}, \quad
        Y_o = \frac{\bar\phi(Q)\, \phi(K)^T V_2}{\bar\phi(Q)\, \phi(K)^T 1 + n \epsilon}

        \mathrm{out} = \mathrm{proj}\big( ([Y_s, Y_o] + \mathrm{DWConv}(V)) \odot G \big)

    Q = XW / s and K = (XW' + P) / s, with a learned position P per token. :math:`[V_1, V_2]` are
    the halves of each head's channels. G is a gate, a linear of X. Products are evaluated from the
    right, so there is no N x N matrix. Features and normalisers are fp32 under any autocast. Prefix
    tokens are in all sums, without a position P and without a convolution.

    The options below, with ``gate=False`` and ``lepe_kernel=0`` of the frame, are the paper's
    ablations. Without polarity, the features are only :math:`\mathrm{relu}(x)^p`, as in other
    linear attentions, and they mix all of V.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        alpha: The largest learned power minus 1. Default: 4.
        power: A fixed power p for all channels, instead of learned powers. 1 applies no power.
            Default: None, learned.
        polarity: Whether same-signed and opposite-signed pairs are kept apart, as above. Default:
            True.
        gate_form: Form of the gate G. ``'linear'`` (default): a linear of X, as in the authors'
            code. ``'matrix'``: a learned matrix, as in the paper, with a value for each token and
            channel. It is stored for ``input_resolution`` and resized bilinearly for other maps.
            Prefix tokens, which have no place in it, pass as they are.
        gate_init: Initialisation of that matrix: ``'kaiming_uniform'`` (default), ``'zeros'``,
            ``'normal'``, ``'uniform'`` or ``'ones'``, which are functions of torch.nn.init.
        lepe_deformable: Whether the convolution of V is deformable. Default: False.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv='q_kv', gate=True,
            key_positions=True, lepe_kernel=5, lepe_filters='head_channel')``.

    Raises:
        ValueError: If ``alpha`` or ``power`` is not positive and finite, for an unknown
            ``gate_form`` or ``gate_init``, and for options without an effect: ``alpha`` with a
            ``power``, ``gate_init`` with ``gate_form='linear'``, and ``gate_form='matrix'`` or
            ``lepe_deformable=True`` where the gate or the convolution is turned off.

    Cost: 2NCd to mix; 5C² + NC + 2C + 25d weights.

    Published: PVT-T 78.8, PVT-S 81.9, Swin-T 82.6, Swin-S 83.6, Swin-B 83.8, DeiT-T 74.6.

    Source: PolaFormer (arXiv 2501.15061).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import PolaAttention
        >>> attention = PolaAttention(64, num_heads=2, input_resolution=(14, 14), sr_ratio=2)
        >>> attention(torch.randn(1, 7 * 9, 64), hw_shape=(7, 9)).shape
        torch.Size([1, 63, 64])
    """

    eps = 1e-6  # keeps a query that has no key of its signs from a division by zero
    frame = Frame(
        qkv='q_kv', gate=True, key_positions=True, lepe_kernel=5, lepe_filters='head_channel'
    )
    no_prefix_tokens = ''
    tested_options = (
        dict(sr_ratio=2),
        dict(sr_ratio=3, key_positions=False),
        dict(polarity=False, power=3, gate_form='matrix', sr_ratio=2),
        dict(gate=False, power=1, lepe_deformable=True),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        alpha: float = ALPHA,
        power: Optional[float] = None,
        polarity: bool = True,
        gate_form: str = 'linear',
        gate_init: str = 'kaiming_uniform',
        lepe_deformable: bool = False,
        **kwargs: Any,
    ) -> None:
        for name, value, known in (
            ('gate_form', gate_form, GATE_FORMS),
            ('gate_init', gate_init, GATE_INITS),
        ):
            if value not in known:
                raise ValueError(f'{name} must be one of {known}, got {value!r}')
        for name, number in (('alpha', alpha), ('power', 1.0 if power is None else power)):
            if not 0 < number < float('inf'):
                raise ValueError(f'{name} must be positive and finite, got {number}')
        if power is not None and alpha != ALPHA:
            raise ValueError(f'alpha={alpha} has no effect with power={power}; leave one out')
        if gate_form == 'linear' and gate_init != GATE_INITS[0]:
            raise ValueError(
                f"gate_init={gate_init!r} has no effect with gate_form='linear'; set "
                "gate_form='matrix', or leave it out"
            )
        if gate_form == 'matrix':
            if not kwargs.get('gate', True):
                raise ValueError("gate_form='matrix' has no effect with gate=False; leave one out")
            kwargs['gate'] = False  # the base would make a linear
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.alpha = alpha
        self.polarity = polarity
        self.fixed_power = power
        self.scale = nn.Parameter(torch.zeros(embed_dims))
        self.register_parameter('power', None)
        if power is None:
            self.power = nn.Parameter(torch.zeros(num_heads, 1, self.head_dims))
        self.register_parameter('gate_matrix', None)
        if gate_form == 'matrix':
            self.gate_matrix = nn.Parameter(self.started_gate(gate_init))
        if lepe_deformable:
            frame = self.frame
            if not frame.lepe_kernel:
                raise ValueError('lepe_deformable=True has no effect with lepe_kernel=0')
            self.lepe = DeformableConv(
                embed_dims, frame.lepe_kernel, num_heads, frame.lepe_filters, frame.lepe_bias
            )

    def started_gate(self, init: str) -> Tensor:
        """The first value ``(1, C, H, W)`` of a gate that is a matrix.

        The paper's matrices have N rows and d / 2 columns, one for each stream. Kaiming's bound is
        that of such a matrix, whose fan is d / 2.
        """
        height, width = self.input_resolution
        halves = [
            getattr(nn.init, f'{init}_')(torch.empty(height * width * self.num_heads, columns))
            for columns in ((self.head_dims + 1) // 2, self.head_dims // 2)
        ]
        return torch.cat(halves, dim=1).view(1, height, width, -1).permute(0, 3, 1, 2).contiguous()

    def project(self, x: Tensor, hw_shape: Tuple[int, int]) -> Projected:
        projected = super().project(x, hw_shape)
        if self.gate_matrix is None:
            return projected
        gate = map_to_tokens(resize_map(self.gate_matrix, hw_shape))  # (1, N, C)
        if prefix := self.num_prefix_tokens:
            gate = F.pad(gate, (0, 0, prefix, 0), value=1.0)
        return projected._replace(gate=gate.to(projected.v.dtype))

    def resize_weight(self, name: str, value: Tensor) -> Tensor:
        """The gate's matrix or key positions of a checkpoint, resized to those of this module."""
        if name != 'gate_matrix':
            return super().resize_weight(name, value)
        return resize_map(value, self.gate_matrix.shape[2:])

    def exponents(self, dtype: torch.dtype) -> Tuple[Tensor, Tensor]:
        """Power and scale of each channel, ``(heads, 1, d)``."""
        scale = F.softplus(self.scale.to(dtype)).unflatten(0, (self.num_heads, 1, -1))
        if self.power is None:
            return torch.full_like(scale, self.fixed_power), scale
        return 1 + self.alpha * torch.sigmoid(self.power.to(dtype)), scale

    def features(self, x: Tensor) -> Tensor:
        """Positive and negative parts to their powers: ``(B, heads, N, d)`` to ``(.., N, 2d)``."""
        return signed_powers(x, *self.exponents(x.dtype))

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        dims = int(v.shape[-1])  # roll takes no size that a trace has as a tensor
        with no_autocast(v.device):
            query, key, value = upcast(q, k, v)
            exponents = self.exponents(query.dtype)
            if self.polarity and query.dtype == torch.float32 and in_runtime():
                op = getattr(torch.ops.mmlaplace, POLA)
                power, scale = exponents
                out = op(query, key, value, power, shift_of(power, scale), self.eps)
                return out.to(v.dtype)
            key = signed_powers(key, *exponents)
            if not self.polarity:
                query = signed_powers(query, *exponents)
                return linear_attention(query[..., :dims], key[..., :dims], v, self.eps)
            # key: (B, heads, n, 2d)
            if v.device.type == 'cuda':
                query = signed_powers(query, *exponents)
                return linear_attention(query, key, v, self.eps, streams=2)
            summed = key.transpose(-2, -1) @ value / key.shape[2]
            half = (dims + 1) // 2  # chunk would give one part of one channel
            same, opposite = summed[..., :half], summed[..., half:]
            mean_key = key.mean(dim=2).unsqueeze(-1)  # (B, heads, 2d, 1)
            # Signs are swapped in these matrices, which are smaller than the features.
            sums = torch.cat([same, opposite.roll(dims, dims=-2)], dim=-1)  # (B, heads, 2d, d)
            means = torch.cat([mean_key, mean_key.roll(dims, dims=-2)], dim=-1)
            return pola_streams(query, *exponents, sums, means, self.eps).to(v.dtype)
