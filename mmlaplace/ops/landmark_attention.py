"""Nyström attention with its landmarks and their inverse, as one op for inference on a GPU."""

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _checks, _native
from .backend import exporting
from .cholesky_inverse import cholesky_inverse
from .gaussian_kernel import gaussian_kernel
from .laplacian_kernel import laplacian_kernel
from .nystrom_attention import nystrom_attention
from .pooled_landmarks import pooled_landmarks

OP = '_landmark_attention'
KERNELS = {'laplacian': laplacian_kernel, 'gaussian': gaussian_kernel}


def fits(q: Tensor, k: Tensor, v: Tensor, landmarks: int) -> bool:
    """Whether the compiled op takes these tokens of a GPU with so many landmarks."""
    transforming = _checks.is_transforming() or forward_ad._current_level >= 0
    if transforming or exporting() or torch.jit.is_tracing() or not _native.computes(OP, 'cuda'):
        return False
    return q.dtype == k.dtype == v.dtype and landmarks <= (32 if q.dtype == torch.float64 else 64)


def composed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    gamma: Optional[Tensor],
    rotary: Optional[Tensor],
    rotary_form: str,
    height: int,
    width: int,
    rows: Optional[int],
    columns: Optional[int],
    ratio: Optional[int],
    kernel: str,
    bandwidth: float,
    ridge: float,
    whitening_eps: Optional[float],
) -> Tensor:
    r"""The specification of :func:`landmark_attention`, by four public functions.

    .. math::
        L = \mathrm{pooled\_landmarks}(K), \quad P = (k(L, L) + \varepsilon I)^{-1}, \quad
        \mathrm{out} = \mathrm{nystrom\_attention}(Q, K, V, L, P)

    Args:
        q: Queries ``(B, heads, N, d)``.
        k, v: Keys and values ``(B, heads, n, d)``, with n = height * width.
        gamma: ``(heads,)``. The scale of a head is :math:`\gamma / n`, and without it 1.
        rotary, rotary_form, whitening_eps, kernel, bandwidth: As in :func:`nystrom_attention`.
        height, width, rows, columns, ratio: Map and cells of :func:`pooled_landmarks`.
        ridge: :math:`\varepsilon` of :func:`cholesky_inverse`.

    Returns:
        ``(B, heads, N, d)``.
    """
    cells = None if rows is None or columns is None else (rows, columns)
    landmarks = pooled_landmarks(
        k, (height, width), cells=cells, ratio=ratio, rotary=rotary, rotary_form=rotary_form
    )  # (B, heads, m, d), at least fp32
    inverse = cholesky_inverse(
        KERNELS[kernel](landmarks, landmarks, bandwidth), ridge=ridge, check=False
    )
    scale = None if gamma is None else gamma.to(landmarks.dtype)[:, None, None] / v.shape[-2]
    return nystrom_attention(
        q,
        k,
        v,
        landmarks,
        inverse,
        bandwidth,
        kernel=kernel,
        scale=scale,
        whitening_eps=whitening_eps,
        rotary=rotary,
        rotary_form=rotary_form,
    )


def landmark_attention(*inputs: Any) -> Tensor:
    """The compiled op with the arguments of :func:`composed`, for what :func:`fits`.

    It has five launches, and a graph of torch.compile has it as one node. Where autograd records,
    it is composed.
    """
    op = _native.compiled(OP)
    if torch.is_grad_enabled() or _checks.is_compiling():
        return op(*inputs)
    with _native.below_autograd():
        return op(*inputs)


def _fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> Tensor:
    _checks.check_query_key(OP, q, k)
    _checks.check_like(OP, 'v', v, k)
    batch, heads, tokens, dims = q.shape
    return q.new_empty((batch, tokens, heads, dims)).transpose(1, 2)


_native.register(OP, _fake, composed, widen=False)
