"""Linearize a trained backbone: another attention takes the place of softmax, and imitates it."""

from .distilling import Schedule, distill, fit, image_batches, layer_loss, whole_loss
from .hybrids import (
    Plan,
    block_costs,
    check_budget,
    check_keep,
    choose,
    choose_measured,
    harm_of,
    measure_blocks,
)
from .swapping import Kept, keep_weights, linear_config, softmax_blocks, softmax_places

__all__ = [
    'Kept',
    'Plan',
    'Schedule',
    'block_costs',
    'check_budget',
    'check_keep',
    'choose',
    'choose_measured',
    'distill',
    'fit',
    'harm_of',
    'image_batches',
    'keep_weights',
    'layer_loss',
    'linear_config',
    'measure_blocks',
    'softmax_blocks',
    'softmax_places',
    'whole_loss',
]
