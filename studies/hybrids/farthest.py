"""Landmarks that are tokens far from each other, for a study."""

from typing import Any, Optional, Tuple

import torch
from mmengine.registry import MODELS
from torch import Tensor

from mmlaplace.models import LaplacianAttention
from mmlaplace.models.layers import Landmarks


def farthest_tokens(tokens: Tensor, count: int) -> Tensor:
    """Indices ``(B, heads, m)`` of tokens ``(B, heads, N, d)``, each far from those before it.

    The first is the one that is nearest to the mean. Each further one has the largest L1 distance
    to its nearest neighbour of those that are taken.
    """
    mean = tokens.mean(-2, keepdim=True)
    chosen = [(tokens - mean).abs().sum(-1).argmin(-1)]
    nearest = torch.full(tokens.shape[:-1], float('inf'), dtype=tokens.dtype)
    for _ in range(count - 1):
        last = tokens.gather(2, chosen[-1][..., None, None].expand(-1, -1, 1, tokens.shape[3]))
        nearest = torch.minimum(nearest, (tokens - last).abs().sum(-1))
        chosen.append(nearest.argmax(-1))
    return torch.stack(chosen, -1)


class FarthestLandmarks(Landmarks):
    """As many tokens as :class:`Landmarks` has averages."""

    def forward(self, x: Tensor, hw_shape: Optional[Tuple[int, int]], rotary: Any = None) -> Tensor:
        assert hw_shape is not None
        x = x if rotary is None else rotary(x, hw_shape)
        index = farthest_tokens(x.detach(), self.count(hw_shape))
        return x.gather(2, index[..., None].expand(-1, -1, -1, x.shape[3]))


@MODELS.register_module()
class FarthestLaplacianAttention(LaplacianAttention):
    """:class:`LaplacianAttention` with landmarks far from each other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.landmarks = FarthestLandmarks(self.landmarks.num_landmarks)
