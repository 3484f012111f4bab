from typing import Optional, Sequence

import torch.nn.functional as F
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast


def elu_plus_one(x: Tensor) -> Tensor:
    r"""The positive features :math:`\mathrm{elu}(x) + 1 = e^{\min(x, 0)} + \mathrm{relu}(x)`.

    The function computes the right side. With elu(x) near -1, the sum on the left would lose small
    values: all of them below x = -17 in fp32, and below -6 in bfloat16.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import elu_plus_one
        >>> elu_plus_one(torch.tensor([-20.0, 0.0, 2.0]))
        tensor([2.0612e-09, 1.0000e+00, 3.0000e+00])
    """
    positive = F.relu(x)
    # Not clamp(max=0), whose gradient at 0 is 1 up to torch 2.13, and 0 since then.
    return (x - positive).exp() + positive


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    eps: float = 1e-6,
    numerator: Optional[Sequence[Tensor]] = None,
) -> Tensor:
    r"""Attention whose weights are products of features, without an N x N matrix.

    .. math:: y_i = \frac{\tilde q_i \, \frac{1}{n} \sum_j \tilde k_j^T v_j}
                         {q_i \cdot \frac{1}{n} \sum_j k_j + \epsilon}

    The epsilon is added to a mean, so its effect does not depend on the number of keys. Sums and
    the division are fp32 under any autocast.

    Args:
        q: Features of the queries ``(B, heads, N, f)``, not negative.
        k: Features of the keys ``(B, heads, n, f)``.
        v: Values ``(B, heads, n, d)``.
        eps: :math:`\epsilon`, which keeps a query without a key from a division by zero. Default:
            1e-6.
        numerator: :math:`\tilde q, \tilde k`, such as features with rotary positions. Default: q
            and k.

    Returns:
        ``(B, heads, N, d)`` in the dtype of ``v``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import linear_attention
        >>> q, k = torch.rand(1, 2, 30, 8), torch.rand(1, 2, 12, 8)
        >>> linear_attention(q, k, torch.ones(1, 2, 12, 16), eps=0).mean().round(decimals=3)
        tensor(1.)
    """
    with no_autocast(v.device):
        q, k, value = upcast(q, k, v)
        top_q, top_k = (q, k) if numerator is None else upcast(*numerator)
        summed = top_k.transpose(-2, -1) @ value / k.shape[-2]  # (B, heads, f, d)
        mean_key = k.mean(-2).unsqueeze(-1)  # (B, heads, f, 1)
        return (top_q @ summed / (q @ mean_key + eps)).to(v.dtype)
