"""Norms of tokens that end as a BatchNorm, as in SLAB."""

from collections import deque
from typing import Any, Callable, Deque, Set, Tuple

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.ops._checks import is_compiling, is_transforming
from mmlaplace.ops.precision import HALVES

from .block import are_untouched
from .recomputing import is_recomputing, statistics_kept

# Which in eval mode compute one product and one sum. A user may set another for a whole class.
TORCHS_FORWARDS = (nn.BatchNorm1d.forward, nn.SyncBatchNorm.forward)
# The most forwards before the backward pass of the first of them.
RECENT = 64
# Far below any difference of two means.
LEAST = 1e-30


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

    of_tokens = True  # and not of maps
    bn: Any  # whose statistics may be None for mypy

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1))
        self.bn = nn.BatchNorm1d(embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        bn = self.bn
        x = x.to(bn.weight.dtype)  # fp32 under autocast
        if not bn.training and type(bn).forward in TORCHS_FORWARDS and are_untouched([bn]):
            scale = bn.weight * torch.rsqrt(bn.running_var + bn.eps)
            return x * (scale + self.alpha) + (bn.bias - scale * bn.running_mean)
        if bn.training and is_recomputing():
            with statistics_kept(bn):
                return bn(x.flatten(0, -2)).view_as(x) + self.alpha * x
        return bn(x.flatten(0, -2)).view_as(x) + self.alpha * x

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters without weight decay, as in SLAB's code."""
        return {'alpha'}


@MODELS.register_module()
class PRepBN(RepBN):
    r"""A norm that changes from LayerNorm to :class:`RepBN` while it trains.

    .. math:: (1 - \lambda) \, \mathrm{LN}(x) + \lambda \, \mathrm{RepBN}(x)

    In training, :math:`\lambda` is 0 for ``warmup`` forwards and then rises linearly to 1 in
    ``steps`` forwards. In eval mode the norm is :class:`RepBN` at any time. In training it is
    :class:`RepBN` while its BatchNorm is in eval mode, as with ``norm_eval=True`` of a backbone.
    Such forwards do not count. ``norm_cfg=dict(type='PRepBN', steps=300000)`` gives the norm to a
    backbone.

    The buffer ``forwards`` counts the forwards in training, and is in the state dict. An average of
    models has the average of their counts. The count is fp32 in a model of halves too. New
    statistics for the BatchNorm, as by ``torch.optim.swa_utils.update_bn``, do not reset it.

    A forward that activation checkpointing computes again does not count, and takes the
    :math:`\lambda` of the first. The norm finds that by its tokens, among those of the last 64
    forwards. If a batch passes twice before one backward pass, a random number tells the two
    apart: each forward in training draws one, and checkpointing draws the same one again. With
    ``preserve_rng_state=False`` of ``torch.utils.checkpoint`` it does not, and the
    :math:`\lambda` may be that of the other forward of the batch.

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

    forwards: Tensor

    def __init__(self, embed_dims: int, steps: int, warmup: int = 0, eps: float = 1e-6) -> None:
        super().__init__(embed_dims)
        if steps < 1 or warmup < 0:
            raise ValueError(
                f'steps must be at least 1 and warmup at least 0, got {steps} and {warmup}'
            )
        self.steps, self.warmup = steps, warmup
        self.layer_norm = nn.LayerNorm(embed_dims, eps=eps)
        # No integer, because averages of models leave integers out, or round them.
        self.register_buffer('forwards', torch.zeros((), dtype=torch.float32))
        # Of each recent forward: a mean of its tokens, its random number, and the count before it.
        self.recent: Deque[Tuple[Tensor, Tensor, Tensor]] = deque(maxlen=RECENT)

    def forward(self, x: Tensor) -> Tensor:
        """``(B, N, C) -> (B, N, C)``."""
        if not self.training:
            return super().forward(x)
        x = x.to(self.bn.weight.dtype)
        share = torch.ones_like(self.forwards)
        if self.bn.training:
            share = ((self.forwards_before(x) - self.warmup) / self.steps).clamp(0, 1)
        # With a share of 1 the LayerNorm has a gradient, of zeros, for which DDP waits.
        return torch.lerp(self.layer_norm(x), super().forward(x), share.to(x.dtype))

    def forwards_before(self, x: Tensor) -> Tensor:
        """Count a forward of tokens, unless it is computed again; the count before the first."""
        traced = is_compiling() or is_transforming()
        mark = None if traced else mark_of(x)
        if mark is not None and self.recent and is_recomputing():
            return self.count_before(*mark)
        before = self.forwards.clone()
        self.forwards.add_(1)
        if mark is not None:
            self.recent.append((*mark, before))
        return before

    def count_before(self, mean: Tensor, number: Tensor) -> Tensor:
        """The count before the recent forward with the nearest mark."""
        means, numbers, counts = map(torch.stack, zip(*self.recent))
        differences = (means - mean).abs().sum(-1, dtype=torch.float32)
        # Where the same batch has passed several times, the number decides.
        differences += LEAST * (numbers - number).abs().to(differences.device)
        # The last of equal ones.
        return counts[len(differences) - 1 - differences.flip(0).argmin()]

    def _apply(self, fn: Callable, *args: Any, **kwargs: Any) -> 'PRepBN':
        """Change the module as PyTorch does, but keep the count out of halves, which end early."""
        forwards = self.forwards
        self.recent.clear()
        super()._apply(fn, *args, **kwargs)
        if self.forwards.dtype in HALVES:
            self.forwards = forwards.to(self.forwards.device)
        return self

    def extra_repr(self) -> str:
        return f'steps={self.steps}, warmup={self.warmup}'


def mark_of(x: Tensor) -> Tuple[Tensor, Tensor]:
    """The mean of up to 127 tokens ``(..., C)``, and a random number.

    A batch that is computed again has the same, as checkpointing restores the random state of the
    CPU for tensors of any device.
    """
    tokens = x.detach().flatten(0, -2)
    return tokens[:: max(1, len(tokens) // 64)].mean(0), torch.rand((), device='cpu')
