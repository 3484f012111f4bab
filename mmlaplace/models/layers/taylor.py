import torch
import torch.nn.functional as F
from torch import Tensor


def taylor_features(x: Tensor) -> Tensor:
    r"""Features whose products are the Taylor series of the exponential, to the second order.

    .. math::
        \phi(x) = [1, x, (x \otimes x) / \sqrt{2}], \quad
        \phi(x) \cdot \phi(y) = 1 + x \cdot y + \tfrac{1}{2} (x \cdot y)^2

    Args:
        x: ``(..., d)``.

    Returns:
        ``(..., 1 + d + d * d)``.
    """
    squares = (x.unsqueeze(-1) * x.unsqueeze(-2)).flatten(-2) * 0.5**0.5
    return torch.cat([F.pad(x, (1, 0), value=1.0), squares], dim=-1)
