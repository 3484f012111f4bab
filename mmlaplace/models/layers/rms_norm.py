import torch
import torch.nn as nn
from torch import Tensor

from mmlaplace.ops.precision import no_autocast, upcast


class RMSNorm(nn.Module):
    r"""Divide the channels of a token by their root mean square, then scale each channel.

    .. math:: y = w \, x / \sqrt{\mathrm{mean}(x^2) + \epsilon}

    It is fp32 under any autocast. ``torch.nn.RMSNorm`` needs torch 2.4.

    Args:
        embed_dims: Channels C.
        eps: :math:`\epsilon`. Default: 1e-5.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import RMSNorm
        >>> RMSNorm(2)(torch.tensor([[3.0, 4.0]])).square().mean()
        tensor(1.0000, grad_fn=<MeanBackward0>)
    """

    of_tokens = True  # and not of maps

    def __init__(self, embed_dims: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(embed_dims))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """``(..., C)`` in the same shape and dtype."""
        with no_autocast(x.device):
            tokens, weight = upcast(x, self.weight)
            scale = (tokens.square().mean(-1, keepdim=True) + self.eps).rsqrt()
            return (tokens * scale * weight).to(x.dtype)
