import math
from typing import Union

import torch
from torch import Tensor

from ._pairwise import Metric, pairwise_kernel, sum_over_channels
from .backend import exporting_to_onnx
from .precision import upcast


def laplacian_logarithm(q: Tensor, k: Tensor, bandwidth: float) -> Tensor:
    """The logarithm of the kernel in plain PyTorch, at least in fp32."""
    query, key = upcast(q, k)
    if exporting_to_onnx():  # which has no cdist
        distance = sum_over_channels(query, key, torch.abs)
    else:
        distance = torch.cdist(query, key, p=1)
    return distance / -bandwidth


def laplacian_kernel_reference(q: Tensor, k: Tensor, bandwidth: float) -> Tensor:
    """The specification of :func:`laplacian_kernel` in plain PyTorch."""
    return torch.exp(laplacian_logarithm(q, k, bandwidth)).to(q.dtype)


def laplacian_kernel(
    q: Tensor, k: Tensor, bandwidth: Union[float, Tensor], *, backend: str = 'auto'
) -> Tensor:
    r"""Laplacian kernel between every query and every key.

    .. math:: K_{ij} = \exp(-\lVert q_i - k_j \rVert_1 / \lambda)

    Where a coordinate of query and key coincide, the L1 distance has a kink, and the gradient is
    the subgradient 0. There are derivatives of any order, but none in forward mode. The transforms
    of ``torch.func`` (``vmap``, ``grad``, ``jacrev``) work.

    Args:
        q: Queries ``(B, heads, N, d)``.
        k: Keys or landmarks ``(B, heads, M, d)``, on the same device and, but for autocast, of the
            same dtype.
        bandwidth: :math:`\lambda > 0`, in the units of the coordinates. LaplacianFormer uses 4. It
            may be a floating tensor that broadcasts to ``(B, heads, 1, 1)``, such as ``()`` or
            ``(heads, 1, 1)``. A tensor gets a gradient, and its values are not checked.
        backend: ``'auto'`` (default: the compiled op where it can run, else the reference),
            ``'native'`` or ``'reference'``.

    Returns:
        ``(B, heads, N, M)``, in [0, 1], in the dtype of ``q``; fp32 under autocast. Halves
        accumulate in fp32. A NaN in a query or key makes its row or column NaN.

    Raises:
        TypeError: If an input is no floating tensor, or ``bandwidth`` neither that nor a number.
        ValueError: For another rank, and for shapes, devices or dtypes that do not match. For a
            number ``bandwidth`` that is not positive and finite, or below 4.24e-39, where
            ``1 / bandwidth`` is infinite in fp32.
        RuntimeError: For ``backend='native'`` where the compiled op cannot run.

    Source: LaplacianFormer (arXiv 2604.20368), the paper's kernel with :math:`\lambda = 4`.

    Examples:
        >>> import torch
        >>> from mmlaplace.ops import laplacian_kernel
        >>> q, k = torch.zeros(1, 1, 3, 2), torch.ones(1, 1, 2, 2)  # at the L1 distance 2
        >>> laplacian_kernel(q, k, bandwidth=4.0)
        tensor([[[[0.6065, 0.6065],
                  [0.6065, 0.6065],
                  [0.6065, 0.6065]]]])
    """
    # Of an op, a tensor or a bool would be a number too.
    if type(bandwidth) in (float, int):
        kernel = _at_once(backend, q, k, bandwidth)
        if kernel is not None:
            return kernel
    return pairwise_kernel(LAPLACIAN, q, k, bandwidth, backend)


LAPLACIAN = Metric(
    name='laplacian_kernel',
    reference=laplacian_kernel_reference,
    logarithm=laplacian_logarithm,
    derivative=lambda bandwidth: -1 / bandwidth,
    slope=torch.sign,
    curvature=None,
    # The compiled op has 2 to the power of -distance / (ln 2 * bandwidth).
    smallest_bandwidth=1 / (math.log(2) * torch.finfo(torch.float32).max),
)
LAPLACIAN.register()
_at_once = LAPLACIAN.door()
