"""Long Range Arena: data sets of long sequences, and a model for them.

Importing it registers the datasets, the preprocessor and the encoder. It needs mmengine alone.
"""

from .datasets import LRAListOps, LRAPixels, LRAText, SequenceDataset
from .encoder import SequenceEncoder
from .preprocessor import TokenPreprocessor

__all__ = [
    'LRAListOps',
    'LRAPixels',
    'LRAText',
    'SequenceDataset',
    'SequenceEncoder',
    'TokenPreprocessor',
]
