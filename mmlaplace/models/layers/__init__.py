"""The parts around the attentions."""

from mmlaplace.ops.linear_attention import elu_plus_one, linear_attention

from .block import FFN, DropPath, LayerScale, StageLayers, TransformerBlock
from .feature_map import DepthwiseConv, map_to_tokens, memory_format_of, resize_map, tokens_to_map
from .landmarks import Landmarks
from .pairs import softmax_attention
from .patch_embed import (
    ConvPatchEmbed,
    OverlapPatchEmbed,
    PatchEmbed,
    PatchMerging,
    PooledPatchEmbed,
)
from .pola_streams import pola_streams
from .position import PositionEmbedding, RotaryEmbedding2D, RotaryOfAllHeads
from .rep_norm import PRepBN, RepBN
from .rms_norm import RMSNorm
from .signed_powers import signed_powers
from .swiglu import SwiGLU
from .windows import join_windows, shifted_window_mask, split_windows

__all__ = [
    'FFN',
    'ConvPatchEmbed',
    'DepthwiseConv',
    'DropPath',
    'Landmarks',
    'LayerScale',
    'OverlapPatchEmbed',
    'PRepBN',
    'PatchEmbed',
    'PatchMerging',
    'PooledPatchEmbed',
    'PositionEmbedding',
    'RMSNorm',
    'RepBN',
    'RotaryEmbedding2D',
    'RotaryOfAllHeads',
    'StageLayers',
    'SwiGLU',
    'TransformerBlock',
    'elu_plus_one',
    'join_windows',
    'linear_attention',
    'map_to_tokens',
    'memory_format_of',
    'pola_streams',
    'resize_map',
    'shifted_window_mask',
    'signed_powers',
    'softmax_attention',
    'split_windows',
    'tokens_to_map',
]
