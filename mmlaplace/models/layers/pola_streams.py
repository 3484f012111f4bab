from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from mmlaplace.ops import _native
from mmlaplace.ops import pola_streams as native
from mmlaplace.ops import signed_powers as native_powers
from mmlaplace.ops.backend import ceil_div
from mmlaplace.ops.linear_attention import normalized_streams

from .signed_powers import SignedPowers, shift_of, signed_powers


def pola_streams(
    q: Tensor, power: Tensor, scale: Tensor, sums: Tensor, means: Tensor, eps: float
) -> Tensor:
    r"""PolaFormer's products of queries with sums over the keys, in two streams of channels.

    .. math:: y = \Big[ \frac{\phi(q) S_1}{\phi(q) n_1 + \epsilon},
                        \frac{\phi(q) S_2}{\phi(q) n_2 + \epsilon} \Big]

    :math:`\phi` are the :func:`signed_powers`. On a CPU in fp32, one compiled pass computes it over
    tiles of tokens. Training then keeps only queries and results, and the backward pass computes
    the features again.

    Args:
        q: ``(B, heads, N, d)`` in fp32 or fp64.
        power: p > 0 of each channel, ``(heads, 1, d)``.
        scale: s > 0 of each channel, ``(heads, 1, d)``.
        sums: :math:`[S_1, S_2]`, ``(B, heads, 2d, d)``. :math:`S_1` has :math:`\lceil d / 2 \rceil`
            columns.
        means: :math:`[n_1, n_2]`, ``(B, heads, 2d, 2)``.
        eps: :math:`\epsilon`.

    Returns:
        ``(B, heads, N, d)``.

    Source: PolaFormer (arXiv 2501.15061).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import pola_streams
        >>> q, ones = torch.randn(1, 2, 30, 8), torch.ones(2, 1, 8)
        >>> sums, means = torch.ones(1, 2, 16, 8), torch.ones(1, 2, 16, 2)
        >>> pola_streams(q, ones, ones, sums, means, eps=0).mean().round(decimals=3)
        tensor(1.)
    """
    in_graph = native.fits_graph(q)
    if not in_graph and not native.fits(q):
        return _streams(signed_powers(q, power, scale), sums, means, eps)
    # The result is (B, N, heads, d), as the tokens of the attention are.
    shift, both = shift_of(power, scale), torch.cat([sums, means], dim=-1)
    compute = torch.ops.mmlaplace._pola_streams if in_graph else PolaStreams.apply
    return compute(q, power, shift, both, eps).transpose(1, 2)


def _streams(features: Tensor, sums: Tensor, means: Tensor, eps: float) -> Tensor:
    """The formula, for features ``(B, heads, N, 2d)``."""
    return normalized_streams(features @ sums, features @ means + eps)


class PolaStreams(_native.Function):
    """The compiled op, whose derivatives are products of features and gradients."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, power: Tensor, shift: Tensor, sums: Tensor, eps: float
    ) -> Tensor:  # sums: (B, heads, 2d, d + 2), with the means
        out = native.pola_streams(q, power, shift, sums, eps)
        ctx.save_for_backward(q, power, shift, sums, out)
        ctx.eps = eps
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tuple[Optional[Tensor], ...]:
        q, power, shift, sums, out = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives need a graph

            def formula(q: Tensor, power: Tensor, shift: Tensor, sums: Tensor) -> Tensor:
                features, dims = SignedPowers.apply(q, power, shift), q.shape[-1]
                return _streams(features, sums[..., :dims], sums[..., dims:], ctx.eps)

            grads = _native.graph_gradients(
                formula, ctx.needs_input_grad[:4], grad.transpose(1, 2), q, power, shift, sums
            )
            return *grads, None
        out, grad = out.transpose(1, 2), grad.transpose(1, 2)
        dims = out.shape[-1]
        first, second = slice(0, ceil_div(dims, 2)), slice(ceil_div(dims, 2), dims)
        features = native_powers.signed_powers(q, power, shift)
        normalizers = features @ sums[..., dims:] + ctx.eps
        # Of the products with the sums, and then with the means.
        of_products = out.new_empty(*q.shape[:3], dims + 2)
        for i, channels in enumerate((first, second)):
            of_stream, normalizer = of_products[..., channels], normalizers[..., i, None]
            torch.div(grad[..., channels], normalizer, out=of_stream)
            of_products[..., dims + i] = -(of_stream * out[..., channels]).sum(-1)
        of_sums = features.transpose(-2, -1) @ of_products if ctx.needs_input_grad[3] else None
        of_features = of_products @ sums.transpose(-2, -1)
        return *native_powers.signed_powers_backward(of_features, q, power, shift), of_sums, None


def _fake(q: Tensor, power: Tensor, shift: Tensor, sums: Tensor, eps: float) -> Tensor:
    batch, heads, tokens, dims = q.shape
    return q.new_empty(batch, tokens, heads, dims)


_native.register(native.OP, _fake, PolaStreams.apply, widen=False)
