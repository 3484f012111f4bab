from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any, ContextManager, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

from mmlaplace.ops import exporting
from mmlaplace.ops._checks import is_compiling, is_transforming


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
