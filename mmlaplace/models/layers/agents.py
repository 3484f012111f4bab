import math
from typing import TYPE_CHECKING, Any, Optional, Tuple

import torch
import torch.nn as nn
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


if TYPE_CHECKING:  # it is mixed into attentions
    _Mixed = Any
else:
    _Mixed = object


class AgentBiases(_Mixed):
    """A mixin for an attention with agents: the learned biases between agents and tokens.

    ``gather_*`` are those of the agents at the keys, ``spread_*`` those of the queries at the
    agents. A ``map`` is resized to the tokens. ``rows`` and ``columns`` have a term for each row
    and column, and ``prefix`` for each prefix token.
    """

    landmarks: Agents

    def add_biases(self, agents: int) -> None:
        """Create the parameters, for a number of agents that is a square.

        Raises:
            ValueError: If prefix tokens are combined with what needs the keys to be a map.
        """
        frame, prefix = self.frame, self.num_prefix_tokens
        if prefix and (frame.rope or frame.key_positions or frame.sr_ratio > 1):
            raise ValueError(
                f'num_prefix_tokens={prefix} have no place on a map; set rope=False (got '
                f'{frame.rope}), key_positions=False ({frame.key_positions}) and sr_ratio=1 '
                f'({frame.sr_ratio})'
            )
        sizes = {'gather': self.kv_shape(self.input_resolution), 'spread': self.input_resolution}
        for name, (height, width) in sizes.items():
            shapes = dict(map=(7, 7), rows=(height, 1), columns=(1, width))
            for part, size in {**shapes, **(dict(prefix=(prefix,)) if prefix else {})}.items():
                table = torch.zeros(self.num_heads, agents, *size)
                table = nn.Parameter(nn.init.trunc_normal_(table, std=0.02))
                self.register_parameter(f'{name}_{part}', table)

    def bias(self, name: str, hw_shape: Tuple[int, int]) -> Tensor:
        """The bias of each agent at each token, ``(heads, a, N)``; prefix tokens come first."""
        sizes = dict(map=hw_shape, rows=(hw_shape[0], 1), columns=(1, hw_shape[1]))
        tables = (self.landmarks.of_cells(getattr(self, f'{name}_{k}')) for k in sizes)
        whole, rows, columns = map(resize_map, tables, sizes.values())
        bias = (whole + rows + columns).flatten(2)
        if not self.num_prefix_tokens:
            return bias
        prefix = self.landmarks.of_cells(getattr(self, f'{name}_prefix').unsqueeze(3))
        return torch.cat([prefix.squeeze(3), bias], 2)

    def resize_weight(self, name: str, value: Tensor) -> Tensor:
        """The biases of a checkpoint, resized to the agents and the map of this module."""
        own, agents = getattr(self, name), value.shape[1]
        if name == 'key_positions' or value.dim() != 4 or math.isqrt(agents) ** 2 != agents:
            return super().resize_weight(name, value)
        value = resize_agents(value, 2 * (math.isqrt(own.shape[1]),))
        return resize_map(value, own.shape[2:])
