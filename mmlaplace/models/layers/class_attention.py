"""Class attention: a class token that attends to the tokens of the last block."""

from typing import Any, Optional, Set, Tuple

import torch
import torch.nn as nn
from mmengine.model import BaseModule, ModuleList
from torch import Tensor

from .block import FFN, LayerScale
from .build import build_token_norm
from .drawing import draw_normal_
from .pairs import softmax_attention

LAYER_NORM = dict(type='LN', eps=1e-6)


class ClassAttentionLayer(BaseModule):
    r"""A layer of class attention: softmax of the class token over all tokens, then its FFN.

    With :math:`\hat c, \hat x` the class token c and the other tokens x after the first norm, a
    layer scale s and a second norm n,

    .. math::
        c \leftarrow n(c + s\, \mathrm{softmax}(q(\hat c)\, k([\hat c, \hat x])^T / \sqrt{d})\,
        v([\hat c, \hat x])), \quad c \leftarrow c + s'\, \mathrm{FFN}(c), \quad
        x \leftarrow 2\, n(x + s\, \hat x).

    Args:
        embed_dims: Channels C.
        num_heads: Heads of the attention.
        ffn_ratio: Hidden channels of the FFN in units of C.
        layer_scale: Value of the layer scales at the start.
        norm_tokens: Whether n acts on x. It does in all XCiTs but XCiT-N.
        norm_cfg: Config of the norms. Default: ``dict(type='LN', eps=1e-6)``.
        **ffn: Further arguments of :class:`FFN`.

    Source: CaiT (arXiv 2103.17239), XCiT (arXiv 2106.09681) for the tokens.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.class_attention import ClassAttentionLayer
        >>> layer = ClassAttentionLayer(64, 2, 4, layer_scale=1.0, norm_tokens=True)
        >>> [tuple(x.shape) for x in layer(torch.randn(2, 1, 64), torch.randn(2, 45, 64))]
        [(2, 1, 64), (2, 45, 64)]
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        ffn_ratio: float,
        layer_scale: float,
        norm_tokens: bool,
        norm_cfg: Optional[dict] = None,
        **ffn: Any,
    ) -> None:
        super().__init__()
        self.num_heads, self.norm_tokens = num_heads, norm_tokens
        self.norm1 = build_token_norm(norm_cfg or LAYER_NORM, embed_dims)
        self.q = nn.Linear(embed_dims, embed_dims)
        self.kv = nn.Linear(embed_dims, 2 * embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.scale1 = LayerScale(embed_dims, layer_scale)
        self.norm2 = build_token_norm(norm_cfg or LAYER_NORM, embed_dims)
        self.ffn = FFN(embed_dims, ffn_ratio, **ffn)
        self.scale2 = LayerScale(embed_dims, layer_scale)

    def attend(self, cls_token: Tensor, tokens: Tensor) -> Tensor:
        """The class token's mean of the values, ``(B, 1, C)``."""
        key, value = self.kv(torch.cat([cls_token, tokens], dim=1)).chunk(2, dim=-1)
        query = self.split_heads(self.q(cls_token))  # (B, heads, 1, d)
        key = self.split_heads(key)  # (B, heads, 1 + N, d)
        value = self.split_heads(value)
        return self.proj(softmax_attention(query, key, value).transpose(1, 2).flatten(2))

    def split_heads(self, x: Tensor) -> Tensor:
        """``(B, N, C) -> (B, heads, N, d)``."""
        return x.unflatten(2, (self.num_heads, -1)).transpose(1, 2)

    def forward(self, cls_token: Tensor, tokens: Tensor) -> Tuple[Tensor, Tensor]:
        """``(B, 1, C), (B, N, C)`` to the same."""
        cls_normed, normed = self.norm1(cls_token), self.norm1(tokens)
        cls_token = self.norm2(cls_token + self.scale1(self.attend(cls_normed, normed)))
        tokens = tokens + self.scale1(normed)
        tokens = 2 * (self.norm2(tokens) if self.norm_tokens else tokens)
        return cls_token + self.scale2(self.ffn(cls_token, (1, 1))), tokens


class ClassAttention(BaseModule):
    """A class token that attends to the tokens of the last block, in two layers, and a norm.

    Args:
        embed_dims: Channels C.
        num_heads, ffn_ratio, layer_scale, norm_tokens: As in :class:`ClassAttentionLayer`.
        norm_cfg: Config of the norms. Default: ``dict(type='LN', eps=1e-6)``.
        **ffn: Further arguments of :class:`FFN`.

    Examples:
        >>> import torch
        >>> from mmlaplace.models.layers.class_attention import ClassAttention
        >>> attention = ClassAttention(64, 2, 4, layer_scale=1.0, norm_tokens=True)
        >>> attention(torch.randn(1, 5 * 9, 64)).shape
        torch.Size([1, 1, 64])
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        ffn_ratio: float,
        layer_scale: float,
        norm_tokens: bool,
        norm_cfg: Optional[dict] = None,
        **ffn: Any,
    ) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dims))
        draw_normal_(self.cls_token)
        sizes = (embed_dims, num_heads, ffn_ratio, layer_scale, norm_tokens, norm_cfg)
        self.layers = ModuleList(ClassAttentionLayer(*sizes, **ffn) for _ in range(2))
        self.norm = build_token_norm(norm_cfg or LAYER_NORM, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens ``(B, N, C)`` to the class token ``(B, 1, C)``."""
        # No view of the parameter, at which PyTorch's counter of operations stops.
        cls_token = self.cls_token + torch.zeros_like(x[:, :1])
        for layer in self.layers:
            cls_token, x = layer(cls_token, x)
        return self.norm(cls_token)

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters without weight decay."""
        return {'cls_token'}
