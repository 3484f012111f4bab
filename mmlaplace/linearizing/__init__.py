"""Linearize a trained backbone: another attention takes the place of softmax, and imitates it."""

from .distilling import Schedule, distill, fit, image_batches
from .hosts import Host, host_of, named_host
from .hybrids import (
    Plan,
    block_costs,
    check_budget,
    check_keep,
    check_reachable,
    choose,
    choose_measured,
    harm_of,
    measure_blocks,
)
from .images import ImagesAlone, data_loader
from .losses import LOSSES, layer_loss, task_loss, whole_loss
from .scoring import Scorer
from .swapping import (
    Kept,
    attention_plan,
    keep_weights,
    linear_config,
    softmax_blocks,
    softmax_places,
)
from .task_search import TaskSearch

__all__ = [
    'LOSSES',
    'Host',
    'ImagesAlone',
    'Kept',
    'Plan',
    'Schedule',
    'Scorer',
    'TaskSearch',
    'attention_plan',
    'block_costs',
    'check_budget',
    'check_keep',
    'check_reachable',
    'choose',
    'choose_measured',
    'data_loader',
    'distill',
    'fit',
    'harm_of',
    'host_of',
    'image_batches',
    'keep_weights',
    'layer_loss',
    'linear_config',
    'measure_blocks',
    'named_host',
    'softmax_blocks',
    'softmax_places',
    'task_loss',
    'whole_loss',
]
