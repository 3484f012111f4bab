import torch
from torch import Tensor

from . import _checks, _native
from ._shapes import pairwise_gradient_shapes, pairwise_shapes
from .precision import autocast_to_fp32, upcast


def laplacian_kernel_reference(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The specification of :func:`laplacian_kernel` in plain PyTorch."""
    query, key = upcast(q, k)
    return torch.exp(torch.cdist(query, key, p=1) / -scale).to(q.dtype)


def laplacian_kernel(q: Tensor, k: Tensor, scale: float, *, backend: str = 'auto') -> Tensor:
    r"""Laplacian kernel between every query and every key.

    .. math:: K_{ij} = \exp(-\lVert q_i - k_j \rVert_1 / \lambda)

    Where a coordinate of query and key coincide the L1 distance has a kink; the gradient there is
    the subgradient 0.

    Args:
        q: Queries ``(B, heads, N, d)``.
        k: Keys or landmarks ``(B, heads, M, d)``, of the same dtype and device.
        scale: :math:`\lambda > 0`, in the units of the coordinates. LaplacianFormer uses 4.
        backend: ``'auto'`` (the compiled op where it can run, else the reference), ``'native'``
            or ``'reference'``.

    Returns:
        ``(B, heads, N, M)``, in (0, 1], in the dtype of ``q``; fp32 under autocast. Halves
        accumulate in fp32.

    Raises:
        TypeError: If an input is no floating tensor.
        ValueError: For another rank, shapes that do not match, or ``scale <= 0``.
        RuntimeError: For ``backend='native'`` where the compiled op cannot run.

    Source: LaplacianFormer (arXiv 2604.20368), the paper's kernel with :math:`\lambda = 4`.
    """
    _checks.check_tokens('laplacian_kernel', q, k)
    _checks.check_positive('laplacian_kernel', 'scale', scale)
    compute = _native.select('laplacian_kernel', laplacian_kernel_reference, q.device, backend)
    with autocast_to_fp32(q, k) as (query, key):
        return compute(query, key, float(scale))


_native.shapes_of('laplacian_kernel')(pairwise_shapes)
_native.shapes_of('_laplacian_kernel_backward')(pairwise_gradient_shapes)
