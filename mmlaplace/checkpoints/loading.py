"""Load checkpoints: run no code of a file, and report every tensor that does not fit."""

import logging
import math
from os import PathLike
from os.path import expanduser
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple, Union

import torch.nn as nn
from mmengine.fileio import get_local_path
from mmengine.logging import print_log
from torch import Tensor
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ._download import check_scheme, download_once
from ._hubs import HUB, TIMM, file_from_hub, weights_of_timm
from ._plain_load import UnsafeCheckpointError, load_plain
from .families import fitting_sentence, in_our_names
from .names import find_prefix, first_names, plain_names, rename_old_tensors

# Where the weights lie. The first that is found is taken. mmengine's 'state_dict' comes first: it
# holds the averaged weights, if an EMAHook ran.
CONTAINERS = (
    'state_dict', 'model', 'module', 'state_dict_ema', 'model_ema', 'ema_state_dict', 'ema'
)  # fmt: skip


class LoadReport(NamedTuple):
    """How the tensors of a file and of a module matched, by the names in the module.

    The names are without the prefixes that DistributedDataParallel and torch.compile add.

    Attributes:
        prefix: What comes before the module's names in the file, such as ``'backbone.'``.
        matched: Parameters and persistent buffers that were loaded.
        missing: Those that the file lacks. They keep the module's values.
        unexpected: Tensors that the file has under the prefix and the module lacks.
        resized: Those of ``matched`` that were resized to the module's own shape.
    """

    prefix: str
    matched: List[str]
    missing: List[str]
    unexpected: List[str]
    resized: List[str]


def _read(checkpoint: Union[str, PathLike], map_location: Any) -> Any:
    """All plain data of a checkpoint. It raises the errors of :func:`read_state_dict`."""
    if not isinstance(checkpoint, (str, PathLike)) or not str(checkpoint):
        raise ValueError(f'a checkpoint is given by its path or address, got {checkpoint!r}')
    if str(checkpoint).startswith(TIMM):
        weights = weights_of_timm(str(checkpoint), read_state_dict)
        return {name: value.to(map_location or 'cpu') for name, value in weights.items()}
    from_hub = file_from_hub(str(checkpoint)) if str(checkpoint).startswith(HUB) else None
    from_web = str(checkpoint).startswith(('http://', 'https://'))
    if not (from_hub or from_web):
        check_scheme(checkpoint)
    try:
        if from_hub is not None:
            content = load_plain(from_hub, map_location)
        elif from_web:
            content = load_plain(download_once(str(checkpoint)), map_location)
        else:
            with get_local_path(expanduser(checkpoint)) as path:
                content = load_plain(path, map_location)
    except UnsafeCheckpointError as error:
        raise UnsafeCheckpointError(
            f'{checkpoint} {error}, which could run code; only tensors and plain data are read. '
            'If you trust its source, save its weights alone: old = torch.load(path, '
            "weights_only=False), then torch.save(dict(state_dict=old['state_dict']), new), with "
            'the name that the weights have in old'
        ) from error
    except OSError as error:
        raise FileNotFoundError(
            f'{checkpoint} cannot be opened ({error}); check the path, or download it again'
        ) from error
    except ImportError as error:
        raise ImportError(f'{checkpoint}: {error}') from error
    except Exception as error:  # a broken pickle can raise anything
        copy = f', after you delete {Path(from_hub).resolve()}' if from_hub else ''
        raise ValueError(
            f'{checkpoint} cannot be read as a checkpoint ({type(error).__name__}: {error}); if it '
            'is cut off or is something else, such as an error page, download or copy it again'
            + copy
        ) from error
    return content


