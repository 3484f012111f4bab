from typing import Any, Optional, Set, Tuple

import torch
import torch.nn as nn
from mmengine.registry import MODELS
from torch import Tensor

from ..layers import PooledPatchEmbed, resize_map, softmax_attention
from ..layers.build import build_token_norm
from ..layers.checks import check_counts
from ..layers.drawing import draw_normal_
from ..layers.pairs import check_pairs_fit, offsets_of_pairs
from ..layers.tables import computed_once
from ..layers.windows import windows_of
from .base import QKVAttention


@MODELS.register_module()
class SoftmaxAttention(QKVAttention):
    r"""Scaled dot-product attention, the baseline on every host.

    .. math:: \mathrm{softmax}(Q K^T / \sqrt{d} + b)\, V

    It calls PyTorch's ``scaled_dot_product_attention``. Time is quadratic in the tokens. With a
    fused kernel, this function stores no N x N matrix. On a CPU it has a fused kernel only without
    ``attn_drop``.

    Args:
        embed_dims, num_heads, input_resolution, num_prefix_tokens, init_cfg: As in
            :class:`QKVAttention`.
        relative_bias: Whether each head adds a learned b for each offset of rows and columns, as in
            Swin. It is stored for the offsets of ``input_resolution`` and resized bicubically for
            other maps. Default: False.
        attn_drop: Dropout rate of the attention weights. Default: 0.
        sr_norm_cfg: Config of the norm after the spatial reduction, such as
            ``dict(type='PRepBN', steps=300000)`` in SLAB's PVT. Default: ``dict(type='LN')``.
        window_size: Side w of windows, in tokens. A token of the map then attends to the tokens of
            its window and to prefix tokens, and prefix tokens attend to all, as in the blocks of
            ViTDet that are not global. At the bottom and the right, windows end with the map.
            Default: 0, all tokens.
        pool_size: Side p of the map to which keys and values are pooled, before a 1 x 1
            convolution, a LayerNorm and GELU. The time is linear in the tokens, as in PVTv2 of
            linear time, which has 7. Default: 0, no pooling.
        **frame: Fields of :class:`Frame` that differ from ``Frame()``; ``sr_ratio=8`` is the
            attention of PVT's first stage.

    Raises:
        ValueError: If windows, a pooled map or a relative bias are combined with what needs queries
            and keys to be one map, or a relative bias with prefix tokens. In the forward, for a
            map whose relative bias would need more than 4 GB, and for a mask beside windows.

    Cost: N²C to mix, in windows NCw²; 4C² weights.

    Published: DeiT-T 72.2, PVT-T 75.1, PVT-S 79.8.

    Source: Attention Is All You Need (arXiv 1706.03762).

    Examples:
        >>> import torch
        >>> from mmlaplace.models import SoftmaxAttention
        >>> attention = SoftmaxAttention(64, 2, (14, 14), sr_ratio=2)
        >>> attention(torch.randn(1, 5 * 9, 64), hw_shape=(5, 9)).shape
        torch.Size([1, 45, 64])
    """

    accepts_mask = True
    not_promised = dict(linear='each query reads each key')
    no_prefix_tokens = ''
    tested_options = (
        dict(rope=True, lepe_kernel=3),
        dict(qkv='shared_qk', rope=True),
        dict(qkv='qk', proj=False, lepe_kernel=3, lepe_filters='head'),
        dict(relative_bias=True),
        dict(sr_ratio=2),
        dict(pool_size=3),
        dict(sr_ratio=2, gate=True, key_positions=True, lepe_kernel=3),
        dict(qkv='q_kv', rope=True, rope_form='pairs'),
        dict(rope=True, rope_form='centred', window_size=4),
    )

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        input_resolution: Tuple[int, int],
        relative_bias: bool = False,
        attn_drop: float = 0.0,
        pool_size: int = 0,
        sr_norm_cfg: Optional[dict] = None,
        window_size: int = 0,
        **kwargs: Any,
    ) -> None:
        self.pool_size = pool_size
        if pool_size:
            kwargs.setdefault('qkv', 'q_kv')
        super().__init__(embed_dims, num_heads, input_resolution, **kwargs)
        frame = self.frame
        if pool_size:
            one_map = frame.rope or frame.key_positions or relative_bias or frame.second_lepe_kernel
            if frame.qkv != 'q_kv' or frame.sr_ratio > 1 or one_map:
                raise ValueError(
                    f'pool_size={pool_size} makes keys and values of another map; leave out '
                    f'qkv={frame.qkv!r}, rope={frame.rope}, key_positions={frame.key_positions}, '
                    f'relative_bias={relative_bias}, '
                    f'second_lepe_kernel={frame.second_lepe_kernel} and sr_ratio={frame.sr_ratio}, '
                    'or set pool_size=0'
                )
            self.sr = PooledPatchEmbed(embed_dims, pool_size)
        if sr_norm_cfg is not None and self.sr is not None:
            self.sr.norm = build_token_norm(sr_norm_cfg, embed_dims)
        if self.num_prefix_tokens and relative_bias:
            raise ValueError(
                f'num_prefix_tokens={self.num_prefix_tokens} have no offsets of rows and columns; '
                'set relative_bias=False (got True)'
            )
        if window_size != 0:
            check_counts(window_size=window_size)
        if window_size and (relative_bias or self.sr):
            raise ValueError(
                f'window_size={window_size} needs queries and keys on one map, and no bias of it; '
                f'set relative_bias=False (got {relative_bias}), sr_ratio=1 ({frame.sr_ratio}) and '
                f"pool_size=0 ({pool_size}), or take Swin's WindowAttention"
            )
        if relative_bias and self.sr:
            raise ValueError(
                f'relative_bias=True needs queries and keys on one map, got '
                f'sr_ratio={frame.sr_ratio}; set sr_ratio=1 or relative_bias=False'
            )
        self.window_size = window_size
        self.attn_drop = nn.Dropout(attn_drop)
        # A mask is of the tokens, not of reduced keys or of windows.
        self.accepts_mask = self.sr is None and not window_size
        self.relative_bias = None
        if relative_bias:
            height, width = self.input_resolution
            table = torch.zeros(1, num_heads, 2 * height - 1, 2 * width - 1)
            self.relative_bias = nn.Parameter(draw_normal_(table))

    def kv_shape(self, hw_shape: Tuple[int, int]) -> Tuple[int, int]:
        if self.pool_size:
            return self.pool_size, self.pool_size
        return super().kv_shape(hw_shape)

    def mix(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hw_shape: Tuple[int, int],
        mask: Optional[Tensor] = None,
    ) -> Tensor:
        if self.relative_bias is not None:
            # The bias is that of one image, beside which its indices count.
            check_pairs_fit(self, q[:1], k[:1], (3, 5))
            sides = 2 * hw_shape[0] - 1, 2 * hw_shape[1] - 1
            table = resize_map(self.relative_bias, sides, mode='bicubic')
            rows, columns = computed_once(offsets_of_pairs, *hw_shape, like=table)
            bias = table[:, :, rows, columns].to(q.dtype)  # (1, heads, N, N)
            mask = bias if mask is None else bias.masked_fill(~mask, float('-inf'))
        # Users who take dropout out put an Identity in its place, which has no rate.
        rate = getattr(self.attn_drop, 'p', 0.0) if self.attn_drop.training else 0.0
        if self.window_size:
            height, width = hw_shape
            side = min(self.window_size, height), min(self.window_size, width)
            if side != (height, width):
                return self._mix_in_windows(q, k, v, (height, width), side, rate)
        return softmax_attention(q, k, v, attn_mask=mask, dropout_p=rate)

    def _mix_in_windows(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hw_shape: Tuple[int, int],
        side: Tuple[int, int],
        rate: float,
    ) -> Tensor:
        """The rule in windows of ``side`` tokens. Prefix tokens are keys of each window."""
        prefix = self.num_prefix_tokens
        windows = computed_once(windows_of, hw_shape, side, (0, 0), like=q)

        def split(x: Tensor) -> Tensor:
            """``(B, heads, p + N, d)`` to the windows ``(B * heads, windows, w * w, d)``."""
            return windows.split_apart(x[:, :, prefix:].flatten(0, 1))

        queries = split(q)

        def with_prefix(x: Tensor) -> Tensor:
            first = x[:, :, :prefix].flatten(0, 1).unsqueeze(1)
            return torch.cat([first.expand(-1, queries.shape[1], -1, -1), split(x)], dim=2)

        seen = None
        if windows.empty is not None:  # (windows, 1, p + w * w): no query sees an empty place
            real = ~windows.empty.view(-1, 1, windows.size)
            seen = torch.cat([real.new_ones(real.shape[0], 1, prefix), real], dim=2)
        out = softmax_attention(
            queries, with_prefix(k), with_prefix(v), attn_mask=seen, dropout_p=rate
        )
        out = windows.join(out.flatten(0, 1)).unflatten(0, q.shape[:2])  # (B, heads, N, d)
        if not prefix:
            return out
        first = softmax_attention(q[:, :, :prefix], k, v, dropout_p=rate)
        return torch.cat([first, out], dim=2)

    def no_weight_decay(self) -> Set[str]:
        """Names of the parameters without weight decay, as in the code of Swin's authors."""
        return {'relative_bias'}

    def resize_weight(self, name: str, value: Tensor) -> Tensor:
        """The relative bias or key positions of a checkpoint, resized to those of this module."""
        if name != 'relative_bias' or self.relative_bias is None:
            return super().resize_weight(name, value)
        return resize_map(value, self.relative_bias.shape[2:], mode='bicubic')
