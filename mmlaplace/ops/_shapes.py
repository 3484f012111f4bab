"""Empty outputs of the native kernels of differences, for meta tensors and tracing."""

from typing import Tuple

from torch import Tensor


def pairwise_shapes(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """``(B, heads, N, M)`` from q ``(B, heads, N, d)`` and k ``(B, heads, M, d)``."""
    return q.new_empty((*q.shape[:3], k.shape[2]))


def pairwise_gradient_shapes(
    grad: Tensor, q: Tensor, k: Tensor, out: Tensor, scale: float
) -> Tuple[Tensor, Tensor]:
    """The gradients of q and k, contiguous."""
    return q.new_empty(q.shape), k.new_empty(k.shape)
