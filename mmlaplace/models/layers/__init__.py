"""The parts around the attentions."""

from .block import DropPath, TransformerBlock
from .depthwise import DepthwiseConv
from .feature_map import map_to_tokens, tokens_to_map
from .ffn import FFN
from .landmarks import LandmarkPool
from .patch_embed import OverlapPatchEmbed
from .position import RotaryEmbedding2D

__all__ = [
    'FFN',
    'DepthwiseConv',
    'DropPath',
    'LandmarkPool',
    'OverlapPatchEmbed',
    'RotaryEmbedding2D',
    'TransformerBlock',
    'map_to_tokens',
    'tokens_to_map',
]
