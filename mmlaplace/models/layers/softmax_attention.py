from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmlaplace.ops import exporting


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    r""":math:`\mathrm{softmax}(Q K^T / \sqrt{d} + b)\, V` by PyTorch's fused kernels.

    Args:
        q: Queries ``(B, heads, N, d)``.
        k, v: Keys and values ``(B, heads, n, d)``.
        **options: As in ``torch.nn.functional.scaled_dot_product_attention``, such as
            ``attn_mask``.

    Returns:
        ``(B, heads, N, d)``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import softmax_attention
        >>> q, k, v = torch.randn(3, 1, 2, 30, 8)
        >>> softmax_attention(q, k, v).shape
        torch.Size([1, 2, 30, 8])
    """
    out = F.scaled_dot_product_attention(q, k, v, **options)
    # A fused kernel gives other strides than the operators that exporters take in its place. A copy
    # in the graph has the same strides after both, so that views of it stay views.
    return out.clone(memory_format=torch.contiguous_format) if exporting() else out
