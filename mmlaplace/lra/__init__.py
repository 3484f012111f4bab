"""Long Range Arena: data sets of long sequences, and a model for them.

Importing it registers the datasets, the preprocessor, the encoder and a hook. Of the toolboxes it
needs none.
"""

from .beta_cycle import BetaCycleHook
from .datasets import LRAListOps, LRAPixels, LRAText, SequenceDataset
from .encoder import SequenceEncoder
from .preprocessor import TokenPreprocessor

__all__ = [
    'BetaCycleHook',
    'LRAListOps',
    'LRAPixels',
    'LRAText',
    'SequenceDataset',
    'SequenceEncoder',
    'TokenPreprocessor',
]
