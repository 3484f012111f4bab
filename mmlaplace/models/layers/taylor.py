import torch
import torch.nn.functional as F
from torch import Tensor


def taylor_width(channels: int) -> int:
    """The number of :func:`taylor_features` of so many channels."""
    return 1 + channels + channels * (channels // 2 + 1)


def taylor_features(x: Tensor) -> Tensor:
    r"""Features whose products are the Taylor series of the exponential, to the second order.

    .. math::
        \phi(x) = [1, x, x \otimes x / \sqrt{2}], \quad
        \phi(x) \cdot \phi(y) = 1 + x \cdot y + \tfrac{1}{2} (x \cdot y)^2

    The product of two channels is one feature, not one for each order: with the channels in a ring,
    each is multiplied by those up to half the ring ahead. That is near half of the :math:`d^2`
    features of :math:`x \otimes x`.

    Args:
        x: ``(..., d)``.

    Returns:
        ``(..., 1 + d + d * (d // 2 + 1))``, see :func:`taylor_width`.
    """
    channels = x.shape[-1]
    half, root = channels // 2, 0.5**0.5
    ring = torch.cat([x, x[..., :half]], dim=-1)
    products = [x * ring[..., ahead : ahead + channels] for ahead in range(half + 1)]
    products[0] = products[0] * root
    if half and channels % 2 == 0:  # the channels across: each pair is there twice
        products[half] = products[half] * root
    return torch.cat([F.pad(x, (1, 0), value=1.0), *products], dim=-1)
