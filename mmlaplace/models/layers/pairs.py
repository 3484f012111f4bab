"""Attention over all pairs of tokens: softmax, offsets for a bias, and a check of memory."""

from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any, ContextManager, Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmlaplace.ops import exporting
from mmlaplace.ops._checks import is_compiling, is_transforming

MOST_BYTES = 4e9  # may be set to another


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Optional[Tensor] = None, **options: Any
) -> Tensor:
    r""":math:`\mathrm{softmax}(Q K^T / \sqrt{d} + b)\, V` by PyTorch's fused kernels.

    Args:
        q: Queries ``(B, heads, N, d)``.
        k, v: Keys and values ``(B, heads, n, d)``.
        attn_mask: The bias b, or a boolean mask of the keys that each query sees, broadcastable to
            ``(B, heads, N, n)``. Default: none.
        **options: As in ``torch.nn.functional.scaled_dot_product_attention``.

    Returns:
        ``(B, heads, N, d)``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import softmax_attention
        >>> q, k, v = torch.randn(3, 1, 2, 30, 8)
        >>> softmax_attention(q, k, v).shape
        torch.Size([1, 2, 30, 8])
    """
    recorded = (is_compiling() or torch.jit.is_tracing()) and exporting()
    if recorded and 'scale' in options:  # which torch < 2.2 does not write to ONNX
        q = q * (options.pop('scale') * q.shape[-1] ** 0.5)
    if attn_mask is None or not is_transforming():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask, **options)
    else:
        with _kernels_for(attn_mask):
            out = F.scaled_dot_product_attention(q, k, v, attn_mask, **options)
    if recorded:
        # A fused kernel gives other strides than the operators that exporters take in its place. A
        # copy in the graph has the same strides after both, so that views of it stay views.
        return out.clone(memory_format=torch.contiguous_format)
    if out.shape[0] == 0 and attn_mask is not None and attn_mask.is_floating_point():
        out = out + 0 * attn_mask.sum()  # torch 2.14 gives no gradient of no images
    return out


def _kernels_for(bias: Tensor) -> ContextManager:
    """The kernels that PyTorch may take in a transform.

    In transforms of torch.func, PyTorch does not see that a bias needs a gradient. On a CPU it then
    takes a kernel without this gradient.
    """
    if not (bias.is_floating_point() and find_spec('torch.nn.attention')):  # torch >= 2.3
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.MATH)


def offsets_of_pairs(height: int, width: int, device: torch.device) -> Tuple[Tensor, Tensor]:
    """How far apart the tokens of each pair are, as indices of a table of offsets.

    Returns:
        Rows and columns, ``(N, N)`` each with ``N = height * width``. They are 0 for the smallest
        offset, ``1 - height`` or ``1 - width``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.pairs import offsets_of_pairs
        >>> rows, columns = offsets_of_pairs(1, 2, torch.device('cpu'))
        >>> torch.arange(3.0).view(1, 3)[rows, columns]
        tensor([[1., 0.],
                [2., 1.]])
    """
    rows = torch.arange(height, device=device).repeat_interleave(width)
    columns = torch.arange(width, device=device).repeat(height)
    return (
        rows[:, None] - rows[None, :] + height - 1,
        columns[:, None] - columns[None, :] + width - 1,
    )


def check_pairs_fit(attention: object, q: Tensor, k: Tensor, matrices: Tuple[int, int]) -> None:
    """Raise a ValueError if matrices of queries by keys would take more than 4 GB.

    Args:
        attention: The attention that the message names.
        q: Queries ``(B, heads, N, d)``.
        k: Keys ``(B, heads, n, d)``.
        matrices: Number of matrices in memory at a time, without and with gradients, as measured.
    """
    if (is_compiling() or torch.jit.is_tracing()) and exporting():
        return  # a graph need not know its sizes
    batch, heads, queries = q.shape[:3]
    training = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    count = matrices[1] if training else matrices[0]
    one = batch * heads * queries * k.shape[2] * max(q.element_size(), 4)  # fp32 at least
    if count * one > MOST_BYTES:
        images = f'{batch} images' if batch > 1 else f'{batch} image'
        raise ValueError(
            f'{type(attention).__name__} has a weight for each pair of tokens: {images} x {heads} '
            f'heads x {queries} queries x {k.shape[2]} keys are '
            f'{one / 1e9:.1f} GB, and with {count} such matrices at a time {count * one / 1e9:.1f} '
            f'GB, more than {MOST_BYTES / 1e9:.0f} GB; take smaller images or batches, '
            'an attention that is linear in the tokens or, where the attention has it, sr_ratio, '
            f'or raise {__name__}.MOST_BYTES'
        )
