"""Attention through landmarks, in blocks of tokens."""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from . import _checks, _native
from ._attention_functions import attention_functions
from ._pairwise import check_bandwidth, pairwise_kernel
from .gaussian_kernel import GAUSSIAN
from .laplacian_kernel import LAPLACIAN
from .precision import HALVES, no_autocast, one_dtype, upcast, wide_dtype
from .rotary import check_form, check_table, turn

METRICS = {'laplacian': LAPLACIAN, 'gaussian': GAUSSIAN}
OP = 'nystrom_attention'


def nystrom_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    scale: Tensor,
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    whitening_eps: Optional[float],
    rotary_form: str,
    backend: str = 'reference',
) -> Tensor:
    """The specification of :func:`nystrom_attention` in plain PyTorch.

    It stores the N x m kernels. ``scale`` is ``(B, heads)``.
    """
    query, key, value, landmarks, inverse, scale = upcast(q, k, v, landmarks, inverse, scale)
    if rotary is not None:
        query, key = turn(query, rotary, rotary_form), turn(key, rotary, rotary_form)
    landmarks, inverse = landmarks.to(query.dtype), inverse.to(query.dtype)
    scale = scale.to(query.dtype)[..., None, None]
    of_query, of_key = (
        pairwise_kernel(METRICS[kernel], tokens, landmarks, bandwidth, backend)
        for tokens in (query, key)
    )  # (B, heads, N, m) and (B, heads, n, m)
    if whitening_eps is None:
        return (scale * (of_query @ (inverse @ (of_key.transpose(-2, -1) @ value)))).to(v.dtype)
    weights = inverse @ of_key.transpose(-2, -1)  # (B, heads, m, n)
    centered = of_query - of_query.mean(-2, keepdim=True)
    covariance = centered.transpose(-2, -1) @ centered / query.shape[-2]  # (B, heads, m, m)
    # A quadratic form of a covariance; only rounding can bring it below zero.
    variance = (weights * (covariance @ weights)).sum(-2).clamp(min=0)  # (B, heads, n)
    whitened = value * (variance + whitening_eps).rsqrt().unsqueeze(-1)
    mixed = scale * (centered @ (weights @ whitened))  # (B, heads, N, d)
    return (mixed + value.mean(-2, keepdim=True)).to(v.dtype)


def _differentiable_reference(*inputs: Any) -> Tensor:
    arguments: Any = (*inputs, 'auto')
    return nystrom_attention_reference(*arguments)


# It keeps its inputs, and matrices of m x m and m x d.
Attention, AttentionGradient = attention_functions(
    OP, _differentiable_reference, num_tensors=7, num_kept=3
)


def nystrom_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    bandwidth: float,
    *,
    kernel: str = 'laplacian',
    scale: Optional[Tensor] = None,
    whitening_eps: Optional[float] = None,
    rotary: Optional[Tensor] = None,
    rotary_form: str = 'half',
    backend: str = 'auto',
) -> Tensor:
    r"""Attention by a kernel through landmarks, in time linear in the tokens.

    With :math:`C = k(Q, L)`, :math:`B = k(K, L)`, the inverse P of the landmarks' kernel, and a
    scale s of each head:

    .. math:: \mathrm{out} = s\, C\, P\, B^T V

    With ``whitening_eps``, each column of :math:`C P B^T` is brought to mean zero and unit variance
    over the queries, and the mean value is added:

    .. math::
        \mathrm{out} = s\, (C - 1 \bar c^T)\, P \sum_j r_j b_j v_j^T + \bar v, \quad
        r_j = (b_j^T P^T \mathrm{Cov}(C)\, P\, b_j + \varepsilon_w)^{-1/2}

    The compiled op computes this in blocks of tokens, forward and backward, so that no N x m values
    are stored. For the backward it keeps its inputs, and matrices of m x m and m x d. It reads fp16
    and bf16 directly, and accumulates in fp32, under any autocast. There are derivatives of any
    order, but none in forward mode. Derivatives beyond the first store N x m values. In graphs of
    torch.compile there are only first derivatives. The transforms of ``torch.func`` (``vmap``,
    ``grad``, ``jacrev``) work, but for a table that is itself transformed.

    Args:
        q: Queries ``(B, heads, N, d)``.
        k: Keys ``(B, heads, n, d)``.
        v: Values ``(B, heads, n, d)``.
        landmarks: L, ``(B, heads, m, d)``. With ``rotary``, they must already be rotated.
        inverse: P, ``(B, heads, m, m)``.
        bandwidth: Bandwidth of the kernel, see :func:`laplacian_kernel` and
            :func:`gaussian_kernel`.
        kernel: ``'laplacian'`` (default) or ``'gaussian'``.
        scale: s, broadcastable to ``(B, heads, 1, 1)``. Default: 1.
        whitening_eps: :math:`\varepsilon_w`, positive. Default: no whitening.
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
        TypeError: If an input is no floating tensor, or a number is a tensor.
        ValueError: For shapes or devices that do not fit, an unknown kernel or form, and numbers
            out of range.
        RuntimeError: For ``backend='native'`` where the compiled op cannot run.

    Source: LaplacianFormer (arXiv 2604.20368) and SOFT (arXiv 2110.11945). The computation in
    blocks is mmlaplace's.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import cholesky_inverse, laplacian_kernel, nystrom_attention
        >>> q, k, v = torch.randn(3, 1, 2, 100, 8).unbind(0)
        >>> landmarks = k[:, :, ::10]
        >>> inverse = cholesky_inverse(laplacian_kernel(landmarks, landmarks, 4.0))
        >>> nystrom_attention(q, k, v, landmarks, inverse, 4.0, whitening_eps=1e-5).shape
        torch.Size([1, 2, 100, 8])
    """
    tensors = (q, k, v, landmarks, inverse, scale, rotary)
    constants = (kernel, bandwidth, whitening_eps, rotary_form)
    # Of an op, a tensor or a bool would be a number too.
    if type(bandwidth) in (float, int) and not isinstance(whitening_eps, Tensor):
        out = _at_once(backend, *tensors, *constants)
        if out is not None:
            return out
    return _checked_attention(*tensors, *constants, backend)


