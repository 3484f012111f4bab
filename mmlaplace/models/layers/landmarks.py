import math
from typing import Optional, Tuple

import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from .feature_map import map_to_tokens, tokens_to_map


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
            landmarks = 49 if landmarks is None else landmarks
            side = math.isqrt(max(landmarks, 0))
            if side < 1 or side * side != landmarks:
                raise ValueError(
                    f'landmarks must be a square number such as 49, 100 or 196, got {landmarks}'
                )
            self.side = side
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
