"""Weights from files: no code in a file is run, and nothing that does not fit goes unsaid."""

import logging
from collections import Counter
from os import PathLike
from os.path import expanduser
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Union

import torch.nn as nn
from mmengine.fileio import get_local_path
from mmengine.logging import print_log
from torch import Tensor

from ._plain_load import UnsafeCheckpointError, load_plain

# Where the weights lie, the first found wins. mmengine's 'state_dict' comes first: where an EMAHook
# ran, it already holds the averaged weights.
CONTAINERS = ('state_dict', 'model', 'module', 'state_dict_ema', 'model_ema', 'ema_state_dict')


class LoadReport(NamedTuple):
    """What a file and a module had in common, by the names of the module's tensors.

    Attributes:
        prefix: In front of the module's names in the file, such as ``'backbone.'``.
        matched: Parameters and persistent buffers that were loaded.
        missing: Those that the file lacks; they keep their values.
        unexpected: What the file has under the prefix but the module has not.
        resized: Those of ``matched`` that were brought to the module's own shape.
    """

    prefix: str
    matched: List[str]
    missing: List[str]
    unexpected: List[str]
    resized: List[str]


def read_state_dict(
    checkpoint: Union[str, PathLike], map_location: Any = 'cpu', key: Optional[str] = None
) -> Dict[str, Tensor]:
    """Read the weights of a checkpoint without running code from it.

    Args:
        checkpoint: Local path, or an address that mmengine.fileio opens, such as ``https://…``.
            A dict of tensors or, as mmengine, timm and others write, a dict that holds one under
            ``state_dict``, ``model``, ``module``, ``state_dict_ema``, ``model_ema`` or
            ``ema_state_dict``, in this order.
        map_location: As in ``torch.load``. Default: 'cpu'.
        key: Under which the weights lie, if not under the first of these. Default: None.

    Returns:
        Tensors by their names in the file, detached. What is not a tensor is left out.

    Raises:
        FileNotFoundError: If the file cannot be opened.
        UnsafeCheckpointError: A ``pickle.UnpicklingError``, if it names anything but tensors and
            the plain data of a training run; nothing of it is run.
        ValueError: If it is cut off, no checkpoint, or has no weights.
    """
    try:
        with get_local_path(expanduser(checkpoint)) as path:
            content = load_plain(path, map_location)
    except UnsafeCheckpointError as error:
        raise UnsafeCheckpointError(
            f'{checkpoint} {error}, which could run code; only tensors and plain data are read. '
            'If you trust its source, save its weights alone: torch.save(dict(state_dict='
            "torch.load(old, weights_only=False)['state_dict']), new)"
        ) from error
    except OSError as error:
        raise FileNotFoundError(
            f'{checkpoint} cannot be opened ({error}); check the path, or download it again'
        ) from error
    except Exception as error:  # a broken pickle can raise anything
        raise ValueError(
            f'{checkpoint} cannot be read as a checkpoint ({type(error).__name__}: {error}); if it '
            'is cut off or is something else, such as an error page, download or copy it again'
        ) from error
    whole = content if isinstance(content, dict) else {}
    places = [whole.get(name) for name in CONTAINERS] + [whole] if key is None else [whole.get(key)]
    for weights in places:
        if isinstance(weights, dict):
            named = {k: v for k, v in weights.items() if isinstance(k, str)}
            tensors = {k: v.detach() for k, v in named.items() if isinstance(v, Tensor)}
            if tensors:
                return tensors
    expected = f'one of {CONTAINERS}' if key is None else repr(key)
    raise ValueError(
        f'{checkpoint} has no weights: expected a dict of tensors, or one under {expected}, got '
        f'{list(whole) if whole else type(content).__name__}'
    )


