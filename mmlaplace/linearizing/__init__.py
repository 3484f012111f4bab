"""Linearize a trained backbone: another attention takes the place of softmax, and imitates it."""

from .distilling import Schedule, distill, fit, image_batches
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
from .losses import LOSSES, layer_loss, task_loss, whole_loss
from .swapping import (
    Kept,
    attention_plan,
    keep_weights,
    linear_config,
    softmax_blocks,
    softmax_places,
)

__all__ = [
    'LOSSES',
    'Kept',
    'Plan',
    'Schedule',
    'attention_plan',
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
    'task_loss',
    'whole_loss',
]
