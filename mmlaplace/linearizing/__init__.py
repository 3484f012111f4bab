"""Linearize a trained backbone: another attention takes the place of softmax, and imitates it."""

from .distilling import Schedule, distill, fit, image_batches, layer_loss, whole_loss
from .swapping import Kept, keep_weights, linear_config, softmax_places

__all__ = [
    'Kept',
    'Schedule',
    'distill',
    'fit',
    'image_batches',
    'keep_weights',
    'layer_loss',
    'linear_config',
    'softmax_places',
    'whole_loss',
]
