"""Before a run's first step: what cannot work is refused in one sentence.

A sentence names the file, the value and the fix. Our ``tools/train.py``, ``tools/test.py`` and
``tools/dry_run.py`` have these checks for every config, and so do the toolboxes' own tools for a
config with :class:`FirstChecksHook`. ``first_checks = False`` in a config switches them off.
"""

from .configs import check_config, is_on
from .data import check_data, explain_data
from .errors import FirstCheckError
from .hook import CHECKED, NOTHING_LEFT, FirstChecksHook
from .maps import check_maps
from .weights import check_weights

__all__ = [
    'CHECKED',
    'NOTHING_LEFT',
    'FirstCheckError',
    'FirstChecksHook',
    'check_config',
    'check_data',
    'check_maps',
    'check_weights',
    'explain_data',
    'is_on',
]
