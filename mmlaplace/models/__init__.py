"""Attentions, layers, backbones and necks; importing them registers them."""

from .attentions import *  # noqa: F403
from .backbones import *  # noqa: F403
from .necks import *  # noqa: F403
