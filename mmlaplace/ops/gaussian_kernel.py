import torch
from torch import Tensor

from . import _checks, _native
from ._shapes import pairwise_gradient_shapes, pairwise_shapes
from .precision import autocast_to_fp32, upcast


def gaussian_kernel_reference(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """The specification of :func:`gaussian_kernel` in plain PyTorch."""
    query, key = upcast(q, k)
    # Differences, not |q|^2 + |k|^2 - 2qk: that form cancels for near-equal landmarks.
    distance = torch.cdist(query, key, p=2, compute_mode='donot_use_mm_for_euclid_dist')
    return torch.exp(distance.square() / (-2 * scale**2)).to(q.dtype)


def gaussian_kernel(q: Tensor, k: Tensor, scale: float, *, backend: str = 'auto') -> Tensor:
    r"""Gaussian kernel between every query and every key.

    .. math:: K_{ij} = \exp(-\lVert q_i - k_j \rVert_2^2 / (2 \sigma^2))

    Args:
        q: Queries ``(B, heads, N, d)``.
        k: Keys or landmarks ``(B, heads, M, d)``, of the same dtype and device.
        scale: The bandwidth :math:`\sigma > 0`, in the units of the coordinates. SOFT's kernel
            is :math:`\sigma = d^{1/4}`.
        backend: ``'auto'`` (the compiled op where it can run, else the reference), ``'native'``
            or ``'reference'``.

    Returns:
        ``(B, heads, N, M)``, in [0, 1], in the dtype of ``q``; fp32 under autocast. Halves
        accumulate in fp32.

    Raises:
        TypeError: If an input is no floating tensor.
        ValueError: For another rank, shapes that do not match, or ``scale <= 0``.
        RuntimeError: For ``backend='native'`` where the compiled op cannot run.

    Source: SOFT (arXiv 2110.11945) and SOFT++ (arXiv 2207.03341).
    """
    _checks.check_tokens('gaussian_kernel', q, k)
    _checks.check_positive('gaussian_kernel', 'scale', scale)
    compute = _native.select('gaussian_kernel', gaussian_kernel_reference, q.device, backend)
    with autocast_to_fp32(q, k) as (query, key):
        return compute(query, key, float(scale))


_native.shapes_of('gaussian_kernel')(pairwise_shapes)
_native.shapes_of('_gaussian_kernel_backward')(pairwise_gradient_shapes)
