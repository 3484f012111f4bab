from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmlaplace.ops import linear_attention

from .pairs import check_pairs_fit

FORMS = ('auto', 'linear', 'direct')


def known_form(form: str) -> str:
    """The ``form`` for :func:`taylor_attention`, or a ValueError."""
    if form not in FORMS:
        raise ValueError(f'form must be one of {FORMS}, got {form!r}')
    return form


def taylor_width(channels: int) -> int:
    """The number of :func:`taylor_features` of so many channels."""
    return 1 + channels + channels * (channels // 2 + 1)


def taylor_features(x: Tensor) -> Tensor:
    r"""Features whose products are the Taylor series of the exponential, to the second order.

    .. math::
        \phi(x) = [1, x, x \otimes x / \sqrt{2}], \quad
        \phi(x) \cdot \phi(y) = 1 + x \cdot y + \tfrac{1}{2} (x \cdot y)^2

    The product of two channels gives one feature for both orders. The channels form a ring, and
    each is multiplied by the channels up to half the ring ahead. This gives about half of the
    :math:`d^2` features of :math:`x \otimes x`.

    Args:
        x: ``(..., d)``.

    Returns:
        ``(..., 1 + d + d * (d // 2 + 1))``, see :func:`taylor_width`.
    """
    channels = x.shape[-1]
    half, root = channels // 2, 0.5**0.5
    ring = torch.cat([x, x[..., :half]], dim=-1)
    products = [x * ring[..., ahead : ahead + channels] for ahead in range(half + 1)]
    products[0] = products[0] * root
    if half and channels % 2 == 0:  # the channels across: each pair is there twice
        products[half] = products[half] * root
    return torch.cat([F.pad(x, (1, 0), value=1.0), *products], dim=-1)


def taylor_attention(attention: Any, q: Tensor, k: Tensor, v: Tensor, eps: float) -> Tensor:
    r"""Attention with a Taylor series in place of the exponential.

    .. math::
        w_{ij} = 1 + q_i \cdot k_j + \tfrac{1}{2} (q_i \cdot k_j)^2, \quad
        y_i = \frac{\sum_j w_{ij} v_j}{\sum_j w_{ij} + \epsilon}

    Args:
        attention: An attention with the attribute ``form``. ``'linear'`` uses
            :func:`taylor_features`. ``'direct'`` computes a weight for each pair of tokens.
            ``'auto'`` takes the direct form while there are no more keys than features, where it is
            cheaper.
        q: Queries ``(B, heads, N, d)``, with the temperature in them, in fp32 or fp64.
        k: Keys ``(B, heads, n, d)``.
        v: Values ``(B, heads, n, d)``.
        eps: :math:`\epsilon`.

    Returns:
        ``(B, heads, N, d)`` in the dtype of ``v``.

    Raises:
        ValueError: If matrices of pairs would need more than 4 GB in the direct form.
    """
    keys = k.shape[-2]
    # A graph for maps of any size, where this is no plain integer, takes the form that fits all.
    few = attention.form == 'auto' and type(keys) is int and keys <= taylor_width(q.shape[-1])
    if attention.form == 'linear' or not (few or attention.form == 'direct'):
        return linear_attention(taylor_features(q), taylor_features(k), v, eps, eps_of_sum=True)
    check_pairs_fit(attention, q, k, (2, 5))
    # 1 + s + s^2 / 2 is ((1 + s)^2 + 1) / 2, and the half cancels. So one pass over all pairs is
    # enough: a channel of ones adds the 1 to s, and another gives the sum of the squares.
    query, key, value = (F.pad(x, (0, 1), value=1.0) for x in (q, k, v))
    squares = (query @ key.transpose(-2, -1)).square()
    mixed, total = (squares @ value).split([v.shape[-1], 1], dim=-1)
    return (mixed + v.sum(-2, keepdim=True)) / (total + keys + 2 * eps)
