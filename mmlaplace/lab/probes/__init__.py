"""Probes: small tasks on maps of tokens, each of which asks one thing of an attention.

A probe makes its maps from a seed, without a data set. Of the toolboxes it needs none.
"""

from .model import ProbeModel
from .tasks import PROBES, Batch, Count, Magnitude, Noise, Offset, OneOfMany, Probe, Recall
from .training import Schedule, train_probe

__all__ = [
    'PROBES',
    'Batch',
    'Count',
    'Magnitude',
    'Noise',
    'Offset',
    'OneOfMany',
    'Probe',
    'ProbeModel',
    'Recall',
    'Schedule',
    'train_probe',
]
