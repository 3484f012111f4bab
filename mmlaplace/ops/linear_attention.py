"""Attention whose weights are products of features, in time linear in the tokens."""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from . import _checks, _native
from ._attention_functions import batches_apart, joined_batches
from .backend import ceil_div, runtime_has, split_at
from .precision import no_autocast, one_dtype, upcast, wide_dtype

OP = 'linear_attention'
# On a GPU. A block keeps the sums over the keys in shared memory, which has no room for more.
LARGEST = 128


def elu_plus_one(x: Tensor) -> Tensor:
    r"""The positive features :math:`\mathrm{elu}(x) + 1 = e^{\min(x, 0)} + \mathrm{relu}(x)`.

    The function computes the right side. With elu(x) near -1, the sum on the left would lose small
    values: all of them below x = -17 in fp32, and below -6 in bfloat16.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import elu_plus_one
        >>> elu_plus_one(torch.tensor([-20.0, 0.0, 2.0]))
        tensor([2.0612e-09, 1.0000e+00, 3.0000e+00])
    """
    positive = F.relu(x)
    # Not clamp(max=0), whose gradient at 0 is 1 up to torch 2.13, and 0 since then.
    return (x - positive).exp() + positive


FEATURES: Dict[str, Callable[[Tensor], Tensor]] = {
    'none': lambda x: x,
    'relu': F.relu,
    'elu_plus_one': elu_plus_one,
}


def linear_attention_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    top_q: Optional[Tensor],
    top_k: Optional[Tensor],
    eps: float,
    features: str,
    streams: int,
) -> Tensor:
    """The specification of :func:`linear_attention` in plain PyTorch."""
    numerator = () if top_q is None or top_k is None else (top_q, top_k)
    query, key, value, *tops = upcast(q, k, v, *numerator)
    if features != 'none':
        query, key = FEATURES[features](query), FEATURES[features](key)
    if streams == 1 and not tops:
        # One product sums keys and values. Its last column is the mean key, of values that are one.
        summed = key.transpose(-2, -1) @ F.pad(value, (0, 1), value=1.0) / k.shape[-2]
        products = query @ summed  # (B, heads, N, d + 1)
        return (products[..., :-1] / (products[..., -1:] + eps)).to(v.dtype)
    top_q, top_k = tops or (query, key)
    summed = top_k.transpose(-2, -1) @ value / k.shape[-2]  # (B, heads, f, d)
    mean_key = key.mean(-2).unsqueeze(-1)  # (B, heads, f, 1)
    if streams == 1:
        return (top_q @ summed / (query @ mean_key + eps)).to(v.dtype)
    # Features are exchanged in these matrices, which are smaller than the queries. Sizes of a trace
    # may be tensors.
    first, half = ceil_div(int(v.shape[-1]), 2), int(q.shape[-1]) // 2
    same, opposite = split_at(summed, first, -1)
    sums = torch.cat([same, opposite.roll(half, -2)], dim=-1)
    normalizers = query @ torch.cat([mean_key, mean_key.roll(half, -2)], dim=-1) + eps
    return normalized_streams(top_q @ sums, normalizers).to(v.dtype)


def normalized_streams(products: Tensor, normalizers: Tensor) -> Tensor:
    """Products ``(B, heads, N, d)`` over the normalizers ``(B, heads, N, 2)`` of two streams.

    The first ``ceil(d / 2)`` channels are one stream, and the others the second.
    """
    streams = split_at(products, ceil_div(int(products.shape[-1]), 2), -1)
    outs = [stream / sums for stream, sums in zip(streams, normalizers.split(1, dim=-1))]
    return torch.cat(outs, dim=-1)


