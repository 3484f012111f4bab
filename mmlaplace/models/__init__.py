"""Attentions, layers, backbones, necks and a loss; importing them registers them."""

from .attentions import *  # noqa: F403
from .backbones import *  # noqa: F403
from .losses import *  # noqa: F403
from .necks import *  # noqa: F403
from .pyramid import Family as Family
from .pyramid import PyramidBackbone as PyramidBackbone
from .pyramid import Stage as Stage
