from typing import Any, Optional, Tuple

import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class SharedConv2d(nn.Conv2d):
    """A convolution whose filters several sets of channels share, such as those of all heads.

    ``(B, sets * in_channels, H, W) -> (B, sets * out_channels, H', W')``, for any number of sets.
    The weights are those of a ``torch.nn.Conv2d`` for one set. Hooks and parametrisations apply to
    them.

    Args:
        interleaved: Whether neighbouring channels share a filter: channel c takes filter
            ``c // sets``. Otherwise it takes filter ``c % out_channels``. Default: False.
        *args, **kwargs: As in ``torch.nn.Conv2d``.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.shared_conv import SharedConv2d
        >>> conv = SharedConv2d(16, 16, 3, padding=1, groups=16)
        >>> conv(torch.randn(1, 4 * 16, 5, 9)).shape, conv.weight.shape
        (torch.Size([1, 64, 5, 9]), torch.Size([16, 1, 3, 3]))
    """

    def __init__(self, *args: Any, interleaved: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.interleaved = interleaved

    def forward(self, x: Tensor) -> Tensor:
        sets = int(x.shape[1]) // self.in_channels  # a trace has a tensor for a size
        weight, bias = self.filters(sets)
        groups = sets * self.groups
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, groups)

    def filters(self, sets: int) -> Tuple[Tensor, Optional[Tensor]]:
        """The filters for ``sets`` sets of channels, and their biases, if any."""
        # Computed at each call: a buffer of indices would be lost when a model is built on the meta
        # device and filled by a state dict.
        weight, bias = self.weight, self.bias
        if self.interleaved:
            weight = weight.repeat_interleave(sets, dim=0)
            return weight, None if bias is None else bias.repeat_interleave(sets)
        return weight.repeat(sets, 1, 1, 1), None if bias is None else bias.repeat(sets)