class Attention(_native.Function):
    """The compiled op, which keeps its inputs and the sums over the keys for the backward."""

    @staticmethod
    def forward(*inputs: Any) -> Tuple[Tensor, Tensor]:
        with _native.below_autograd():
            return _native.compiled(OP)(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:5], output[1])
        ctx.constants = inputs[5:]

    @staticmethod
    def backward(ctx: Any, grad: Optional[Tensor], *_: Any) -> tuple:
        if grad is None:
            return (None,) * 8
        *grads, of_top_q, of_top_k = AttentionGradient.apply(
            grad, *ctx.saved_tensors, *ctx.constants
        )
        of_tops = (None, None) if ctx.saved_tensors[3] is None else (of_top_q, of_top_k)
        return (*grads, *of_tops, *(None,) * 3)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> Tuple[tuple, tuple]:
        outputs = Attention.apply(*joined_batches(info.batch_size, in_dims, inputs, rotary=-1))
        return batches_apart(info.batch_size, outputs)


class AttentionGradient(_native.Function):
    """The gradients of :class:`Attention`. Second derivatives are those of the specification."""

    @staticmethod
    def forward(*inputs: Any) -> Tuple[Tensor, ...]:
        with _native.below_autograd():
            return _native.compiled(f'_{OP}_backward')(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.save_for_backward(*inputs[:6])
        ctx.constants = inputs[7:]

    @staticmethod
    def backward(ctx: Any, *changes: Any) -> tuple:
        given = [tensor for tensor in ctx.saved_tensors if tensor is not None]
        tops = (None,) * (6 - len(given))

        def gradients(grad: Tensor, *tensors: Tensor) -> tuple:
            def attention(*tensors: Tensor) -> Tensor:
                arguments: Any = (*tensors, *tops, *ctx.constants)
                return linear_attention_reference(*arguments)

            return torch.func.vjp(attention, *tensors)[1](grad)

        found = torch.func.vjp(gradients, *given)[1](changes[: len(given) - 1])
        return (*found, *tops, *(None,) * 4)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> Tuple[tuple, tuple]:
        outputs = AttentionGradient.apply(
            *joined_batches(info.batch_size, in_dims, inputs, rotary=-1)
        )
        return batches_apart(info.batch_size, outputs)


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eps: float = 1e-6,
    numerator: Optional[Sequence[Tensor]] = None,
    *,
    features: str = 'none',
    streams: int = 1,
    eps_of_sum: bool = False,
    backend: str = 'auto',
) -> Tensor:
    r"""Attention whose weights are products of features, without an N x N matrix.

    .. math:: y_i = \frac{\tilde q_i \, \frac{1}{n} \sum_j \tilde k_j^T v_j}
                         {q_i \cdot \frac{1}{n} \sum_j k_j + \epsilon}

    The epsilon is added to a mean, so its effect does not depend on the number of keys. Sums and
    the division are fp32 under any autocast.

    On a CPU torch's products compute this. On a GPU the compiled op does, in two passes over the
    tokens forward and two backward. It reads fp16 and bf16 directly, and keeps its inputs and the
    sums over the keys for the backward. Derivatives beyond the first, and those in forward mode,
    are torch's.

    Args:
        q: Features of the queries ``(B, heads, N, f)``, not negative.
        k: Features of the keys ``(B, heads, n, f)``.
        v: Values ``(B, heads, n, d)``.
        eps: :math:`\epsilon`, which keeps a query without a key from a division by zero. Default:
            1e-6.
        numerator: :math:`\tilde q, \tilde k`, such as features with rotary positions, like q and k
            in shape. Default: q and k.
        features: What q and k become first: ``'none'`` (default: they are features already),
            ``'relu'`` or ``'elu_plus_one'``, see
            :func:`~mmlaplace.models.layers.elu_plus_one`. The numerator stays as it is.
        streams: 1, or 2 as in PolaFormer. Of two streams, the first :math:`\lceil d / 2 \rceil`
            channels of v are mixed as above, and the others by queries whose two halves of features
            are exchanged. Default: 1.
        eps_of_sum: Whether epsilon is added to the sum over the keys, and not to their mean. Graphs
            then have torch's products, as the number of keys may change. Default: False.
        backend: ``'auto'`` (default: the compiled op on a GPU for up to 128 features and channels,
            and else the reference), ``'native'`` or ``'reference'``.

    Returns:
        ``(B, heads, N, d)`` in the dtype of ``v``. Tensors of several dtypes are computed in that
        to which all of them promote.

    Raises:
        TypeError: If an input is no floating tensor, or ``eps`` no number.
        ValueError: For shapes or devices that do not fit, no keys, unknown ``features``, and
            numbers out of range.
        RuntimeError: For ``backend='native'`` where the compiled op cannot run.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import linear_attention
        >>> q, k = torch.rand(1, 2, 30, 8), torch.rand(1, 2, 12, 8)
        >>> linear_attention(q, k, torch.ones(1, 2, 12, 16), eps=0).mean().round(decimals=3)
        tensor(1.)
    """
    top_q, top_k = (None, None) if numerator is None else numerator
    pays = _pays(q, k, v, eps_of_sum)
    if pays and not isinstance(eps, Tensor):  # of an op, a tensor would be a number too
        out = _at_once(backend, q, k, v, top_q, top_k, eps, features, streams, eps_of_sum)
        if out is not None:
            return out
    _check(q, k, v, top_q, top_k, eps, features, streams)
    tensors = (q, k, v, top_q, top_k)
    alike = q.dtype == k.dtype == v.dtype
    if top_q is not None and top_k is not None:
        alike = alike and top_q.dtype == top_k.dtype == q.dtype
    if not alike:
        tensors = one_dtype(*tensors)
    # Asked of torch first, so that eager forwards make no further call.
    recording = torch.jit.is_tracing() or _checks.is_compiling()
    if recording and not eps_of_sum and in_runtime(*tensors):
        out = torch.ops.mmlaplace.linear_attention(*tensors, eps, features, streams)[0]
        return out.to(v.dtype)
    constants = (eps / k.shape[-2] if eps_of_sum else eps, features, streams)
    compute = _native.select(OP, linear_attention_reference, q.device, backend, pays)
    with no_autocast(q.device):
        if compute is linear_attention_reference:
            out = compute(*tensors, *constants)
            return out if out.dtype == v.dtype else out.to(v.dtype)
        # Graphs take ops, whose derivative is their own.
        if not _checks.is_recording():
            compute = Attention.apply
        return compute(*tensors, *constants)[0].to(v.dtype)


