"""Files of safetensors: tensors, and texts beside them. They hold no code."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any, Dict, Mapping

import torch
from torch import Tensor

from ..writing import write_whole

META = 'mmengine_meta'  # the text that holds mmengine's meta as JSON


def is_safetensors(head: bytes) -> bool:
    """Whether a file that begins so is one of safetensors: a 64-bit length, then JSON."""
    return head[4:9] == b'\0\0\0\0{'


def read_safetensors(path: Any, map_location: Any) -> Dict[str, Any]:
    """The content as mmengine writes it: a dict with ``state_dict`` and ``meta``.

    :func:`write_weights` keeps ``meta`` as JSON. Other texts of the file are added to it unchanged.

    Raises:
        ImportError: If safetensors is not installed.
        Exception: If the file is damaged or cut off, or ``map_location`` is a function or a dict.
    """
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise ImportError('it is a file of safetensors: pip install safetensors') from error
    with safe_open(str(path), framework='pt') as file:
        # Copies, because the tensors of safe_open change with the file.
        weights = {
            name: file.get_tensor(name).to(map_location or 'cpu', copy=True)
            for name in file.keys()  # noqa: SIM118, it is no dict
        }
        texts = dict(file.metadata() or {})
    meta = json.loads(texts.pop(META, '{}'))
    return dict(state_dict=weights, meta={**texts, **meta})


def write_weights(path: Path, weights: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Write a checkpoint in one step: a file of safetensors if its name ends with ``.safetensors``.

    Any other name gives a file of torch.save.

    Args:
        path: The file. Its folder is made if it is missing.
        weights: Tensors by name. In safetensors no two may share memory.
        meta: What is kept beside them, as mmengine does. For safetensors JSON must hold it.

    Raises:
        ImportError: If safetensors is needed and not installed.
        OSError: If the file cannot be written. No part of it is left.
    """
    if path.suffix == '.safetensors':
        try:
            from safetensors.torch import save
        except ImportError as error:
            raise ImportError(
                f'{path} would be a file of safetensors: pip install safetensors, or give a name '
                'that ends with .pth'
            ) from error
        content = save(dict(weights), metadata={'format': 'pt', META: json.dumps(dict(meta))})
    else:
        file = BytesIO()
        torch.save(dict(state_dict=dict(weights), meta=dict(meta)), file)
        content = file.getvalue()
    write_whole(path, content)
