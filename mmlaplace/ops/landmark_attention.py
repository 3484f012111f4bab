"""Nyström attention with its landmarks and their inverse, as one op for GPUs and for runtimes."""

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _checks, _native
from .backend import exporting, runtime_has
from .cholesky_inverse import cholesky_inverse
from .gaussian_kernel import gaussian_kernel
from .laplacian_kernel import laplacian_kernel
from .normalized_nystrom_attention import normalized_nystrom_attention
from .nystrom_attention import nystrom_attention
from .pooled_landmarks import pooled_landmarks

OP = '_landmark_attention'
WHOLE = '_whole_landmark_attention'
KERNELS = {'laplacian': laplacian_kernel, 'gaussian': gaussian_kernel}


def fits(q: Tensor, k: Tensor, v: Tensor, landmarks: int) -> bool:
    """Whether the compiled op takes these tokens of a GPU with so many landmarks."""
    transforming = _checks.is_transforming() or forward_ad._current_level >= 0
    if transforming or exporting() or torch.jit.is_tracing() or not _native.computes(OP, 'cuda'):
        return False
    return q.dtype == k.dtype == v.dtype and landmarks <= (32 if q.dtype == torch.float64 else 64)


def landmark_attention(*inputs: Any) -> Tensor:
    """The compiled op with the inputs of :func:`whole_landmark_attention`, for what :func:`fits`.

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


def in_runtime() -> bool:
    """Whether a graph is recorded for a runtime that has :func:`whole_landmark_attention`."""
    return runtime_has(WHOLE)


def whole_landmark_attention(
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
    floor: Optional[float] = None,
    of_queries: bool = False,
) -> Tensor:
    r"""The whole mixing rule, by public functions. Graphs for runtimes have it as one node.

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
        floor: Of :func:`normalized_nystrom_attention`, which then computes. Default: None, it
            does not.
        of_queries: Whether landmarks are of the queries, of which there are then n.
            Default: False.

    Returns:
        ``(B, heads, N, d)``.
    """
    cells = None if rows is None or columns is None else (rows, columns)
    landmarks = pooled_landmarks(
        q if of_queries else k,
        (height, width),
        cells=cells,
        ratio=ratio,
        rotary=rotary,
        rotary_form=rotary_form,
    )  # (B, heads, m, d), at least fp32
    inverse = cholesky_inverse(
        KERNELS[kernel](landmarks, landmarks, bandwidth), ridge=ridge, check=False
    )
    options: Any = dict(kernel=kernel, rotary=rotary, rotary_form=rotary_form)
    if floor is not None:
        return normalized_nystrom_attention(
            q, k, v, landmarks, inverse, bandwidth, floor=floor, **options
        )
    if gamma is not None:
        options['scale'] = gamma.to(landmarks.dtype)[:, None, None] / v.shape[-2]
    return nystrom_attention(
        q, k, v, landmarks, inverse, bandwidth, whitening_eps=whitening_eps, **options
    )


_native.register(OP, _fake, whole_landmark_attention, widen=False)
_native.define(
    f'{WHOLE}(Tensor q, Tensor k, Tensor v, Tensor? gamma, Tensor? rotary, str rotary_form, SymInt '
    'height, SymInt width, SymInt? rows, SymInt? columns, int? ratio, str kernel, float bandwidth, '
    'float ridge, float? whitening_eps, float? floor, bool of_queries) -> Tensor',
    whole_landmark_attention,
    _fake,
)
