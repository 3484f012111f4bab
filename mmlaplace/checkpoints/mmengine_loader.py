"""mmengine's own loader, for ``load_from`` and all modules, takes the sources that it lacks."""

import re
from typing import Any, Dict

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as mmengine_checkpoints

from ._hubs import HUB, TIMM
from ._run_load import load_run
from .loading import read, read_for_mmengine
from .released import SCHEME

# mmengine matches these at the beginning of a path or address.
SOURCES = (HUB, TIMM, SCHEME, r'https?://.*\.safetensors', r'.*\.safetensors$')
# mmengine's own. It turns names such as torchvision://NAME to addresses, and then they are checked.
THEIR_SOURCES = ('', 'http://', 'https://', r'(\S+\:)?s3://', r'(\S+\:)?petrel://', 'pavi://')


def allow_history() -> None:
    """Let torch's safe loading read the curves in the checkpoints of mmengine's Runner.

    Without it, mmengine warns that each of them could not safely be loaded, and then loads it with
    all its code.
    """
    if hasattr(torch.serialization, 'add_safe_globals'):  # torch 2.4
        names = ('Float64DType', 'Float32DType', 'Int64DType')
        dtypes = [getattr(np.dtypes, name) for name in names if hasattr(np, 'dtypes')]
        torch.serialization.add_safe_globals([HistoryBuffer, *dtypes])


allow_history()


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


def refuse_code() -> None:
    """From now on, let mmengine load every checkpoint in this process without running its code.

    That is each one in ``load_from``, ``resume`` and every ``init_cfg`` of a config, and those of
    teachers. All our command line tools call this function at their start. A file with code raises
    an :class:`UnsafeCheckpointError`, which tells how to save its weights alone. A run of mmengine
    can be resumed, if it is not one of sharded FSDP. DeepSpeed's folders are not covered.
    """
    CheckpointLoader.register_scheme(THEIR_SOURCES, load_from_checked_file, force=True)
    mmengine_checkpoints.load_from_http = load_from_checked_file  # for names that give an address


def load_from_checked_file(filename: str, map_location: Any = None, **kwargs: Any) -> Any:
    """As mmengine's own loaders, without running code.

    Raises:
        Exception: As :func:`read_state_dict`.
    """
    return read(filename, map_location, load_run)