def read_state_dict(
    checkpoint: Union[str, PathLike], map_location: Any = 'cpu', key: Optional[str] = None
) -> Dict[str, Tensor]:
    """Read the weights of a checkpoint without running code from it.

    Args:
        checkpoint: Local path, or an address that mmengine.fileio opens, or one that begins with
            ``https://``. Such a file is downloaded once, into the cache of torch.hub. SHA-256
            digits at the end of its name, as in ``NAME-0123abcd.pth``, are checked. The file is one
            of safetensors, or it holds a state dict, or a dict with one under ``state_dict``,
            ``model``, ``module``, ``state_dict_ema``, ``model_ema``, ``ema_state_dict`` or ``ema``.
            The first of these is taken. ``hf://OWNER/NAME``, ``hf://OWNER/NAME@REVISION`` and
            ``hf://OWNER/NAME/FILE`` are on the Hugging Face hub. ``timm://NAME`` is the state dict
            of timm's pretrained model.
        map_location: As in ``torch.load``, for safetensors and timm a device. Default: 'cpu'.
        key: Name of the state dict in the file. Default: None, the first of the names above.

    Returns:
        Tensors by their names in the file, detached. Other values are left out.

    Raises:
        FileNotFoundError: If the file cannot be opened or downloaded.
        ImportError: If safetensors, huggingface_hub or timm is needed and not installed.
        UnsafeCheckpointError: If the file names anything but tensors and the plain data of a
            training run. Nothing of it is run. It is a ``pickle.UnpicklingError``.
        ValueError: If the file is cut off, is no checkpoint, has no weights, or has another
            SHA-256. Also if ``checkpoint`` is neither a path nor an address.
    """
    return _weights_in(_read(checkpoint, map_location), checkpoint, key)


def _weights_in(content: Any, checkpoint: Any, key: Optional[str] = None) -> Dict[str, Tensor]:
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


def read_dataset_meta(checkpoint: Union[str, PathLike]) -> Dict[str, list]:
    """Class names and colours that mmengine's Runner wrote beside the weights.

    Args:
        checkpoint: As in :func:`read_state_dict`.

    Returns:
        ``classes``, a list of names, and ``palette``, a list of colours ``(red, green, blue)`` from
        0 to 255, as the toolboxes take them. An entry that is missing in the file, or has another
        form, is left out.

    Raises:
        FileNotFoundError, UnsafeCheckpointError, ValueError: As in :func:`read_state_dict`.
    """
    return _dataset_meta_in(_read(checkpoint, 'cpu'))


def read_for_mmengine(checkpoint: str, map_location: Any = 'cpu') -> Dict[str, Any]:
    """The weights, and the classes and colours beside them, in a dict as mmengine writes it."""
    content = _read(checkpoint, map_location)
    meta = dict(dataset_meta=_dataset_meta_in(content))
    return dict(state_dict=_weights_in(content, checkpoint), meta=meta)


def _dataset_meta_in(content: Any) -> Dict[str, list]:
    meta = content.get('meta') if isinstance(content, dict) else None
    meta = meta.get('dataset_meta', meta) if isinstance(meta, dict) else None
    found: Dict[str, list] = {}
    for name, value in meta.items() if isinstance(meta, dict) else ():
        key = str(name).lower()  # older versions have them in capitals, beside the rest
        if key == 'classes' and isinstance(value, (list, tuple)):
            found[key] = [str(one) for one in value]
        if key == 'palette' and isinstance(value, (list, tuple)):
            found[key] = [tuple(colour) for colour in value if isinstance(colour, (list, tuple))]
    return {key: value for key, value in found.items() if value}


def _unwrapped(module: Any) -> nn.Module:
    """The module inside of the wrappers of torch.compile and data parallel, in any order."""
    while True:
        if isinstance(module, (DataParallel, DistributedDataParallel)):
            module = module.module
        elif hasattr(module, '_orig_mod'):
            module = module._orig_mod
        else:
            return module


def resize_weights(module: nn.Module, state_dict: Dict[str, Tensor], prefix: str = '') -> None:
    """Resize tensors to the module's shapes, in place, where its parts have a method for it.

    A part with a tensor whose shape depends on the image size has ``resize_weight(name, value)``.
    """
    for path, part in module.named_modules():
        if hasattr(part, 'resize_weight'):
            tensors = dict(part.named_parameters(recurse=False))
            tensors.update(part.named_buffers(recurse=False))
            for name, own in tensors.items():
                key = f'{prefix}{path}.{name}' if path else f'{prefix}{name}'
                if key in state_dict and state_dict[key].shape != own.shape:
                    state_dict[key] = part.resize_weight(name, state_dict[key])


def _may_differ(module: nn.Module, own: Iterable[str], theirs: Iterable[str]) -> Set[str]:
    """Names that may be missing or unexpected, because the checkpoint is for another task.

    For a backbone, :meth:`PyramidBackbone.other_outputs` gives these names. If a classifier's
    checkpoint is loaded into a detector or segmentor, all names outside the backbone are included.
    """
    names: Set[str] = set()
    for path, part in module.named_modules():
        if hasattr(part, 'other_outputs'):
            (prefix,) = plain_names([f'{path}.' if path else ''])
            inside = [name[len(prefix) :] for name in theirs if name.startswith(prefix)]
            names.update(prefix + name for name in part.other_outputs(inside))
    parts, their_parts = ({name.split('.')[0] for name in n} for n in (own, theirs))
    classifier = their_parts - {'neck'} == {'backbone', 'head'}
    if classifier and 'backbone' in parts and 'head' not in parts:
        names.update(name for name in (*own, *theirs) if not name.startswith('backbone.'))
    return names