def _count_prefixes(keys: Iterable[str], names: Iterable[str]) -> Counter:
    """How many of ``names`` there are behind each prefix of ``keys`` that ends with a dot."""
    names, counts = set(names), Counter()
    for key in keys:
        parts = key.split('.')
        for i in range(len(parts)):
            if '.'.join(parts[i:]) in names:
                counts[''.join(f'{part}.' for part in parts[:i])] += 1
    return counts


def _first(names: List[str]) -> str:
    return f'{len(names)}' + (f' ({", ".join(names[:3])}{", …" * (len(names) > 3)})' * bool(names))


def load_weights(
    module: nn.Module,
    checkpoint: Union[str, PathLike],
    prefix: Optional[str] = None,
    min_matched: float = 0.95,
    map_location: Any = 'cpu',
) -> LoadReport:
    """Load a module from a checkpoint of it, or of a model that it is a part of, and log a line.

    Args:
        module: A backbone or a whole model. It is unchanged where this raises.
        checkpoint, map_location: As in :func:`read_state_dict`.
        prefix: Of the module's names in the file, such as ``'backbone.'``. Default: the one under
            which most of them are found.
        min_matched: Share of the module's parameters and persistent buffers, 0 to 1, that the
            file must have. Default: 0.95.

    Raises:
        FileNotFoundError, UnsafeCheckpointError: As in :func:`read_state_dict`.
        ValueError: As there, and if nothing matches, several prefixes match equally well, too
            little matches, or a tensor has another shape and no ``resize_weight``.
    """
    if not 0 <= min_matched <= 1:
        raise ValueError(f'min_matched must be between 0 and 1, got {min_matched}')
    kind = type(module).__name__
    own = {k: v for k, v in module.state_dict().items() if isinstance(v, Tensor)}
    theirs = read_state_dict(checkpoint, map_location)
    counts = _count_prefixes(theirs, own)
    if not counts:
        raise ValueError(
            f'{checkpoint} has no tensor of this {kind}: its names are {_first(list(theirs))}, '
            f'those expected {_first(list(own))}'
        )
    found = counts.most_common(4)
    enough = min_matched * len(own)
    if prefix is None:
        prefix, best = found[0]
        if best >= enough and [count for _, count in found].count(best) > 1:
            raise ValueError(
                f'{checkpoint} has weights of this {kind} under several prefixes alike; choose by '
                f'prefix= one of (with the number of tensors) {dict(found)}'
            )
    elif prefix and not prefix.endswith('.'):
        prefix += '.'
    if prefix not in counts:
        raise ValueError(
            f'prefix {prefix!r} matches no tensor of this {kind} in {checkpoint}; prefixes that '
            f'do (with the number of tensors): {dict(found)}'
        )
    theirs = {k[len(prefix) :]: v for k, v in theirs.items() if k.startswith(prefix)}
    report = LoadReport(
        prefix,
        matched=[k for k in own if k in theirs],
        missing=[k for k in own if k not in theirs],
        unexpected=[k for k in theirs if k not in own],
        resized=[k for k in own if k in theirs and theirs[k].shape != own[k].shape],
    )
    before = {k: v.clone() for k, v in own.items()}
    try:
        module.load_state_dict(theirs, strict=False)  # first: it can tell another arch by its name
        if len(report.matched) < enough:
            raise ValueError(
                f'only {len(report.matched)} of the {len(own)} tensors of this {kind} are there '
                f'under prefix {prefix!r}, missing {_first(report.missing)}, unexpected '
                f'{_first(report.unexpected)}; min_matched={min_matched} can be lowered'
            )
    except Exception as error:
        for k, value in own.items():  # these share the memory of the module
            value.copy_(before[k])
        raise ValueError(f'{checkpoint} does not fit: {error}') from error
    print_log(
        f'{kind} from {checkpoint}, prefix {prefix!r}: matched {len(report.matched)} of '
        f'{len(own)} tensors, missing {_first(report.missing)}, unexpected '
        f'{_first(report.unexpected)}, resized {_first(report.resized)}',
        logger='current',
        level=logging.WARNING if report.missing else logging.INFO,
    )
    return report
