"""Attention through landmarks whose weights of each query add up to one."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from . import _checks, _native
from ._attention_functions import attention_functions
from ._pairwise import logarithm_of_kernel
from .nystrom_attention import (
    METRICS,
    check_names,
    check_number,
    check_shapes,
    tokens_by_head,
    tokens_of_one_dtype,
)
from .precision import no_autocast, upcast, wide_dtype
from .rotary import turn

OP = 'normalized_nystrom_attention'
FLOOR = 1e-6  # the default of the smallest sum of weights
TINY = 1e-30  # no sum of weights counts as less, so that no gradient is infinite


def normalized_nystrom_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    floor: float,
    rotary_form: str,
) -> Tensor:
    """The specification of :func:`normalized_nystrom_attention` in plain PyTorch.

    It stores the N x m kernels.
    """
    query, key, value, landmarks, inverse = upcast(q, k, v, landmarks, inverse)
    if rotary is not None:
        query, key = turn(query, rotary, rotary_form), turn(key, rotary, rotary_form)
    landmarks, inverse = landmarks.to(query.dtype), inverse.to(query.dtype)
    of_query, of_key = (
        logarithm_of_kernel(METRICS[kernel], tokens, landmarks, bandwidth)
        for tokens in (query, key)
    )  # (B, heads, N, m) and (B, heads, n, m)
    of_query = (of_query - of_query.amax(-1, keepdim=True).detach()).exp()
    of_key = of_key.exp().transpose(-2, -1)  # (B, heads, m, n)
    values = inverse @ (of_key @ value)  # (B, heads, m, d)
    weights = inverse @ of_key.sum(-1, keepdim=True)  # (B, heads, m, 1)
    sums = of_query @ weights  # (B, heads, N, 1)
    smallest = floor * weights.detach().abs().mean(-2, keepdim=True)
    smallest = smallest.clamp(min=TINY)
    return ((of_query @ values) / torch.where(sums < smallest, smallest, sums)).to(v.dtype)


# It keeps its inputs, and sums of m and m x d.
Attention, AttentionGradient = attention_functions(
    OP, normalized_nystrom_attention_reference, num_tensors=6, num_kept=2
)


def normalized_nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    bandwidth: float,
    *,
    kernel: str = 'laplacian',
    floor: float = FLOOR,
    rotary: Optional[Tensor] = None,
    rotary_form: str = 'half',
    backend: str = 'auto',
) -> Tensor:
    r"""Attention by a kernel through landmarks, with rows of weights that add up to one.

    With :math:`C = k(Q, L)`, :math:`B = k(K, L)` and the inverse P of the landmarks' kernel:

    .. math:: \mathrm{out}_i = \frac{c_i^T P \sum_j b_j v_j^T}{c_i^T P \sum_j b_j}

    So values that are all the same come out the same. The time is linear in the tokens, in two
    passes over tokens and landmarks. Each :math:`c_i` is divided by its largest value first, which
    cancels, so that a query far from all landmarks does not divide zero by zero.

    Entries of P may be negative, so a sum of weights may be close to zero, or below it. Sums that
    are smaller than ``floor`` times the mean of :math:`|P \sum_j b_j|` over the landmarks count as
    this number, or as 1e-30, and no gradient goes through them. If every key is so far from all
    landmarks that its kernel is zero, the result is zero.

    The compiled op computes this in blocks of tokens, forward and backward, so that no N x m values
    are stored. It reads fp16 and bf16 directly, and accumulates in fp32, under any autocast.
    Derivatives are those of :func:`nystrom_attention`: any order, and none in forward mode.

    Args:
        q: Queries ``(B, heads, N, d)``.
        k: Keys ``(B, heads, n, d)``.
        v: Values ``(B, heads, n, d)``.
        landmarks: L, ``(B, heads, m, d)``. With ``rotary``, they must already be rotated.
        inverse: P, ``(B, heads, m, m)``.
        bandwidth: Bandwidth of the kernel, see :func:`laplacian_kernel` and
            :func:`gaussian_kernel`.
        kernel: ``'laplacian'`` (default) or ``'gaussian'``.
        floor: The smallest sum of weights, as said above, positive. Default: 1e-6.
        rotary: Cosines and sines ``(2, pairs, N)`` of angles by which pairs of channels of q and k
            are turned first. It has no gradient. Default: none.
        rotary_form: Which two channels form a pair. ``'half'`` (default): c and c + pairs.
            ``'pairs'``: 2c and 2c + 1.
        backend: ``'auto'`` (default: the compiled op where it can run, else the reference),
            ``'native'`` or ``'reference'``.

    Returns:
        ``(B, heads, N, d)``, in the dtype that q, k and v promote to. It is a view of a contiguous
        ``(B, N, heads, d)``, so that joining the heads copies nothing.

    Raises:
        TypeError: If an input is no floating tensor.
        ValueError: For shapes or devices that do not fit, an unknown kernel or form, no landmarks,
            and numbers out of range.
        RuntimeError: For ``backend='native'`` where the compiled op cannot run.

    Source: mmlaplace's. The kernel and the landmarks are LaplacianFormer's (arXiv 2604.20368), and
    the division by the sum of the weights is softmax attention's.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import cholesky_inverse, laplacian_kernel
        >>> from mmlaplace.ops import normalized_nystrom_attention
        >>> q, k = torch.randn(2, 1, 2, 100, 8).unbind(0)
        >>> landmarks = q[:, :, ::10]
        >>> inverse = cholesky_inverse(laplacian_kernel(landmarks, landmarks, 4.0), ridge=0.01)
        >>> v = torch.full((1, 2, 100, 8), 3.0)
        >>> out = normalized_nystrom_attention(q, k, v, landmarks, inverse, 4.0)
        >>> torch.allclose(out, v)
        True
    """
    inputs = (q, k, v, landmarks, inverse, rotary, kernel, bandwidth, floor, rotary_form)
    # Of an op, a tensor or a bool would be a number too.
    if type(bandwidth) in (float, int) and type(floor) in (float, int):
        out = _at_once(backend, *inputs)
        if out is not None:
            return out
    return _checked_attention(*inputs, backend)


def _checked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    floor: float,
    rotary_form: str,
    backend: str,
) -> Tensor:
    check_names(OP, kernel, rotary_form)
    q, k, v = tokens_of_one_dtype(OP, q, k, v)
    _check(q, k, v, landmarks, inverse, rotary, kernel, bandwidth, floor)
    compute = _native.select(OP, normalized_nystrom_attention_reference, q.device, backend)
    with no_autocast(q.device):
        constants = (kernel, float(bandwidth), float(floor), rotary_form)
        inputs = (q, k, v, landmarks, inverse, rotary, *constants)
        if compute is normalized_nystrom_attention_reference:
            return compute(*inputs)
        # Graphs take ops, whose derivative is their own.
        return (compute if _checks.is_recording() else Attention.apply)(*inputs)[0]


def _compute(*inputs: Any) -> Tensor:
    return _OP(*inputs)[0]


def _can_run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    floor: float,
    rotary_form: str,
) -> None:
    check_names(OP, kernel, rotary_form)
    _check(q, k, v, landmarks, inverse, rotary, kernel, bandwidth, floor)
    _checks.check_like(OP, 'v', v, k)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    floor: float,
) -> None:
    check_shapes(OP, q, k, v, landmarks, inverse, rotary)
    if landmarks.shape[2] == 0:
        raise ValueError(f'{OP}: there must be a landmark, got landmarks {tuple(landmarks.shape)}')
    check_number(OP, q, kernel, bandwidth)
    _checks.check_positive(OP, 'floor', floor)


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    floor: float,
    rotary_form: str,
) -> Tuple[Tensor, ...]:
    _can_run(q, k, v, landmarks, inverse, rotary, kernel, bandwidth, floor, rotary_form)
    batch, heads, tokens, dims = q.shape
    marks, wide = landmarks.shape[2], wide_dtype(q)
    return (
        tokens_by_head(q, tokens),
        q.new_empty((batch, heads, marks), dtype=wide),
        q.new_empty((batch, heads, marks, dims), dtype=wide),
    )


def _fake_gradient(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    rotary: Optional[Tensor],
    key_sum: Tensor,
    mixed: Tensor,
    *constants: Any,
) -> Tuple[Tensor, ...]:
    outs = _fake(q, k, v, landmarks, inverse, rotary, *constants)
    kept = {'the gradient': grad, 'key_sum': key_sum, 'mixed': mixed}
    for (name, tensor), like in zip(kept.items(), outs):
        _checks.check_like(OP, name, tensor, like)
    return (
        tokens_by_head(q, q.shape[2]),
        tokens_by_head(q, k.shape[2]),
        tokens_by_head(q, k.shape[2]),
        landmarks.new_empty(landmarks.shape),
        inverse.new_empty(inverse.shape),
    )


_OP: Any = _native.find(OP)
_at_once = _native.door(OP, _can_run, _compute)
_native.register(OP, _fake, Attention.apply, widen=False)
_native.register(f'_{OP}_backward', _fake_gradient, AttentionGradient.apply, widen=False)