def _checked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    scale: Optional[Tensor],
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    whitening_eps: Optional[float],
    rotary_form: str,
    backend: str,
) -> Tensor:
    check_names(OP, kernel, rotary_form)
    q, k, v = tokens_of_one_dtype(OP, q, k, v)
    check_shapes(OP, q, k, v, landmarks, inverse, rotary)
    check_number(OP, q, kernel, bandwidth)
    _check_eps(whitening_eps)
    compute = _native.select(OP, nystrom_attention_reference, q.device, backend)
    with no_autocast(q.device):
        scale = _scale_of_heads(torch.ones((), device=q.device) if scale is None else scale, q)
        eps = None if whitening_eps is None else float(whitening_eps)
        constants = (kernel, float(bandwidth), eps, rotary_form)
        inputs = (q, k, v, landmarks, inverse, scale, rotary, *constants)
        if compute is nystrom_attention_reference:
            return compute(*inputs)
        # Graphs take ops, whose derivative is their own.
        return (compute if _checks.is_recording() else Attention.apply)(*inputs)[0]


def _compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    scale: Optional[Tensor],
    *others: Any,
) -> Tensor:
    """The compiled op with a scale as users give it. The op takes one for each head of an image."""
    if scale is None:
        of_heads = q.new_ones(q.shape[:2])
    else:
        wide = scale.float() if scale.dtype in HALVES else scale
        of_heads = wide.expand(*q.shape[:2], 1, 1).flatten(1)
    return _OP(q, k, v, landmarks, inverse, of_heads, *others)[0]


def _can_run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    scale: Optional[Tensor],
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    whitening_eps: Optional[float],
    rotary_form: str,
) -> None:
    check_names(OP, kernel, rotary_form)
    check_shapes(OP, q, k, v, landmarks, inverse, rotary)
    check_number(OP, q, kernel, bandwidth)
    _check_eps(whitening_eps)
    _checks.check_like(OP, 'v', v, k)
    if scale is not None:
        _scale_of_heads(scale, q)


def check_names(op: str, kernel: str, rotary_form: str) -> None:
    """Raise unless kernel and form are known. ``op`` is the name in the error, here and below."""
    if kernel not in METRICS:
        raise ValueError(f'{op}: kernel must be one of {tuple(METRICS)}, got {kernel!r}')
    check_form(op, rotary_form)


def check_number(
    op: str, q: Tensor, kernel: str, bandwidth: float, tokens: str = 'q, k and landmarks'
) -> None:
    """Raise unless the bandwidth is a number in range. ``tokens`` are what it would divide."""
    if isinstance(bandwidth, Tensor):
        raise TypeError(f'{op}: bandwidth must be a number, got a tensor; divide {tokens}')
    check_bandwidth(METRICS[kernel], bandwidth, q, op)


def _check_eps(whitening_eps: Optional[float]) -> None:
    if whitening_eps is not None:
        _checks.check_positive(OP, 'whitening_eps', whitening_eps)


