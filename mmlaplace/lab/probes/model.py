"""The model that learns a probe."""

from typing import Any

import torch.nn as nn
from torch import Tensor

from ...models.layers.block import TransformerBlock
from ...models.pyramid.options import with_frame
from .tasks import UNASKED, Batch, Probe


class ProbeModel(nn.Module):
    """Embeddings of keys and values, pre-norm blocks with an attention, and a linear.

    Args:
        probe: The task, which gives the sizes.
        attn_cfg: Config of the attention, without sizes.
        embed_dims: Channels C. Default: 64.
        num_heads: Heads. Default: 2.
        depth: Blocks. Default: 2.
        ffn_ratio: Hidden channels of the FFN divided by C. Default: 2.

    Examples:
        >>> import torch
        >>> from mmlaplace.lab.probes import ProbeModel, Recall
        >>> probe = Recall(pairs=4)
        >>> model = ProbeModel(probe, dict(type='PolaAttention'))
        >>> model(probe.batch(2, torch.Generator())).shape  # 2 x 4 queries, 64 values
        torch.Size([8, 64])
    """

    def __init__(
        self,
        probe: Probe,
        attn_cfg: dict,
        embed_dims: int = 64,
        num_heads: int = 2,
        depth: int = 2,
        ffn_ratio: float = 2.0,
    ) -> None:
        super().__init__()
        sizes: Any = dict(
            embed_dims=embed_dims, num_heads=num_heads, input_resolution=probe.hw_shape
        )
        attn_cfg = dict(with_frame(attn_cfg, probe.frame), **sizes)
        self.keys = nn.Embedding(probe.num_keys + 1, embed_dims)
        self.values = nn.Embedding(probe.values + 1, embed_dims)
        self.blocks = nn.ModuleList(
            TransformerBlock(embed_dims, attn_cfg, ffn_ratio, norm_cfg=dict(type='LN', eps=1e-5))
            for _ in range(depth)
        )
        if not probe.first_norm:
            self.blocks[0].norm1 = nn.Identity()
        self.head = nn.Linear(embed_dims, probe.values)

    def forward(self, batch: Batch) -> Tensor:
        """The logits ``(answers, values)`` of the tokens that must answer, in their order."""
        x = self.keys(batch.keys) * batch.lengths.unsqueeze(-1) + self.values(batch.values)
        for block in self.blocks:
            x = block(x, batch.hw_shape)  # (B, N, C)
        return self.head(x[batch.answers != UNASKED])