def _is_in(name: str, parts: Sequence[str]) -> bool:
    """Whether a tensor is one of these parts, or inside of one."""
    return any(name == part or name.startswith(f'{part}.') for part in parts)


def load_weights(
    module: nn.Module,
    checkpoint: Union[str, PathLike],
    prefix: Optional[str] = None,
    min_matched: Optional[float] = None,
    map_location: Any = 'cpu',
    skip: Sequence[str] = (),
) -> LoadReport:
    """Load a module from its own checkpoint or that of a whole model, and log a line about it.

    Every parameter and persistent buffer of the module must be in the file, with finite values and
    the same shape. In the module's layers, the file may have no further tensors. These may differ:

    - ``out_indices``: Norms of stages may be missing, except that of the checkpoint's last stage.
      Norms and stages that the backbone lacks are left out, and so is the class token, if the
      backbone returns several maps and has none.
    - The image size: Position embeddings and similar tensors are resized.
    - The names: A checkpoint of a family that ``tools/model_converters/convert.py --list`` shows is
      converted from the names of its authors or of timm.
    - The model: A classifier's checkpoint, with ``backbone`` and ``head``, loads into a detector or
      segmentor. Everything but the backbone may then be missing.

    Args:
        module: A backbone or a whole model, also wrapped by DistributedDataParallel, DataParallel
            or torch.compile. If this function raises, the module is unchanged.
        checkpoint, map_location: As in :func:`read_state_dict`.
        prefix: What comes before the module's names in the file, such as ``'backbone.'``. Default:
            the one under which most of them are found.
        min_matched: Share of the module's parameters and persistent buffers, 0 to 1, that the
            file must have. With 1, none may be missing. With less than 1, any may be missing up to
            that share, and the file may have others. Default: None, the rule above.
        skip: Parts of the module that keep their values, by their names in it. ``('norm3',)`` of a
            backbone leaves the norm of the last map new, as many authors' detectors do. Otherwise
            it is the last norm of the classifier. The report leaves them out.
            Default: ().

    Raises:
        FileNotFoundError, UnsafeCheckpointError: As in :func:`read_state_dict`.
        ValueError: As there. Also if nothing matches, several prefixes match equally well, too
            little matches, a value is NaN or infinite, a tensor has another shape and no
            ``resize_weight``, the module is on the meta device, or ``skip`` names no part of it.
    """
    if min_matched is not None and not 0 <= min_matched <= 1:
        raise ValueError(f'min_matched must be between 0 and 1, got {min_matched}')
    module = _unwrapped(module)
    kind = type(module).__name__
    state = {k: v for k, v in module.state_dict().items() if isinstance(v, Tensor)}
    empty = [k for k, v in state.items() if v.is_meta]
    if empty:
        raise ValueError(
            f'{first_names(empty)} of this {kind} are on the meta device, where nothing can be '
            "loaded; call its to_empty(device='cpu') first"
        )
    raw_names = plain_names(state)
    others = [part for part in skip if not any(_is_in(k, [part]) for k in raw_names)]
    if isinstance(skip, str) or others:
        raise ValueError(
            f"skip must be a list of parts of this {kind}, such as ['norm3'], got {skip!r}; its "
            f'parts are {[name for name, _ in module.named_children()]}'
        )
    own = {k: state[raw] for k, raw in raw_names.items() if not _is_in(k, skip)}
    theirs = read_state_dict(checkpoint, map_location)
    theirs = {k: theirs[raw] for k, raw in plain_names(theirs).items()}
    theirs = in_our_names(theirs, own, checkpoint)
    rename_old_tensors(theirs, own)
    prefix, found, alike = find_prefix(theirs, own, prefix, f'this {kind}', checkpoint)
    theirs = {k[len(prefix) :]: v for k, v in theirs.items() if k.startswith(prefix)}
    report = LoadReport(
        prefix,
        matched=[k for k in own if k in theirs],
        missing=[k for k in own if k not in theirs],
        unexpected=[k for k in theirs if k not in own and not _is_in(k, skip)],
        resized=[k for k in own if k in theirs and theirs[k].shape != own[k].shape],
    )
    floats = [k for k in report.matched if theirs[k].is_floating_point()]
    broken = [k for k in floats if not theirs[k].isfinite().all()]
    if broken:
        raise ValueError(
            f'{checkpoint} does not fit: NaN or infinite values in {first_names(broken)}; take a '
            'checkpoint from before them'
        )
    try:
        _check_names(module, own, theirs, report, min_matched)
    except ValueError as error:
        raise ValueError(f'{checkpoint} does not fit: {error}{fitting_sentence(theirs)}') from None
    if alike:
        equal = {name: count for name, count in found if name in (prefix, *alike)}
        raise ValueError(
            f'{checkpoint} has weights of this {kind} under several prefixes alike; choose by '
            f'prefix= one of (with the number of tensors) {equal}'
        )
    given = theirs  # before it is resized
    theirs = {raw_names.get(k, k): v for k, v in theirs.items() if not _is_in(k, skip)}
    try:
        _load_or_restore(module, own, theirs)
    except Exception as error:
        shapes = {k: (tuple(theirs[raw_names[k]].shape), tuple(own[k].shape)) for k in own
                  if k in report.resized}  # fmt: skip
        reason = _other_arch(shapes, kind) or error
        raise ValueError(f'{checkpoint} does not fit: {reason}{fitting_sentence(given)}') from error
    print_log(
        f'{kind} from {checkpoint}, prefix {prefix!r}: matched {len(report.matched)} of '
        f'{len(own)} tensors, missing {first_names(report.missing)}, unexpected '
        f'{first_names(report.unexpected)}, resized {first_names(report.resized)}',
        logger='current',
        level=logging.WARNING if report.missing else logging.INFO,
    )
    return report


