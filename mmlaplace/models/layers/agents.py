import math
from typing import Optional, Tuple

from torch import Tensor

from .landmarks import Landmarks
from .position import resize_map


class Agents(Landmarks):
    """Averages of the cells of a map. Biases may be stored for another number of cells.

    Args:
        num_landmarks: Number of cells that biases are stored for, a square.
        shape: Rows and columns of the cells. Along a line of tokens, all cells are in one row.
            Default: the square.

    Raises:
        ValueError: For ``num_landmarks`` that is no square, or a shape that is no two positive
            integers.
    """

    def __init__(self, num_landmarks: int, shape: Optional[Tuple[int, int]] = None) -> None:
        super().__init__(num_landmarks, exact=True)
        if shape is not None:
            sides = tuple(shape) if isinstance(shape, (tuple, list)) else ()
            if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
                raise ValueError(
                    f'agent_shape must be two positive integers, such as (4, 5), got {shape!r}'
                )
            shape = sides
        self.shape = shape

    def _sides(self, hw_shape: Tuple[int, int]) -> Tuple[int, int]:
        if self.shape is None:
            return super()._sides(hw_shape)
        if 1 in hw_shape and max(hw_shape) > 1:
            count = math.prod(self.shape)
            return (1, count) if hw_shape[0] == 1 else (count, 1)
        return self.shape

    def of_cells(self, table: Tensor) -> Tensor:
        """Biases ``(heads, num_landmarks, h, w)`` for the cells, ``(heads, a, h, w)``."""
        return table if self.shape is None else resize_agents(table, self.shape)


def resize_agents(table: Tensor, shape: Tuple[int, int]) -> Tensor:
    """Biases ``(heads, s * s, h, w)`` of a square of agents, resized bilinearly to another grid."""
    side, size = math.isqrt(table.shape[1]), table.shape[2:]
    grid = table.flatten(2).transpose(1, 2).unflatten(2, (side, side))
    return resize_map(grid, shape).flatten(2).transpose(1, 2).unflatten(2, size)
