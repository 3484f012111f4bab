"""Norms of tokens that end as a BatchNorm, as in SLAB."""

from typing import Any, Set

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor


@MODELS.register_module()
class RepBN(nn.Module):
    r"""BatchNorm of tokens, plus the tokens times a learned number.

    .. math:: \mathrm{BN}(x) + \alpha x

    Statistics are those of all tokens of the batch. In eval mode the norm is one product and one
    sum for each channel, without statistics of the input. :math:`\alpha` starts at 1.

    Args:
        embed_dims: Channels C.

    Source: SLAB (arXiv 2405.11582).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import RepBN
        >>> RepBN(64)(torch.randn(2, 5 * 9, 64)).shape  # (B, N, C)
        torch.Size([2, 45, 64])
    """

    bn: Any  # whose statistics may be None for mypy

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1))
        self.bn = nn.BatchNorm1d(embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        x = x.to(self.bn.weight.dtype)  # fp32 under autocast
        if self.bn.training:
            return self.bn(x.flatten(0, -2)).view_as(x) + self.alpha * x
        scale = self.bn.weight * torch.rsqrt(self.bn.running_var + self.bn.eps)
        return x * (scale + self.alpha) + (self.bn.bias - scale * self.bn.running_mean)

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters without weight decay, as in SLAB's code."""
        return {'alpha'}


@MODELS.register_module()
class PRepBN(RepBN):
    r"""A norm that changes from LayerNorm to :class:`RepBN` while it trains.

    .. math:: (1 - \lambda) \, \mathrm{LN}(x) + \lambda \, \mathrm{RepBN}(x)

    In training, :math:`\lambda` is 0 for ``warmup`` forwards and then rises linearly to 1 in
    ``steps`` forwards. The BatchNorm's count of batches is the number of forwards, so checkpoints
    keep it. What resets that count makes the norm a LayerNorm again, as
    ``torch.optim.swa_utils.update_bn`` does. With ``norm_eval=True`` of a backbone no forward
    counts, so train without it until :math:`\lambda` is 1. In eval mode the norm is :class:`RepBN`
    at any time. ``norm_cfg=dict(type='PRepBN', steps=300000)`` gives it to a backbone.

    Args:
        embed_dims: Channels C.
        steps: Forwards from LayerNorm to RepBN. The authors take 60,000 to 300,000, of 375,000 in
            300 epochs with batches of 1,024 images.
        warmup: Forwards with LayerNorm alone before. Default: 0.
        eps: Added to the variance in the LayerNorm. Default: 1e-6.

    Raises:
        ValueError: If ``steps`` is not positive, or ``warmup`` is negative.

    Source: SLAB (arXiv 2405.11582).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import PRepBN
        >>> norm, x = PRepBN(64, steps=2), torch.randn(2, 5 * 9, 64)
        >>> torch.equal(norm(x), norm.layer_norm(x))  # the first of all forwards
        True
    """

    def __init__(self, embed_dims: int, steps: int, warmup: int = 0, eps: float = 1e-6) -> None:
        super().__init__(embed_dims)
        if steps < 1 or warmup < 0:
            raise ValueError(
                f'steps must be at least 1 and warmup at least 0, got {steps} and {warmup}'
            )
        self.steps, self.warmup = steps, warmup
        self.layer_norm = nn.LayerNorm(embed_dims, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        if not self.training:
            return super().forward(x)
        x = x.to(self.bn.weight.dtype)
        # Before the BatchNorm counts this batch.
        progress = (self.bn.num_batches_tracked - self.warmup) / self.steps
        return torch.lerp(self.layer_norm(x), super().forward(x), progress.clamp(0, 1).to(x.dtype))

    def extra_repr(self) -> str:
        return f'steps={self.steps}, warmup={self.warmup}'
