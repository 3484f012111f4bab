"""Long Range Arena: data sets of long sequences, and a model for them.

Importing it registers the datasets, the preprocessor, the encoder, a hook and a sampler. Of the
toolboxes it needs none.
"""

from .attentions import encoder_options
from .beta_cycle import BetaCycleHook
from .datasets import LRAListOps, LRAPixels, LRAText, SequenceDataset
from .encoder import SequenceEncoder
from .length_batches import LengthBatchSampler
from .preprocessor import TokenPreprocessor

__all__ = [
    'BetaCycleHook',
    'LRAListOps',
    'LRAPixels',
    'LRAText',
    'LengthBatchSampler',
    'SequenceDataset',
    'SequenceEncoder',
    'TokenPreprocessor',
    'encoder_options',
]
