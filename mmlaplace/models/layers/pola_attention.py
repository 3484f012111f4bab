"""PolaFormer's whole mixing rule, which graphs for runtimes hold as one node."""

from typing import Any

from torch import Tensor

from mmlaplace.ops import _checks, _native
from mmlaplace.ops.backend import runtime_has
from mmlaplace.ops.linear_attention import linear_attention_reference

from .signed_powers import SignedPowers

OP = '_pola_attention'


def in_runtime() -> bool:
    """Whether a graph is recorded for a runtime that has :func:`pola_attention`."""
    return runtime_has(OP)


def pola_attention(
    q: Tensor, k: Tensor, v: Tensor, power: Tensor, shift: Tensor, eps: float
) -> Tensor:
    r"""Two streams of :func:`linear_attention`, whose features are signed powers.

    .. math:: \phi(x) = [\mathrm{relu}(x)^p, \mathrm{relu}(-x)^p] \, e^s

    Args:
        q: ``(B, heads, N, d)`` in fp32.
        k, v: ``(B, heads, n, d)`` in fp32.
        power: p > 0, ``(heads, 1, d)``.
        shift: s, ``(heads, 1, d)``.
        eps: Added to a mean over the keys.

    Returns:
        ``(B, heads, N, d)``.
    """
    query, key = (SignedPowers.apply(x, power, shift) for x in (q, k))
    return linear_attention_reference(query, key, v, None, None, eps, 'none', 2)


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    _checks.check_query_key(OP, q, k)
    _checks.check_like(OP, 'v', v, k)
    batch, heads, tokens, dims = q.shape
    return q.new_empty((batch, tokens, heads, dims)).transpose(1, 2)


_native.define(
    f'{OP}(Tensor q, Tensor k, Tensor v, Tensor power, Tensor shift, float eps) -> Tensor',
    pola_attention,
    _fake,
)
