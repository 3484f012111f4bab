"""mmengine's own loader, for ``load_from`` and all modules, takes the sources that it lacks."""

import re
from typing import Any, Dict

from mmengine.runner import CheckpointLoader

from ._hubs import HUB, TIMM
from .loading import read_for_mmengine

# mmengine matches these at the beginning of a path or address.
SOURCES = (HUB, TIMM, r'https?://.*\.safetensors', r'.*\.safetensors$')


def is_read_safely(checkpoint: str) -> bool:
    """Whether mmengine loads a checkpoint by :func:`load_from_mmlaplace`."""
    return any(re.match(source, checkpoint) for source in SOURCES)


@CheckpointLoader.register_scheme(prefixes=SOURCES, force=True)
def load_from_mmlaplace(filename: str, map_location: Any = None) -> Dict[str, Any]:
    """A checkpoint for mmengine, which hands over the names of :data:`SOURCES`.

    Only the weights and the data set's ``classes`` and ``palette`` reach mmengine. A run can start
    from them by ``load_from``, and cannot be resumed.

    Raises:
        Exception: As :func:`read_state_dict`.
    """
    return read_for_mmengine(filename, map_location)
