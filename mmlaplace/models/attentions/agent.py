from typing import Any, Optional, Tuple

from mmengine.registry import MODELS
from torch import Tensor

from ..layers import map_to_tokens, resize_map, softmax_attention, tokens_to_map
from ..layers.agents import AgentBiases, Agents
from .base import QKVAttention
from .frame import Frame


@MODELS.register_module()
class AgentAttention(AgentBiases, QKVAttention):
    r"""Agent attention: a few agents attend to all tokens, and all tokens attend to the agents.

    Per head, with agents A (a, d), averages of the map of queries, and learned biases B:

    .. math::
        Y = \mathrm{softmax}(Q A^T / \sqrt{d} + B_2) \,
            \big[ \mathrm{softmax}(A K^T / \sqrt{d} + B_1) \, V \big]

    For each agent, a bias is a 7 x 7 map resized to the tokens, plus one term for each row and one
    for each column. These terms are stored for ``input_resolution`` and resized bilinearly for
    other maps.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        num_landmarks: Number a of agents, a square. Default: 49; PVT's stages have 9, 16, 49, 49.
        agent_shape: Rows and columns of the agents. Biases are stored for a square of
            ``num_landmarks`` agents, and resized bilinearly to another shape. Default: the square.
        num_prefix_tokens: Tokens before those of the map, such as a class token. Each has biases
            of its own. Agents and the convolution leave them out. Default: 0.
        **frame: Fields of :class:`Frame` that differ from ``Frame(qkv='q_kv', lepe_kernel=3)``.

    Raises:
        ValueError: If prefix tokens are combined with what needs the keys to be a map.

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
    tested_options = (dict(num_landmarks=9, sr_ratio=2), dict(agent_shape=(2, 5), rope=True))

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        num_landmarks: int = 49,
        agent_shape: Optional[Tuple[int, int]] = None,
        num_prefix_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        self.num_prefix_tokens = num_prefix_tokens
        self.landmarks = Agents(num_landmarks, agent_shape)
        self.add_biases(num_landmarks)

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
        of_map = v[:, self.num_prefix_tokens :]
        maps = resize_map(tokens_to_map(of_map, self.kv_shape(hw_shape)), hw_shape)
        return self.after_prefix(self.lepe(map_to_tokens(maps), hw_shape))
