"""Attentions, layers and backbones; importing them registers them."""

from .attentions import *  # noqa: F403
from .backbones import *  # noqa: F403