def in_runtime(
    q: Tensor, k: Tensor, v: Tensor, top_q: Optional[Tensor], top_k: Optional[Tensor]
) -> bool:
    """Whether a graph is recorded for a runtime that has this op, in fp32 and for such channels."""
    return (
        runtime_has(OP)
        and _native.why_not(OP, 'cpu') is None
        and q.dtype == torch.float32
        and q.shape[3] == v.shape[3]
    )


def _pays(q: Tensor, k: Tensor, v: Tensor, eps_of_sum: bool) -> bool:
    """Whether the compiled op is faster than torch's products, and has the same derivatives."""
    return (
        isinstance(q, Tensor)
        and q.is_cuda
        and all(isinstance(tensor, Tensor) and tensor.dim() == 4 for tensor in (q, k, v))
        and max(q.shape[3], v.shape[3]) <= LARGEST
        and not (eps_of_sum and _checks.is_recording())
        and forward_ad._current_level < 0
    )


def _compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    top_q: Optional[Tensor],
    top_k: Optional[Tensor],
    eps: float,
    features: str,
    streams: int,
    eps_of_sum: bool,
) -> Tensor:
    """The compiled op with an epsilon as users give it."""
    _check_keys(k)
    eps = eps / k.shape[-2] if eps_of_sum else eps
    return _OP(q, k, v, top_q, top_k, eps, features, streams)[0]


def _can_run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    top_q: Optional[Tensor],
    top_k: Optional[Tensor],
    eps: float,
    features: str,
    streams: int,
    eps_of_sum: bool = False,
) -> None:
    _check(q, k, v, top_q, top_k, eps, features, streams)
    for name, tensor in (('k', k), ('v', v), ('top_q', top_q), ('top_k', top_k)):
        if tensor is not None and tensor.dtype != q.dtype:
            raise ValueError(f'{OP}: {name} must be {q.dtype} as q is, got {tensor.dtype}')


