"""Kernels of pairs of tokens that attentions choose by name."""

from typing import Callable, Optional, Tuple

from torch import Tensor

from mmlaplace.ops import gaussian_kernel, laplacian_kernel

# The op of each kernel, and its bandwidth for tokens of so many channels. The Gaussian's is that of
# SOFT and Skyformer. The Laplacian's is LaplacianFormer's best of 0.5, 1, 2, 4 and 8.
KERNELS = {
    'gaussian': (gaussian_kernel, lambda head_dims: head_dims**0.25),
    'laplacian': (laplacian_kernel, lambda head_dims: 4.0),
}


def choose_kernel(
    kernel: str, bandwidth: Optional[float], head_dims: int
) -> Tuple[Callable[..., Tensor], float]:
    r"""The op of a kernel and its bandwidth.

    Args:
        kernel: ``'gaussian'``, :math:`\exp(-\lVert x - y \rVert_2^2 / (2 \sigma^2))`, or
            ``'laplacian'``, :math:`\exp(-\lVert x - y \rVert_1 / \lambda)`.
        bandwidth: :math:`\sigma` or :math:`\lambda`. None takes :math:`d^{1/4}` for the Gaussian
            and 4 for the Laplacian.
        head_dims: d, the channels of a head.

    Raises:
        ValueError: For an unknown kernel, or a bandwidth that is not positive and finite.
    """
    if kernel not in KERNELS:
        raise ValueError(f'kernel must be one of {tuple(KERNELS)}, got {kernel!r}')
    kernel_fn, default_bandwidth = KERNELS[kernel]
    bandwidth = default_bandwidth(head_dims) if bandwidth is None else bandwidth
    if not 0 < bandwidth < float('inf'):
        raise ValueError(f'bandwidth must be positive and finite, got {bandwidth}')
    return kernel_fn, bandwidth
