from torch import Tensor


def unit_vectors(x: Tensor, dim: int = -1, eps: float = 1e-6) -> Tensor:
    """``x`` divided by its length along ``dim``, and zero where that is at most ``eps``.

    Zero has no direction, so there the derivatives of any order are zero too. The derivative of
    ``F.normalize`` is divided by its epsilon: one padded token would outweigh all other tokens, and
    overflow fp16.
    """
    square = x.square().sum(dim, keepdim=True)
    return x / square.masked_fill(square <= eps**2, float('inf')).sqrt()


def lengths(x: Tensor, dim: int = -1, eps: float = 1e-6) -> Tensor:
    """The length along ``dim``, which is kept. Up to ``eps``, it and its derivatives are zero.

    The second derivative of ``torch.linalg.vector_norm`` is NaN at zero.
    """
    square = x.square().sum(dim, keepdim=True)
    none = square <= eps**2
    return square.masked_fill(none, 1.0).sqrt().masked_fill(none, 0.0)
