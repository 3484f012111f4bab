"""The parts around the attentions."""

from .block import DropPath, TransformerBlock
from .depthwise import DepthwiseConv
from .feature_map import map_to_tokens, tokens_to_map
from .ffn import FFN
from .landmarks import LandmarkConv, LandmarkPick, LandmarkPool
from .patch_embed import ConvPatchEmbed, OverlapPatchEmbed, PatchEmbed, PatchMerging
from .position import PositionEmbedding, RotaryEmbedding2D, resize_map
from .windows import join_windows, shifted_neighbours, split_windows

__all__ = [
    'FFN',
    'ConvPatchEmbed',
    'DepthwiseConv',
    'DropPath',
    'LandmarkConv',
    'LandmarkPick',
    'LandmarkPool',
    'OverlapPatchEmbed',
    'PatchEmbed',
    'PatchMerging',
    'PositionEmbedding',
    'RotaryEmbedding2D',
    'TransformerBlock',
    'join_windows',
    'map_to_tokens',
    'resize_map',
    'shifted_neighbours',
    'split_windows',
    'tokens_to_map',
]
