import math
from typing import Any, Dict, Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmlaplace.ops import pooled_landmarks
from mmlaplace.ops._checks import is_recording
from mmlaplace.ops.backend import at_most, ceil_div

from .checks import check_counts
from .feature_map import map_to_tokens, tokens_to_map
from .position import RotaryEmbedding2D
from .shared_conv import SharedConv2d
from .tables import computed_once

METHODS = ('pool', 'conv', 'random', 'first')
GOLDEN = (1 + math.sqrt(5)) / 2


def spread_numbers(count: int) -> Tensor:
    """Numbers ``(count,)`` in [0, 1), always the same, in fp64.

    They are multiples of the golden ratio without their integers, which are spread more evenly than
    random numbers. Graphs keep them. They would refuse a ``torch.Generator``, or draw anew.
    """
    return torch.arange(count, dtype=torch.float64, device='cpu') * GOLDEN % 1


def spread_places(wanted: int, tokens: int, device: torch.device) -> Tensor:
    """One place of each of ``wanted`` runs of tokens, always the same, ``(wanted,)``."""
    ends = torch.arange(wanted + 1, device='cpu') * tokens // wanted
    return (ends[:-1] + (spread_numbers(wanted) * ends.diff()).long()).to(device)


class Landmarks(nn.Module):
    """A few tokens that represent all tokens of a map, for each head.

    Args:
        num_landmarks: Fixed number m, for maps of any size. ``'pool'`` and ``'conv'`` need a square
            such as 49. A side with fewer than √m tokens has a landmark for each token. Along a line
            of N x 1 or 1 x N tokens there are m landmarks. Default: 49, unless ``pool_ratio`` is
            given.
        pool_ratio: Side r of a cell of tokens. Without ``num_landmarks``, m grows with the map.
            Default: none.
        method: ``'pool'`` (default) averages cells of the map. There are √m x √m cells, or cells of
            r x r tokens, m = ⌈H/r⌉⌈W/r⌉. The border may cut the last of these. ``'conv'`` is a
            convolution r x r of stride r, the same for all heads, without a bias. It needs
            ``pool_ratio``. Without ``num_landmarks``, m = ⌊H/r⌋⌊W/r⌋, and a map smaller than r is
            zero-padded. With ``num_landmarks``, a map whose sides are not √m r is first pooled to
            that size. ``'random'`` takes tokens at the same random places in every image and head.
            In training, every forward pass draws new places. In eval mode they are always the same,
            one in each of m runs of tokens. ``'first'`` takes the first tokens. For both, the
            number of tokens is m, or ⌈N / r²⌉, along a line ⌈N / r⌉.
        head_dims: Channels d of a head, which ``'conv'`` needs.
        exact: Whether ``'pool'`` repeats tokens of shorter sides, so that there are always √m x √m
            landmarks. Attentions with a parameter for each landmark need it. Default: False.

    Raises:
        ValueError: For an unknown method, numbers out of range, landmarks that are no square, or
            options that the method would ignore.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers import Landmarks
        >>> keys = torch.randn(1, 2, 20 * 30, 32)
        >>> Landmarks(49)(keys, (20, 30)).shape, Landmarks(pool_ratio=4)(keys, (20, 30)).shape
        (torch.Size([1, 2, 49, 32]), torch.Size([1, 2, 40, 32]))
    """

    def __init__(
        self,
        num_landmarks: Optional[int] = None,
        pool_ratio: Optional[int] = None,
        method: str = 'pool',
        head_dims: Optional[int] = None,
        exact: bool = False,
    ) -> None:
        super().__init__()
        if method not in METHODS:
            raise ValueError(f'landmark_method must be one of {METHODS}, got {method!r}')
        if num_landmarks is None and pool_ratio is None:
            num_landmarks = 49
        given = dict(num_landmarks=num_landmarks, pool_ratio=pool_ratio)
        check_counts(**{name: value for name, value in given.items() if value is not None})
        if method != 'conv' and num_landmarks is not None and pool_ratio is not None:
            raise ValueError(
                f'give num_landmarks ({num_landmarks}) or pool_ratio ({pool_ratio}), not both, for '
                f'landmarks by {method!r}; in a config that inherits the other, set that to None'
            )
        if method == 'conv' and (pool_ratio is None or head_dims is None):
            raise ValueError(
                f"landmarks by 'conv' need pool_ratio and head_dims, got "
                f'pool_ratio={pool_ratio!r} and head_dims={head_dims!r}'
            )
        if exact and (method != 'pool' or num_landmarks is None):
            raise ValueError(
                f"exact=True needs num_landmarks (got {num_landmarks}) and method='pool' "
                f'({method!r})'
            )
        self.method = method
        self.num_landmarks = num_landmarks
        self.pool_ratio = pool_ratio
        self.exact = exact
        self.side = None
        if method in ('pool', 'conv') and num_landmarks is not None:
            self.side = math.isqrt(num_landmarks)
            if self.side**2 != num_landmarks:
                raise ValueError(
                    'num_landmarks must be a square number such as 49, 100 or 196, got '
                    f'{num_landmarks}'
                )
        if method == 'conv':
            self.conv = SharedConv2d(
                head_dims, head_dims, pool_ratio, stride=pool_ratio, bias=False
            )

    def forward(
        self,
        x: Tensor,
        hw_shape: Optional[Tuple[int, int]],
        rotary: Optional[RotaryEmbedding2D] = None,
    ) -> Tensor:
        """``(B, heads, N, d) -> (B, heads, m, d)``. ``rotary`` first rotates the tokens.

        Means (``'pool'``) are at least fp32. Without a map, the tokens are a line.
        """
        if hw_shape is None:
            hw_shape = x.shape[2], 1
        if self.method == 'pool':
            return self._pooled(x, hw_shape, rotary)
        x = x if rotary is None else rotary(x, hw_shape)
        if self.method in ('random', 'first'):
            return self._picked(x, hw_shape)
        return self._convolved(x, hw_shape)

    def _sides(self, hw_shape: Tuple[int, int]) -> Tuple[int, int]:
        """Rows and columns of a fixed number of landmarks. Along a line, all are in one row."""
        assert self.num_landmarks is not None and self.side is not None
        rows = columns = self.side
        height, width = hw_shape
        if 1 in hw_shape and max(hw_shape) > 1:
            rows, columns = (1 if side == 1 else self.num_landmarks for side in hw_shape)
        if self.exact:
            return rows, columns
        if isinstance(height, int) and isinstance(width, int):
            return min(rows, height), min(columns, width)
        return at_most(rows, height), at_most(columns, width)

    def cells(self, hw_shape: Tuple[int, int]) -> Tuple[Optional[int], ...]:
        """Of ``'pool'``: rows and columns of cells, and None. Or None, None and the cells' side."""
        return (
            (None, None, self.pool_ratio) if self.side is None else (*self._sides(hw_shape), None)
        )

    def count(self, hw_shape: Tuple[int, int]) -> int:
        """How many landmarks ``'pool'`` makes of a map."""
        rows, columns, ratio = self.cells(hw_shape)
        if ratio is not None:
            rows, columns = (ceil_div(side, ratio) for side in hw_shape)
        assert rows is not None and columns is not None
        return rows * columns

    def _pooled(
        self, x: Tensor, hw_shape: Tuple[int, int], rotary: Optional[RotaryEmbedding2D]
    ) -> Tensor:
        options: Dict[str, Any] = dict(ratio=self.pool_ratio)
        if self.side is not None:
            options = dict(cells=self._sides(hw_shape))
        if rotary is not None:
            options.update(rotary=rotary.table(x, hw_shape), rotary_form=rotary.pairing)
        return pooled_landmarks(x, hw_shape, **options)

    def _convolved(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        ratio, heads = self.pool_ratio, int(x.shape[1])  # a trace has a tensor for a size
        assert ratio is not None
        size = hw_shape
        if self.side is not None:
            rows, columns = self._sides(hw_shape)
            size = ratio * rows, ratio * columns
            # Runtimes have no adaptive pooling, and inductor none for dynamic sizes.
            if is_recording():
                x, hw_shape = pooled_landmarks(x, hw_shape, cells=size).to(x.dtype), size
        height, width = hw_shape
        # Heads beside each other are how tokens lie in memory; a map for each head is a copy.
        maps = tokens_to_map(x.transpose(1, 2).flatten(2), hw_shape)  # (B, heads * d, H, W)
        if self.side is None:
            maps = F.pad(maps, (0, max(ratio - width, 0), 0, max(ratio - height, 0)))
        elif size != tuple(hw_shape):
            maps = F.adaptive_avg_pool2d(maps, size)
        tokens = map_to_tokens(self.conv(maps))
        return tokens.view(*tokens.shape[:2], heads, x.shape[3]).transpose(1, 2)

    def _picked(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        tokens = x.shape[2]
        wanted = self.num_landmarks
        if wanted is None:
            assert self.pool_ratio is not None
            wanted = -(-tokens // self.pool_ratio ** (1 if 1 in hw_shape else 2))
        if wanted >= tokens:
            return x
        if self.method == 'first':
            return x[:, :, :wanted]
        if not self.training:
            return x[:, :, computed_once(spread_places, wanted, tokens, like=x)]
        # On the CPU, whatever the default device is: all devices then draw the same.
        return x[:, :, torch.randperm(tokens, device='cpu')[:wanted].to(x.device)]
