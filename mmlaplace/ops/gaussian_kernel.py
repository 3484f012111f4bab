from typing import Union

import torch
from torch import Tensor

from ._pairwise import Metric, pairwise_kernel, sum_over_channels
from .backend import exporting_to_onnx
from .precision import upcast


def gaussian_logarithm(q: Tensor, k: Tensor, bandwidth: float) -> Tensor:
    """The logarithm of the kernel in plain PyTorch, at least in fp32."""
    query, key = upcast(q, k)
    # Differences, not |q|^2 + |k|^2 - 2qk: that form cancels for near-equal landmarks.
    if exporting_to_onnx():  # which has no cdist
        squared = sum_over_channels(query, key, torch.square)
    else:
        mode = 'donot_use_mm_for_euclid_dist'
        squared = torch.cdist(query, key, p=2, compute_mode=mode).square()
    return squared * (-0.5 / bandwidth / bandwidth)


def gaussian_kernel_reference(q: Tensor, k: Tensor, bandwidth: float) -> Tensor:
    """The specification of :func:`gaussian_kernel` in plain PyTorch."""
    return torch.exp(gaussian_logarithm(q, k, bandwidth)).to(q.dtype)


def gaussian_kernel(
    q: Tensor, k: Tensor, bandwidth: Union[float, Tensor], *, backend: str = 'auto'
) -> Tensor:
    r"""Gaussian kernel between every query and every key.

    .. math:: K_{ij} = \exp(-\lVert q_i - k_j \rVert_2^2 / (2 \sigma^2))

    There are derivatives of any order, but none in forward mode. The transforms of ``torch.func``
    (``vmap``, ``grad``, ``jacrev``) work.

    Args:
        q: Queries ``(B, heads, N, d)``.
        k: Keys or landmarks ``(B, heads, M, d)``, on the same device and, but for autocast, of the
            same dtype.
        bandwidth: :math:`\sigma > 0`, in the units of the coordinates. SOFT uses
            :math:`\sigma = d^{1/4}`. It may be a floating tensor that broadcasts to
            ``(B, heads, 1, 1)``, such as ``()`` or ``(heads, 1, 1)``. A tensor gets a gradient, and
            its values are not checked.
        backend: ``'auto'`` (default: the compiled op where it can run, else the reference),
            ``'native'`` or ``'reference'``.

    Returns:
        ``(B, heads, N, M)``, in [0, 1], in the dtype of ``q``; fp32 under autocast. Halves
        accumulate in fp32. A NaN in a query or key makes its row or column NaN.

    Raises:
        TypeError: If an input is no floating tensor, or ``bandwidth`` neither that nor a number.
        ValueError: For another rank, and for shapes, devices or dtypes that do not match. For a
            number ``bandwidth`` that is not positive and finite, or below 5.42e-20, where
            ``1 / bandwidth**2`` is infinite in fp32.
        RuntimeError: For ``backend='native'`` where the compiled op cannot run.

    Source: SOFT (arXiv 2110.11945) and SOFT++ (arXiv 2207.03341).

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import gaussian_kernel
        >>> q, k = torch.zeros(1, 1, 3, 2), torch.ones(1, 1, 2, 2)  # at the squared distance 2
        >>> gaussian_kernel(q, k, bandwidth=1.0)
        tensor([[[[0.3679, 0.3679],
                  [0.3679, 0.3679],
                  [0.3679, 0.3679]]]])
    """
    # Of an op, a tensor or a bool would be a number too.
    if type(bandwidth) in (float, int):
        kernel = _at_once(backend, q, k, bandwidth)
        if kernel is not None:
            return kernel
    return pairwise_kernel(GAUSSIAN, q, k, bandwidth, backend)


GAUSSIAN = Metric(
    name='gaussian_kernel',
    reference=gaussian_kernel_reference,
    logarithm=gaussian_logarithm,
    derivative=lambda bandwidth: -1 / bandwidth / bandwidth,
    slope=lambda difference: difference,
    curvature=torch.ones_like,
    smallest_bandwidth=torch.finfo(torch.float32).max ** -0.5,
)
GAUSSIAN.register()
_at_once = GAUSSIAN.door()