def _check_keys(k: Tensor) -> None:
    """Raise if there is no key, as a mean of nothing is NaN. Graphs have other numbers later."""
    if not _checks.is_recording() and k.shape[2] == 0:
        raise ValueError(
            f'{OP}: k must have at least one key, got shape {tuple(k.shape)}; without a key there '
            'is no mean'
        )


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    top_q: Optional[Tensor],
    top_k: Optional[Tensor],
    eps: float,
    features: str,
    streams: int,
) -> None:
    # What raises is called for what it refuses alone, as models call this in each block.
    for name, tensor in (('q', q), ('k', k), ('v', v)):
        if not isinstance(tensor, Tensor) or tensor.dtype not in _checks.FLOATING:
            _checks.check_floating(OP, name, tensor)
        if tensor.dim() != 4:
            raise ValueError(
                f'{OP}: {name} must have the four axes (B, heads, tokens, channels), got shape '
                f'{tuple(tensor.shape)}'
            )
    _check_keys(k)
    batch, heads, _, width = q.shape
    shapes: List[Tuple[str, Tensor, Tuple[int, ...]]] = [
        ('k', k, (batch, heads, k.shape[2], width)),
        ('v', v, (batch, heads, k.shape[2], v.shape[3])),
    ]
    for name, given, like in (('numerator[0]', top_q, q), ('numerator[1]', top_k, k)):
        if given is not None:
            if not isinstance(given, Tensor) or given.dtype not in _checks.FLOATING:
                _checks.check_floating(OP, name, given)
            shapes.append((name, given, tuple(like.shape)))
    for name, given, expected in shapes:
        if given.shape != expected or given.device != q.device:
            raise ValueError(
                f'{OP}: {name} must be {expected} on {q.device} for q {tuple(q.shape)} and k '
                f'{tuple(k.shape)}, got {tuple(given.shape)} on {given.device}'
            )
    if (top_q is None) != (top_k is None):
        raise ValueError(f'{OP}: a numerator needs both of its tensors, got one')
    if not isinstance(eps, float) or not 0 <= eps < float('inf'):
        _checks.check_not_negative(OP, 'eps', eps)
    if features not in FEATURES:
        raise ValueError(f'{OP}: features must be one of {tuple(FEATURES)}, got {features!r}')
    if streams not in (1, 2):
        raise ValueError(f'{OP}: streams must be 1 or 2, got {streams}')
    if streams == 2 and width % 2:
        raise ValueError(f'{OP}: two streams need an even number of features, got {width}')


def _fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    top_q: Optional[Tensor],
    top_k: Optional[Tensor],
    eps: float,
    features: str,
    streams: int,
) -> Tuple[Tensor, Tensor]:
    _can_run(q, k, v, top_q, top_k, eps, features, streams)
    sums = q.new_empty((*q.shape[:2], q.shape[3], v.shape[3] + 1), dtype=wide_dtype(q))
    return _tokens(q, v.shape[3]), sums


def _fake_gradient(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    top_q: Optional[Tensor],
    top_k: Optional[Tensor],
    sums: Tensor,
    eps: float,
    features: str,
    streams: int,
) -> Tuple[Tensor, ...]:
    out, like = _fake(q, k, v, top_q, top_k, eps, features, streams)
    _checks.check_like(OP, 'the gradient', grad, out)
    _checks.check_like(OP, 'sums', sums, like)
    of_tops = 0 if top_q is None else q.shape[3]
    return (
        *(_tokens(tensor, tensor.shape[3]) for tensor in (q, k, v)),
        *(_tokens(tensor, of_tops) for tensor in (q, k)),
    )


def _tokens(like: Tensor, width: int) -> Tensor:
    """Empty tokens ``(B, heads, N, width)``, whose heads are side by side in memory."""
    batch, heads, tokens, _ = like.shape
    return like.new_empty((batch, tokens, heads, width)).transpose(1, 2)


_OP: Any = _native.find(OP)
_native.register(OP, _fake, Attention.apply, widen=False)
_at_once = _native.door(OP, _can_run, _compute)
_native.register(f'_{OP}_backward', _fake_gradient, AttentionGradient.apply, widen=False)
