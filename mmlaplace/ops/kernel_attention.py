"""Attention by a kernel of all pairs of tokens, in tiles."""

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
    tokens_by_head,
    tokens_of_one_dtype,
)
from .precision import no_autocast, upcast, wide_dtype
from .rotary import check_table, turn

OP = 'kernel_attention'


def kernel_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    rotary_form: str,
) -> Tensor:
    """The specification of :func:`kernel_attention` in plain PyTorch.

    It stores the N x n kernel.
    """
    query, key, value = upcast(q, k, v)
    if rotary is not None:
        query, key = turn(query, rotary, rotary_form), turn(key, rotary, rotary_form)
    logarithm = logarithm_of_kernel(METRICS[kernel], query, key, bandwidth)  # (B, heads, N, n)
    return (logarithm.softmax(-1) @ value).to(v.dtype)


# It keeps its inputs, its result in fp32 and a number of each row.
Attention, AttentionGradient = attention_functions(
    OP, kernel_attention_reference, num_tensors=4, num_kept=2
)


def kernel_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bandwidth: float,
    *,
    kernel: str = 'laplacian',
    rotary: Optional[Tensor] = None,
    rotary_form: str = 'half',
    backend: str = 'auto',
) -> Tensor:
    r"""Attention by a kernel of each query and each key, with rows of weights that add up to one.

    .. math:: \mathrm{out}_i = \frac{\sum_j k(q_i, k_j)\, v_j}{\sum_j k(q_i, k_j)}

    It is what :func:`normalized_nystrom_attention` approximates, in time that is quadratic in the
    tokens. Kernels of a query are divided by the largest one first, which cancels, so that a query
    far from all keys does not divide zero by zero. Without keys the result is zero.

    The compiled op computes this in tiles, forward and backward, and no N x n values are stored.
    For the backward it keeps its inputs, its result in fp32 and a number of each query. It reads
    fp16 and bf16 directly, and accumulates in fp32, under any autocast. The reference stores N x n
    values, and so do derivatives beyond the first. Derivatives are those of
    :func:`nystrom_attention`: any order, and none in forward mode. That of a distance of one
    channel is zero where the channel is equal.

    Args:
        q: Queries ``(B, heads, N, d)``.
        k: Keys ``(B, heads, n, d)``.
        v: Values ``(B, heads, n, d)``.
        bandwidth: Bandwidth of the kernel, see :func:`laplacian_kernel` and
            :func:`gaussian_kernel`.
        kernel: ``'laplacian'`` (default) or ``'gaussian'``.
        rotary: Cosines and sines ``(2, pairs, N)`` of angles by which pairs of channels of q and k
            are turned first. It has no gradient. Default: none.
        rotary_form: Which two channels form a pair. ``'half'`` (default): c and c + pairs.
            ``'pairs'``: 2c and 2c + 1.
        backend: ``'auto'`` (default: the compiled op where it can run, else the reference),
            ``'native'`` or ``'reference'``.

    Returns:
        ``(B, heads, N, d)``, in the dtype that q, k and v promote to. By the compiled op it is a
        view of a contiguous ``(B, N, heads, d)``, so that joining the heads copies nothing.

    Raises:
        TypeError: If an input is no floating tensor, or the bandwidth is a tensor.
        ValueError: For shapes or devices that do not fit, an unknown kernel or form, and a
            bandwidth out of range.
        RuntimeError: For ``backend='native'`` where the compiled op cannot run.

    Source: mmlaplace's. The kernels are those of LaplacianFormer (arXiv 2604.20368) and SOFT (arXiv
    2110.11945), the computation in tiles is that of FlashAttention (arXiv 2205.14135).

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import kernel_attention
        >>> q, k = torch.zeros(1, 1, 1, 2), torch.tensor([[[[0.0, 0.0], [1.0, 1.0]]]])
        >>> v = torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]])
        >>> kernel_attention(q, k, v, bandwidth=1.0)  # exp(-2) / (1 + exp(-2)), and the rest
        tensor([[[[0.1192, 0.8808]]]])
    """
    inputs = (q, k, v, rotary, kernel, bandwidth, rotary_form)
    if type(bandwidth) in (float, int):  # of an op, a tensor or a bool would be a number too
        out = _at_once(backend, *inputs)
        if out is not None:
            return out
    return _checked_attention(*inputs, backend)


def _checked_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    rotary_form: str,
    backend: str,
) -> Tensor:
    check_names(OP, kernel, rotary_form)
    q, k, v = tokens_of_one_dtype(OP, q, k, v)
    _check(q, k, v, rotary, kernel, bandwidth)
    compute = _native.select(OP, kernel_attention_reference, q.device, backend)
    with no_autocast(q.device):
        inputs = (q, k, v, rotary, kernel, float(bandwidth), rotary_form)
        if compute is kernel_attention_reference:
            return compute(*inputs)
        # Graphs take ops, whose derivative is their own.
        return (compute if _checks.is_recording() else Attention.apply)(*inputs)[0]


def _compute(*inputs: Any) -> Tensor:
    return _OP(*inputs)[0]


def _can_run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    rotary_form: str,
) -> None:
    check_names(OP, kernel, rotary_form)
    _check(q, k, v, rotary, kernel, bandwidth)
    _checks.check_like(OP, 'v', v, k)


def _check(
    q: Tensor, k: Tensor, v: Tensor, rotary: Optional[Tensor], kernel: str, bandwidth: float
) -> None:
    _checks.check_query_key(OP, q, k)
    _checks.check_floating(OP, 'v', v)
    if v.shape != k.shape or v.device != k.device:
        raise ValueError(
            f'{OP}: v must be {tuple(k.shape)} on {k.device} as k is, got {tuple(v.shape)} on '
            f'{v.device}'
        )
    check_number(OP, q, kernel, bandwidth, tokens='q and k')
    if rotary is None:
        return
    check_table(OP, rotary, q)
    if q.shape[2] != k.shape[2]:
        raise ValueError(
            f'{OP}: rotary needs as many queries as keys, got {q.shape[2]} queries and '
            f'{k.shape[2]} keys'
        )


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: Optional[Tensor],
    kernel: str,
    bandwidth: float,
    rotary_form: str,
) -> Tuple[Tensor, Tensor, Tensor]:
    _can_run(q, k, v, rotary, kernel, bandwidth, rotary_form)
    out = tokens_by_head(q, q.shape[2])
    log_sums = q.new_empty(q.shape[:3], dtype=wide_dtype(q))
    return out, torch.empty_like(out, dtype=wide_dtype(q)), log_sums


def _fake_gradient(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rotary: Optional[Tensor],
    means: Tensor,
    log_sums: Tensor,
    *constants: Any,
) -> Tuple[Tensor, ...]:
    kept = {'the gradient': grad, 'means': means, 'log_sums': log_sums}
    for (name, tensor), like in zip(kept.items(), _fake(q, k, v, rotary, *constants)):
        _checks.check_like(OP, name, tensor, like)
    return tuple(tokens_by_head(q, tokens.shape[2]) for tokens in (q, k, v))


_OP: Any = _native.find(OP)
_at_once = _native.door(OP, _can_run, _compute)
_native.register(OP, _fake, Attention.apply, widen=False)
_native.register(f'_{OP}_backward', _fake_gradient, AttentionGradient.apply, widen=False)
