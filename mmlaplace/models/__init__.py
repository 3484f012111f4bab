"""Attentions, layers, backbones, necks and a loss; importing them registers them."""

from .attentions import *  # noqa: F403
from .backbones import *  # noqa: F403
from .families import FAMILIES as FAMILIES
from .losses import *  # noqa: F403
from .multihead import LinearMultiheadAttention as LinearMultiheadAttention
from .necks import *  # noqa: F403
from .plain_necks import *  # noqa: F403
from .pyramid import Family as Family
from .pyramid import PlainBackbone as PlainBackbone
from .pyramid import PyramidBackbone as PyramidBackbone
from .pyramid import Stage as Stage
from .swap_multihead import ModelWithAttentions as ModelWithAttentions
from .swap_multihead import swap_multihead_attention as swap_multihead_attention
from .valid_parts import set_valid_shapes as set_valid_shapes
