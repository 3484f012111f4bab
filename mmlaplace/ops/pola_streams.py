"""PolaFormer's products of queries in one pass, for a CPU. Only graphs record it."""

from torch import Tensor

from . import _native, signed_powers

OP = '_pola_streams'


def fits(q: Tensor) -> bool:
    """Whether the compiled op computes ``q``: fp32 on a CPU, with values."""
    return signed_powers.fits(q) and _native.computes(OP, 'cpu')


def fits_graph(q: Tensor) -> bool:
    """Whether a graph of torch.compile is to hold the compiled op as a node."""
    return signed_powers.fits_graph(q) and _native.computes(OP, 'cpu')


def pola_streams(q: Tensor, power: Tensor, shift: Tensor, sums: Tensor, eps: float) -> Tensor:
    r"""Both streams of the result, for queries that :func:`fits`.

    With the features :math:`\phi = [\mathrm{relu}(q)^p, \mathrm{relu}(-q)^p] \, e^s` of a query,
    channel c of its result is :math:`\phi S_c / (\phi S_{d + \sigma} + \epsilon)`. The stream
    :math:`\sigma` is 0 for the first :math:`\lceil d / 2 \rceil` channels, and 1 for the others.

    Args:
        q: ``(B, heads, N, d)``, of any strides.
        power: p > 0, ``(heads, 1, d)``.
        shift: s, ``(heads, 1, d)``.
        sums: S, ``(B, heads, 2d, d + 2)``.
        eps: :math:`\epsilon`.

    Returns:
        ``(B, N, heads, d)``.
    """
    with _native.below_autograd():
        return _native.compiled(OP)(q, power, shift, sums, eps)
