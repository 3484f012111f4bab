"""Rotary positions: the table of angles, and the rotation of tokens by it."""

import math
from typing import Dict, Tuple

import torch
from torch import Tensor

from . import _checks

PAIRINGS = ('half', 'pairs')
# Which channels each form of rotary positions pairs.
ROPE_FORMS: Dict[str, str] = dict(half='half', pairs='pairs', centred='half', reference='pairs')
REFERENCE = 16  # tokens that a side counts as in the form 'reference'


def rotary_table(
    height: int, width: int, pairs: int, theta: float, form: str, like: Tensor
) -> Tensor:
    r"""Cosines and sines of the angles by which the tokens of a map turn.

    Half of the pairs of channels turn by the row, the others by the column. Pair p of the P of an
    axis turns by :math:`\mathrm{position} \cdot \theta^{-p / P}`. With ``form='pairs'`` the power
    is :math:`\theta^{-p / (P - 1)}`. Token i of the n of a side has the position i. With
    ``form='centred'`` it has :math:`2 \pi \, ((2 i + 1) / n - 1)`, and with ``'reference'``
    :math:`16\, i / n`.

    Args:
        height, width: Sides of the map, in tokens.
        pairs: Pairs P of an axis.
        theta: Base of the wavelengths.
        form: See :class:`mmlaplace.models.layers.RotaryEmbedding2D`.
        like: A tensor with the device and dtype of the table.

    Returns:
        ``(2, 2 * pairs, N)`` with ``N = height * width``.
    """
    exponents = torch.arange(pairs, dtype=like.dtype, device=like.device)
    last = pairs - 1 if form == 'pairs' else pairs
    frequencies = theta ** (-exponents / max(last, 1))
    # Not by repeat_interleave, which exporters do not know for a dynamic width.
    rows = _positions(height, form, like)[:, None].expand(height, width).flatten()
    columns = _positions(width, form, like)[None].expand(height, width).flatten()
    angles = torch.cat([frequencies[:, None] * rows, frequencies[:, None] * columns])
    return torch.stack([angles.cos(), angles.sin()])


def _positions(count: int, form: str, like: Tensor) -> Tensor:
    """The position of each token of a side, ``(count,)``."""
    steps = torch.arange(count, device=like.device)
    if form == 'centred':
        return 2 * math.pi * ((2 * steps.to(like.dtype) + 1) / count - 1)
    if form == 'reference':
        return steps.to(like.dtype) / count * REFERENCE
    return steps


def check_form(op: str, form: str) -> None:
    """Raise unless ``form`` is one of ``PAIRINGS``."""
    if form not in PAIRINGS:
        raise ValueError(f'{op}: rotary_form must be one of {PAIRINGS}, got {form!r}')


def check_table(op: str, table: Tensor, tokens: Tensor) -> None:
    """Raise unless ``table`` is a :func:`rotary_table` for ``tokens`` ``(B, heads, N, d)``."""
    _checks.check_floating(op, 'rotary', table)
    count, dims = tokens.shape[2:]
    if table.dim() != 3 or table.shape[::2] != (2, count) or table.device != tokens.device:
        raise ValueError(
            f'{op}: rotary must be (2, pairs, {count}) on {tokens.device}, got '
            f'{tuple(table.shape)} on {table.device}'
        )
    if 2 * table.shape[1] > dims:
        raise ValueError(f'{op}: {dims} channels have no {table.shape[1]} pairs; give fewer angles')


def turn(x: Tensor, table: Tensor, form: str) -> Tensor:
    """Rotate the pairs of channels of tokens ``(B, heads, N, d)`` of at least fp32.

    ``table`` is that of :func:`rotary_table`. Channels beyond its pairs stay as they are.
    """
    return turn_channels(x, *of_channels(table.to(x.dtype), form), form)


def of_channels(table: Tensor, form: str) -> Tuple[Tensor, Tensor]:
    """Of a :func:`rotary_table`, the factor of each channel, and that of the other of its pair.

    Both are ``(N, 2 * pairs)``: cosines, and sines with a minus for the first channel of a pair.
    """
    cos, sin = table.transpose(1, 2)  # (N, pairs) each
    if form == 'half':
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
    dims = 2 * int(table.shape[1])  # a trace has a tensor for a size
    own = torch.stack([cos, cos], dim=-1).reshape(cos.shape[0], dims)
    return own, torch.stack([-sin, sin], dim=-1).reshape(sin.shape[0], dims)


def turn_channels(x: Tensor, own: Tensor, other: Tensor, form: str) -> Tensor:
    """:func:`turn` by the factors of :func:`of_channels`."""
    dims = int(own.shape[1])  # a trace has a tensor for a size
    turned = x[..., :dims]
    # Whole rows, the other channel of each pair beside: halves alone are slow to read.
    if form == 'half':
        beside = turned.roll(dims // 2, dims=-1)
    else:
        beside = turned.reshape(*x.shape[:-1], dims // 2, 2).flip(-1).reshape(turned.shape)
    turned = torch.addcmul(turned * own, beside, other)
    if dims == x.shape[-1]:
        return turned
    return torch.cat([turned, x[..., dims:]], dim=-1)


def turn_complex(x: Tensor, turns: Tensor) -> Tensor:
    """:func:`turn` with ``form='pairs'``, as a product of complex numbers.

    ``turns`` are cos + i sin of each pair, ``(N, pairs)``. ONNX has no such numbers.
    """
    dims = 2 * turns.shape[1]
    pairs = x[..., :dims].unflatten(-1, (-1, 2))  # (B, heads, N, pairs, 2)
    # A complex number has its two parts side by side, and an even way from the start of memory.
    if pairs.stride(-1) != 1 or math.gcd(x.storage_offset(), *x.stride()[:-1]) % 2:
        pairs = pairs.contiguous()
    turned = torch.view_as_real(torch.view_as_complex(pairs) * turns).flatten(-2)
    if dims == x.shape[-1]:
        return turned
    return torch.cat([turned, x[..., dims:]], dim=-1)