def _other_arch(shapes: Dict[str, Tuple[tuple, tuple]], kind: str) -> str:
    """A sentence on tensors whose shapes in the file and in the module differ, if there are any."""
    other = [name for name, (given, own) in shapes.items() if given != own]
    if not other:
        return ''
    given, own = shapes[other[0]]
    if given[0] != own[0] and all(name.startswith('head.') for name in other):
        return (
            f'its head has {given[0]} classes, and that of this {kind} {own[0]}; build the model '
            f'with {given[0]}, or load its backbone alone, load_weights(model.backbone, …)'
        )
    return (
        f'this checkpoint is for another arch: its {other[0]} has shape {given}, that of this '
        f'{kind} {own}; in all, {first_names(other)} differ'
    )


def _load_or_restore(module: nn.Module, own: Dict[str, Tensor], theirs: Dict[str, Tensor]) -> None:
    """Load, and resize tensors that depend on the image size. On an error, restore the module."""
    before = {k: v.clone() for k, v in own.items()}
    try:
        resize_weights(module, theirs)
        module.load_state_dict(theirs, strict=False)
    except Exception:
        for k, value in own.items():  # these share the memory of the module
            value.copy_(before[k])
        raise


def _check_names(
    module: nn.Module,
    own: Dict[str, Tensor],
    theirs: Dict[str, Tensor],
    report: LoadReport,
    min_matched: Optional[float],
) -> None:
    """Raise a ValueError for names that :func:`load_weights` refuses before it loads."""
    kind = type(module).__name__
    allowed = _may_differ(module, own, theirs)
    share = len(report.matched) / len(own)
    hint = f'if that is meant, min_matched={math.floor(100 * min(share, 0.99)) / 100} takes it'
    missing = [k for k in report.missing if min_matched == 1 or k not in allowed]
    enough = not missing if min_matched in (None, 1) else share >= min_matched
    if not enough:
        raise ValueError(
            f'only {len(report.matched)} of the {len(own)} tensors of this {kind} are there '
            f'under prefix {report.prefix!r}, missing {first_names(missing)}, unexpected '
            f'{first_names(report.unexpected)}; {hint}'
        )
    parts = {name for name, _ in module.named_children()}
    unexpected = [k for k in report.unexpected if k.split('.')[0] in parts and k not in allowed]
    if unexpected and min_matched in (None, 1):
        raise ValueError(
            f'it has {first_names(unexpected)} in layers of this {kind} that have no such tensor; '
            f'build it with the options of the checkpoint, or, {hint}'
        )