def tokens_of_one_dtype(op: str, q: Tensor, k: Tensor, v: Tensor) -> Tuple[Tensor, ...]:
    """q, k and v in the dtype that they promote to."""
    for name, tensor in (('q', q), ('k', k), ('v', v)):
        _checks.check_tensor(op, name, tensor)
    return tuple(one_dtype(q, k, v))


def check_shapes(
    op: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    rotary: Optional[Tensor],
) -> None:
    """Raise unless the tensors of a Nyström attention fit each other."""
    _checks.check_query_key(op, q, k)
    batch, heads, tokens, dims = q.shape
    _checks.check_floating(op, 'landmarks', landmarks)
    keys = k.shape[2]
    num_landmarks = landmarks.shape[2] if landmarks.dim() == 4 else 'm'
    for name, tensor, expected in (
        ('v', v, (batch, heads, keys, dims)),
        ('landmarks', landmarks, (batch, heads, num_landmarks, dims)),
        ('inverse', inverse, (batch, heads, num_landmarks, num_landmarks)),
    ):
        _checks.check_floating(op, name, tensor)
        if tensor.shape != expected or tensor.device != q.device:
            raise ValueError(
                f'{op}: {name} must be {expected} on {q.device}, got {tuple(tensor.shape)} on '
                f'{tensor.device}'
            )
    if rotary is None:
        return
    check_table(op, rotary, q)
    if tokens != keys:
        raise ValueError(
            f'{op}: rotary needs as many queries as keys, got {tokens} queries and {keys} keys'
        )


def _scale_of_heads(scale: Tensor, q: Tensor) -> Tensor:
    """A scale that broadcasts to ``(B, heads, 1, 1)``, as ``(B, heads)``."""
    _checks.check_floating(OP, 'scale', scale)
    whole = (*q.shape[:2], 1, 1)
    if not _checks.broadcasts(scale, whole) or scale.device != q.device:
        raise ValueError(
            f'{OP}: scale must broadcast to (B, heads, 1, 1), here {whole} on {q.device}, got '
            f'{tuple(scale.shape)} on {scale.device}'
        )
    return upcast(scale)[0].expand(whole).flatten(1)


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    scale: Tensor,
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    whitening_eps: Optional[float],
    rotary_form: str,
) -> Tuple[Tensor, ...]:
    constants = (kernel, bandwidth, whitening_eps, rotary_form)
    _can_run(q, k, v, landmarks, inverse, None, rotary, *constants)
    batch, heads, tokens, dims = q.shape
    _checks.check_floating(OP, 'scale', scale)
    if scale.shape != (batch, heads):
        raise ValueError(f'{OP}: scale must be {(batch, heads)}, got {tuple(scale.shape)}')
    num_landmarks = landmarks.shape[2]
    moments = 0 if whitening_eps is None else num_landmarks
    wide = wide_dtype(q)
    return (
        tokens_by_head(q, tokens),
        q.new_empty((batch, heads, moments), dtype=wide),
        q.new_empty((batch, heads, moments, moments), dtype=wide),
        q.new_empty((batch, heads, num_landmarks, dims), dtype=wide),
    )


def _fake_gradient(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    landmarks: Tensor,
    inverse: Tensor,
    scale: Tensor,
    rotary: Optional[Tensor],
    mean: Tensor,
    covariance: Tensor,
    mixed: Tensor,
    *constants: Any,
) -> Tuple[Tensor, ...]:
    outs = _fake(q, k, v, landmarks, inverse, scale, rotary, *constants)
    kept = dict(mean=mean, covariance=covariance, mixed=mixed)
    for (name, tensor), like in zip([('the gradient', grad), *kept.items()], outs):
        _checks.check_like(OP, name, tensor, like)
    return (
        tokens_by_head(q, q.shape[2]),
        tokens_by_head(q, k.shape[2]),
        tokens_by_head(q, k.shape[2]),
        *(tensor.new_empty(tensor.shape) for tensor in (landmarks, inverse, scale)),
    )


def tokens_by_head(q: Tensor, tokens: int) -> Tensor:
    """Empty tokens ``(B, heads, N, d)``, whose heads are side by side in memory."""
    batch, heads, _, dims = q.shape
    return q.new_empty((batch, tokens, heads, dims)).transpose(1, 2)


_OP: Any = _native.find(OP)
_native.register(OP, _fake, Attention.apply, widen=False)
_at_once = _native.door(OP, _can_run, _compute)
_native.register(f'_{OP}_backward', _fake_gradient, AttentionGradient.apply, widen=False)
