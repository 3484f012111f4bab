import torch
from torch import Tensor


def unit_vectors(x: Tensor, dim: int = -1, eps: float = 1e-6) -> Tensor:
    """``x`` divided by its length along ``dim``, and zero where that is at most ``eps``.

    Zero has no direction, so there the gradient is zero too. That of ``F.normalize`` is divided by
    its epsilon: one padded token would outweigh all others, and overflow fp16.
    """
    length = torch.linalg.vector_norm(x, dim=dim, keepdim=True)
    return x / length.masked_fill(length <= eps, float('inf'))
