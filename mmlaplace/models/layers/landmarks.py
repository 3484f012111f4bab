import math
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .feature_map import map_to_tokens, tokens_to_map


def landmark_side(landmarks: int) -> int:
    """The side of a square of landmarks; a ValueError if there is none."""
    side = math.isqrt(max(landmarks, 0))
    if side < 1 or side * side != landmarks:
        raise ValueError(
            f'landmarks must be a square number such as 49, 100 or 196, got {landmarks}'
        )
    return side


class LandmarkPool(nn.Module):
    """Average-pool the map of each head into its landmarks.

    Args:
        landmarks: Fixed number m, a square: the map is pooled adaptively to (√m, √m) cells, fewer
            along a side that is shorter than that. Cost then is linear in the pixels. Default: 49
            unless ``pool_ratio`` is given.
        pool_ratio: Side r of the cells instead; a last cell may be cut by the border. Then m =
            ⌈H/r⌉⌈W/r⌉ grows with the image.

    Raises:
        ValueError: If both are given, ``landmarks`` is no square or ``pool_ratio < 1``.
    """

    def __init__(self, landmarks: Optional[int] = None, pool_ratio: Optional[int] = None) -> None:
        super().__init__()
        if landmarks is not None and pool_ratio is not None:
            raise ValueError(
                f'give landmarks ({landmarks}) or pool_ratio ({pool_ratio}), not both; in a '
                'config that inherits the other, set that to None'
            )
        if pool_ratio is not None and pool_ratio < 1:
            raise ValueError(f'pool_ratio must be at least 1, got {pool_ratio}')
        if pool_ratio is None:
            self.side = landmark_side(49 if landmarks is None else landmarks)
        self.pool_ratio = pool_ratio

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, heads, N, d) -> (B, heads, m, d)``."""
        heads = x.shape[1]
        maps = tokens_to_map(x.flatten(0, 1), hw_shape)
        if self.pool_ratio is not None:
            pooled = F.avg_pool2d(maps, self.pool_ratio, ceil_mode=True, count_include_pad=False)
        else:
            pooled = F.adaptive_avg_pool2d(maps, [min(self.side, side) for side in hw_shape])
        return map_to_tokens(pooled).unflatten(0, (x.shape[0], heads))


class LandmarkConv(nn.Module):
    """A convolution r x r of stride r over the map of each head, the same in all heads, no bias.

    Args:
        head_dims: Channels d of a head.
        pool_ratio: r.
        landmarks: Fixed number m, a square. A map that is not √m r on a side is first pooled
            adaptively to that, which repeats tokens where the side is shorter. A side of fewer
            than √m tokens has a landmark per token. With None, m = ⌊H/r⌋⌊W/r⌋ grows with the
            image, and a map smaller than r gets zeros.

    Raises:
        ValueError: If ``landmarks`` is no square or ``pool_ratio < 1``.
    """

    def __init__(self, head_dims: int, pool_ratio: int, landmarks: Optional[int] = None) -> None:
        super().__init__()
        if pool_ratio < 1:
            raise ValueError(f'pool_ratio must be at least 1, got {pool_ratio}')
        self.conv = nn.Conv2d(head_dims, head_dims, pool_ratio, stride=pool_ratio, bias=False)
        self.pool_ratio = pool_ratio
        self.side = None if landmarks is None else landmark_side(landmarks)

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, heads, N, d) -> (B, heads, m, d)``."""
        heads, ratio = x.shape[1], self.pool_ratio
        maps = tokens_to_map(x.flatten(0, 1), hw_shape)
        if self.side is None:
            height, width = hw_shape
            maps = F.pad(maps, (0, max(ratio - width, 0), 0, max(ratio - height, 0)))
        else:
            size = [ratio * min(self.side, side) for side in hw_shape]
            if size != list(hw_shape):
                maps = F.adaptive_avg_pool2d(maps, size)
        return map_to_tokens(self.conv(maps)).unflatten(0, (x.shape[0], heads))


class LandmarkPick(nn.Module):
    """Some of the tokens themselves, at the same places in every image and head.

    Args:
        landmarks: Fixed number m; all tokens where there are fewer. With None, ⌈N / r²⌉.
        pool_ratio: r.
        at_random: Whether the places are random, new in every pass while training and always the
            same for a number of tokens in eval mode. Else the first m. Default: True.

    Raises:
        ValueError: If ``landmarks < 1`` or ``pool_ratio < 1``.
    """

    def __init__(
        self, landmarks: Optional[int], pool_ratio: Optional[int], at_random: bool = True
    ) -> None:
        super().__init__()
        for name, value in (('landmarks', landmarks), ('pool_ratio', pool_ratio)):
            if value is not None and value < 1:
                raise ValueError(f'{name} must be at least 1, got {value}')
        self.landmarks = landmarks
        self.pool_ratio = pool_ratio
        self.at_random = at_random

    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """``(B, heads, N, d) -> (B, heads, m, d)``."""
        tokens = x.shape[2]
        wanted = -(-tokens // self.pool_ratio**2) if self.landmarks is None else self.landmarks
        if wanted >= tokens:
            return x
        if not self.at_random:
            return x[:, :, :wanted]
        generator = None if self.training else torch.Generator().manual_seed(0)
        return x[:, :, torch.randperm(tokens, generator=generator)[:wanted].to(x.device)]
