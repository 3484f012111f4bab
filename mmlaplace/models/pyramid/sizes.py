"""Sizes of pyramids."""

from typing import Optional, Tuple

STRIDES = (4, 2, 2, 2)  # of four stages: by how much each divides a side


def arch(
    embed_dims: Tuple[int, ...],
    depths: Tuple[int, ...],
    num_heads: Optional[Tuple[int, ...]] = None,
    ffn_ratios: Optional[Tuple[float, ...]] = None,
) -> dict:
    """A size. By default, heads have 32 channels and FFNs have four times the channels."""
    return dict(
        embed_dims=embed_dims,
        depths=depths,
        num_heads=num_heads or tuple(dims // 32 for dims in embed_dims),
        ffn_ratios=ffn_ratios or (4,) * len(depths),
    )


MICRO = arch((32, 64, 96, 128), (1, 1, 2, 1))  # for small images and tests
