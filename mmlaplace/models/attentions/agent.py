import math
from typing import Any, Dict, Optional, Tuple

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from ..layers import map_to_tokens, resize_map, softmax_attention, tokens_to_map
from ..layers.drawing import draw_normal_
from ..layers.landmarks import Landmarks
from .base import QKVAttention
from .frame import Frame


class Agents(Landmarks):
    """Averages of the cells of a map, whose biases may be stored for another number of cells.

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

    def resize_biases(self, biases: Tensor) -> Tensor:
        """Stored biases ``(heads, num_landmarks, N)`` for these cells, ``(heads, a, N)``."""
        return biases if self.shape is None else resize_agents(biases, self.shape)


def resize_agents(biases: Tensor, shape: Tuple[int, int]) -> Tensor:
    """Biases ``(heads, s * s, N)`` of a square of agents, resized bilinearly to another grid."""
    side = math.isqrt(biases.shape[1])
    grids = biases.transpose(1, 2).unflatten(2, (side, side))  # (heads, N, s, s)
    return resize_map(grids, shape).flatten(2).transpose(1, 2)


@MODELS.register_module()
class AgentAttention(QKVAttention):
    r"""Agent attention: a few agents attend to all tokens, and all tokens attend to the agents.

    Per head, with agents A (a, d), averages of the map of queries, and learned biases B:

    .. math::
        Y = \mathrm{softmax}(Q A^T / \sqrt{d} + B_2) \,
            \big[ \mathrm{softmax}(A K^T / \sqrt{d} + B_1) \, V \big]

    For each agent, a bias is a 7 x 7 map resized to the tokens, plus one term for each row and one
    for each column. These terms are stored for ``input_resolution`` and resized bilinearly for
    other maps. The parameters ``gather_*`` are the biases :math:`B_1` of the agents at the keys,
    ``spread_*`` the biases :math:`B_2` of the queries at the agents. Each prefix token has biases
    of its own. Agents are of the map alone.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        num_landmarks: Number a of agents, a square. Default: 49; PVT's stages have 9, 16, 49, 49.
        agent_shape: Rows and columns of the agents. Biases are stored for a square of
            ``num_landmarks`` agents, and resized bilinearly to another shape. Default: the square.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv='q_kv', lepe_kernel=3)``.

    Cost: NCm to mix; 4C² + 9C + 98h(49 + H + W) weights.

    Published: DeiT-T 74.9, DeiT-S 80.5, PVT-T 78.4, Swin-T 82.6, Swin-S 83.7, CSwin-T 83.1.

    Source: Agent Attention (arXiv 2312.08874).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import AgentAttention
        >>> attention = AgentAttention(64, 2, input_resolution=(14, 14), num_landmarks=16)
        >>> attention(torch.randn(1, 10 * 17, 64), hw_shape=(10, 17)).shape
        torch.Size([1, 170, 64])
    """

    frame = Frame(qkv='q_kv', lepe_kernel=3)
    no_multihead = 'its agents and biases are of the rows and columns of a map'
    mixes_queries = True
    no_prefix_tokens = ''
    tested_options = (dict(num_landmarks=9, sr_ratio=2), dict(agent_shape=(2, 5), rope=True))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        num_landmarks: int = 49,
        agent_shape: Optional[Tuple[int, int]] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.landmarks = Agents(num_landmarks, agent_shape)
        self.add_biases('gather', num_landmarks, self.kv_shape(self.input_resolution))
        self.add_biases('spread', num_landmarks, self.input_resolution)

    def add_biases(self, name: str, agents: int, hw_shape: Tuple[int, int]) -> None:
        """Create the biases between a square of agents and the tokens of a map ``(H, W)``."""
        height, width = hw_shape
        sizes: Dict[str, Tuple[int, ...]] = dict(map=(7, 7), rows=(height, 1), columns=(1, width))
        if self.num_prefix_tokens:
            sizes['prefix'] = (self.num_prefix_tokens,)
        for part, size in sizes.items():
            table = torch.zeros(self.num_heads, agents, *size)
            draw_normal_(table)
            self.register_parameter(f'{name}_{part}', nn.Parameter(table))

    def bias(self, name: str, hw_shape: Tuple[int, int]) -> Tensor:
        """The bias of each agent at each token, ``(heads, a, N)``; prefix tokens come first."""
        height, width = hw_shape
        whole = resize_map(getattr(self, f'{name}_map'), hw_shape)
        rows = resize_map(getattr(self, f'{name}_rows'), (height, 1))
        columns = resize_map(getattr(self, f'{name}_columns'), (1, width))
        bias = (whole + rows + columns).flatten(2)
        if self.num_prefix_tokens:
            bias = torch.cat([getattr(self, f'{name}_prefix'), bias], dim=2)
        return self.landmarks.resize_biases(bias)

    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        # Agents (B, heads, a, d), biases (1, heads, a, n or N).
        agents = self.landmarks(q[:, :, self.num_prefix_tokens :], hw_shape).to(q.dtype)
        gather = self.bias('gather', self.kv_shape(hw_shape)).to(q.dtype)[None]
        spread = self.bias('spread', hw_shape).to(q.dtype).transpose(1, 2)[None]
        gathered = softmax_attention(agents, k, v, attn_mask=gather)  # (.., a, d)
        return softmax_attention(q, agents, gathered, attn_mask=spread)

    def local_branch(self, v: Tensor, x: Tensor, hw_shape: Tuple[int, int]) -> Optional[Tensor]:
        """The convolution of V. Before it, a reduced map is resized bilinearly."""
        if self.lepe is None:
            return None
        maps = resize_map(tokens_to_map(v, self.kv_shape(hw_shape)), hw_shape)
        return self.lepe(map_to_tokens(maps), hw_shape)

    def resize_weight(self, name: str, value: Tensor) -> Tensor:
        """The biases of a checkpoint, resized to the agents and the map of this module."""
        if name == 'key_positions':
            return super().resize_weight(name, value)
        square = value.dim() == 4 and math.isqrt(value.shape[1]) ** 2 == value.shape[1]
        if not square:
            return value
        own = getattr(self, name)
        side = math.isqrt(own.shape[1])
        agents = resize_agents(value.flatten(2), (side, side)).unflatten(2, value.shape[2:])
        return resize_map(agents, own.shape[2:])
