from abc import abstractmethod
from typing import Optional, Tuple

import torch.nn as nn
from mmengine.model import BaseModule
from torch import Tensor

from ..layers import DepthwiseConv, RotaryEmbedding2D
from ..options import KnownOptions


class BaseAttention(KnownOptions, BaseModule):
    """The contract of every attention: mix the tokens of a feature map, whatever its size.

    ``forward(x: (B, N, C), hw_shape: (H, W)) -> (B, N, C)`` with ``N = H * W``, for any H and W,
    odd and non-square ones included. Subclasses are registered in ``mmengine.registry.MODELS`` and
    take at least the arguments below, so that every backbone can build every attention. Where
    ``accepts_mask``, the forward takes a boolean ``mask`` too, broadcastable to (B, heads, N, N),
    of the keys that a query sees.

    Args:
        embed_dims: Channels C.
        num_heads: Heads; must divide ``embed_dims``.
        input_resolution: Height and width of the token map at the training image size, for what
            is initialised for, or stored at, a size. The forward accepts others.
        init_cfg: As in mmengine.

    Raises:
        TypeError: For an unknown option; names those that there are.
        ValueError: If ``num_heads`` does not divide ``embed_dims``.
    """

    accepts_mask = False

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(init_cfg)
        if num_heads < 1 or embed_dims % num_heads:
            raise ValueError(
                f'embed_dims ({embed_dims}) must be divisible by num_heads ({num_heads})'
            )
        self.embed_dims = embed_dims
        self.num_heads = num_heads
        self.head_dims = embed_dims // num_heads
        self.input_resolution = tuple(input_resolution)

    @abstractmethod
    def forward(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Mix tokens ``(B, N, C)`` of a map ``(H, W)`` with ``N = H * W``."""

    def split_heads(self, x: Tensor) -> Tensor:
        """``(B, N, C) -> (B, heads, N, head_dims)``."""
        return x.unflatten(-1, (self.num_heads, self.head_dims)).transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:
        """``(B, heads, N, head_dims) -> (B, N, C)``."""
        return x.transpose(1, 2).flatten(2)

    def check_tokens(
        self, x: Tensor, hw_shape: Tuple[int, int], num_prefix_tokens: int = 0
    ) -> None:
        """Raise a ValueError unless ``x`` is ``(B, H * W, C)``, with tokens in front if so said."""
        height, width = hw_shape
        tokens = height * width + num_prefix_tokens
        if x.dim() != 3 or x.shape[1] != tokens or x.shape[2] != self.embed_dims:
            prefix = f'{num_prefix_tokens} + ' if num_prefix_tokens else ''
            raise ValueError(
                f'{type(self).__name__} expects tokens (B, {prefix}H*W, C) = (B, {tokens}, '
                f'{self.embed_dims}) for hw_shape {tuple(hw_shape)}, got {tuple(x.shape)}'
            )


class QKVAttention(BaseAttention):
    """Linear q, k, v, a mixing rule of the subclass, a local branch on V and a projection.

    ``out = proj(mix(q, k, v) + DWConv(v))``, q and k with rotary positions. Everything but
    :meth:`mix` is shared, so that mechanisms can be compared on one and the same host.

    Args:
        embed_dims, num_heads, input_resolution, init_cfg: As in :class:`BaseAttention`.
        qkv_bias: Whether q, k and v have a bias. Default: True.
        share_qk: Whether one linear serves q and k. Default: False.
        rope: Whether q and k carry 2-D rotary positions. Default: True.
        dw_kernel_size: Odd kernel size of the depthwise convolution on V; 0 leaves it out.
            Default: 3.
        dw_cfg: Further arguments of :class:`DepthwiseConv`. Default: none.
        proj_drop: Dropout rate behind the projection. Default: 0.
    """

    num_prefix_tokens = 0

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        qkv_bias: bool = True,
        share_qk: bool = False,
        rope: bool = True,
        dw_kernel_size: int = 3,
        dw_cfg: Optional[dict] = None,
        proj_drop: float = 0.0,
        init_cfg: Optional[dict] = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, input_resolution, init_cfg)
        self.share_qk = share_qk
        self.qkv = nn.Linear(embed_dims, (2 if share_qk else 3) * embed_dims, bias=qkv_bias)
        self.rotary = RotaryEmbedding2D(self.head_dims) if rope else None
        self.local = None
        if dw_kernel_size:
            self.local = DepthwiseConv(embed_dims, dw_kernel_size, num_heads, **(dw_cfg or {}))
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.proj_drop = nn.Dropout(proj_drop)

    @abstractmethod
    def mix(self, q: Tensor, k: Tensor, v: Tensor, hw_shape: Tuple[int, int]) -> Tensor:
        """Mix values ``(B, heads, N, head_dims)`` by queries and keys of the same shape.

        With ``share_qk`` the keys are the queries, the same object.
        """

    def project(self, x: Tensor, hw_shape: Tuple[int, int]) -> Tuple[Tensor, ...]:
        """Tokens ``(B, N, C)`` to queries, keys and values of that shape; no keys if shared."""
        return self.qkv(x).chunk(2 if self.share_qk else 3, dim=-1)

    def forward(
        self, x: Tensor, hw_shape: Tuple[int, int], mask: Optional[Tensor] = None
    ) -> Tensor:
        self.check_tokens(x, hw_shape, self.num_prefix_tokens)
        *query_key, value = self.project(x, hw_shape)
        query_key = [self.split_heads(tokens) for tokens in query_key]
        if self.rotary is not None:
            query_key = [self.rotary(tokens, hw_shape) for tokens in query_key]
        seen = {} if mask is None else dict(mask=mask)
        mixed = self.mix(query_key[0], query_key[-1], self.split_heads(value), hw_shape, **seen)
        out = self.merge_heads(mixed)
        if self.local is not None:
            out = out + self.local(value, hw_shape)
        return self.proj_drop(self.proj(out))
