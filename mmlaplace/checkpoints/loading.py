"""Load checkpoints: run no code of a file, and report every tensor that does not fit."""

import logging
from os import PathLike
from os.path import expanduser
from pathlib import Path
from typing import Any, Dict, NamedTuple, Optional, Sequence, Tuple, Union

import torch.nn as nn
from mmengine.fileio import get_local_path
from mmengine.logging import print_log
from torch import Tensor
from torch.nn.parallel import DataParallel, DistributedDataParallel

from ._download import DownloadError, check_scheme, download_once
from ._hubs import HUB, TIMM, file_from_hub, weights_of_timm
from ._plain_load import UnsafeCheckpointError, load_plain
from .dense import DENSE, dataset_meta_of
from .fit import LoadReport, Tensors, fitted, is_in
from .names import find_prefix, first_names, plain_names
from .own_names import fitting_sentence, in_own_names, renamed
from .published import are_own, recognise
from .released import address_of, is_released, licence_of, released_name, released_place

# Where the weights lie. The first that is found is taken. mmengine's 'state_dict' comes first: it
# holds the averaged weights, if an EMAHook ran.
AVERAGED = ('state_dict_ema', 'model_ema', 'ema_state_dict', 'ema')
CONTAINERS = ('state_dict', 'model', 'module', *AVERAGED)


class Weights(NamedTuple):
    """The weights of a checkpoint.

    Attributes:
        tensors: By their names in the file.
        key: Name of their state dict in the file, or nothing if it is the file itself.
        others: Names of the file's other state dicts.
        dataset_meta: As of :func:`read_dataset_meta`.
    """

    tensors: Dict[str, Tensor]
    key: str
    others: Tuple[str, ...]
    dataset_meta: Dict[str, list] = {}

    def source(self) -> str:
        """Which state dict of the file it is, for messages, if there are several."""
        others = ' and '.join(map(repr, self.others))
        return f' ({self.key!r} of it, and not {others})' if others else ''


def read(checkpoint: Union[str, PathLike], map_location: Any, load: Any = load_plain) -> Any:
    """What ``load`` gives for a checkpoint. It raises the errors of :func:`read_state_dict`."""
    if not isinstance(checkpoint, (str, PathLike)) or not str(checkpoint):
        raise ValueError(f'a checkpoint is given by its path or address, got {checkpoint!r}')
    if is_released(checkpoint):
        name = released_name(checkpoint)
        print_log(f'{checkpoint}: licence {licence_of(name)}', 'current')
        checkpoint = released_place(checkpoint)
    if str(checkpoint).startswith(TIMM):
        weights = weights_of_timm(str(checkpoint), read_state_dict)
        return {name: value.to(map_location or 'cpu') for name, value in weights.items()}
    cached: Union[str, Path, None] = None  # the copy of a file from the web
    from_hub = str(checkpoint).startswith(HUB)
    from_web = str(checkpoint).startswith(('http://', 'https://'))
    if not (from_hub or from_web):
        check_scheme(checkpoint)
    if from_hub:
        cached = file_from_hub(str(checkpoint))
    try:
        if from_web:
            cached = download_once(str(checkpoint))
        if cached:
            content = load(cached, map_location)
        else:
            with get_local_path(expanduser(checkpoint)) as path:
                content = load(path, map_location)
    except UnsafeCheckpointError as error:
        raise UnsafeCheckpointError(
            f'{checkpoint} {error}, which could run code; only tensors and plain data are read. '
            'If you trust its source, save its weights alone: old = torch.load(path, '
            "weights_only=False), then torch.save(dict(state_dict=old['state_dict']), new), with "
            'the name that the weights have in old'
        ) from error
    except DownloadError as error:
        raise FileNotFoundError(f'{checkpoint} cannot be downloaded: {error}') from error
    except OSError as error:
        raise FileNotFoundError(
            f'{checkpoint} cannot be opened ({error}); check the path, or download it again'
        ) from error
    except ImportError as error:
        raise ImportError(f'{checkpoint}: {error}') from error
    except Exception as error:  # a broken pickle can raise anything
        copy = f', after you delete {Path(cached).resolve()}' if cached else ''
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
            digits at the end of its name, as in ``NAME-0123abcd.pth``, are checked, also those of a
            copy in the cache. The file is one
            of safetensors, or it holds a state dict, or a dict with one under ``state_dict``,
            ``model``, ``module``, ``state_dict_ema``, ``model_ema``, ``ema_state_dict`` or ``ema``.
            The first of these is taken. Where a file has the names of SOFT or CSWin, it is the
            first with averaged weights, as their authors evaluate these. ``hf://OWNER/NAME``,
            ``hf://OWNER/NAME@REVISION`` and ``hf://OWNER/NAME/FILE`` are on the Hugging Face hub.
            ``timm://NAME`` is the state dict of timm's pretrained model. ``mmlaplace://NAME`` is
            the file that the authors of a model released, such as ``mmlaplace://ravlt-tiny``.
        map_location: As in ``torch.load``, for safetensors and timm a device. Default: 'cpu'.
        key: Name of the state dict in the file. Default: None, by the rule above.

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
    return read_weights(checkpoint, map_location, key).tensors


def read_weights(
    checkpoint: Union[str, PathLike], map_location: Any = 'cpu', key: Optional[str] = None
) -> Weights:
    """As :func:`read_state_dict`, with the names of the file's state dicts."""
    content = read(checkpoint, map_location)
    weights = _weights_in(content, checkpoint, key)
    return weights._replace(dataset_meta=_dataset_meta_in(content))


def _tensors_in(weights: Any) -> Dict[str, Tensor]:
    named = weights.items() if isinstance(weights, dict) else ()
    return {k: v.detach() for k, v in named if isinstance(k, str) and isinstance(v, Tensor)}


def _weights_in(content: Any, checkpoint: Any, key: Optional[str] = None) -> Weights:
    whole = content if isinstance(content, dict) else {}
    names = CONTAINERS if key is None else (key, *CONTAINERS)
    found = {name: _tensors_in(whole.get(name)) for name in names}
    found = {name: tensors for name, tensors in found.items() if tensors}
    if key is None and not found and (tensors := _tensors_in(whole)):
        return Weights(tensors, '', ())
    if not found or key not in (None, *found):
        expected = f'one of {CONTAINERS}' if key is None else repr(key)
        raise ValueError(
            f'{checkpoint} has no weights: expected a dict of tensors, or one under {expected}, '
            f'got {list(whole) if whole else type(content).__name__}'
        )
    name = next(iter(found))
    if key is None and (table := recognise(plain_names(found[name]))) and table.averaged:
        name = next((other for other in found if other in AVERAGED), name)
    return Weights(found[name], name, tuple(other for other in found if other != name))


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
    return _dataset_meta_in(read(checkpoint, 'cpu'))


def read_for_mmengine(checkpoint: str, map_location: Any = 'cpu') -> Dict[str, Any]:
    """The weights, and the classes and colours beside them, in a dict as mmengine writes it.

    If a released detector or segmentor has none, they are those of the data set in its config.
    """
    content = read(checkpoint, map_location)
    meta = dict(dataset_meta=_dataset_meta_in(content))
    tensors = _weights_in(content, checkpoint).tensors
    if is_released(checkpoint):
        place, count = released_place(checkpoint), len(tensors)
        tensors = in_own_names(tensors, {}, checkpoint)
        if not are_own(tensors):
            raise ValueError(
                f'{checkpoint}: the names in {place} are {first_names(list(tensors))}, those of no '
                'released model; load the file by its address if that is meant'
            )
        print_log(f'{checkpoint}: {count} tensors of {place} became {len(tensors)}', 'current')
        name = released_name(checkpoint)
        if name in DENSE:
            meta = dict(dataset_meta=dataset_meta_of(name, meta['dataset_meta']))
    return dict(state_dict=tensors, meta=meta)


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


def load_weights(
    module: nn.Module,
    checkpoint: Union[str, PathLike],
    prefix: Optional[str] = None,
    min_matched: Optional[float] = None,
    map_location: Any = 'cpu',
    skip: Sequence[str] = (),
    key: Optional[str] = None,
    adapt_input_conv: bool = False,
) -> LoadReport:
    """Load a module from its own checkpoint or that of a whole model, and log a line about it.

    Every parameter and persistent buffer of the module must be in the file, with finite values and
    the same shape. In the module's layers, the file may have no further tensors. These may differ:

    - ``out_indices``: Norms of stages may be missing, except that of the checkpoint's last stage.
      Norms and stages that the backbone lacks are left out, and so is the class token, if the
      backbone returns several maps and has none.
    - The image size: Position embeddings and similar tensors are resized. Tables of windows are
      resized only where a window shrinks to a small map, or if the module is built with
      ``resize_windows``.
    - The names: A checkpoint of a model that ``tools/model_converters/convert.py --list`` shows is
      converted from the names of its authors or of timm.
    - The classes: Of a checkpoint ``mmlaplace://NAME``, a head of another number of classes is left
      out, as in timm.
    - The model: A classifier's checkpoint, with ``backbone`` and ``head``, loads into a detector or
      segmentor. Everything but the backbone may then be missing.
      A detector or segmentor of the authors is converted too, and its backbone fills a backbone.

    Args:
        module: A backbone or a whole model, also wrapped by DistributedDataParallel, DataParallel
            or torch.compile. If this function raises, the module is unchanged.
        checkpoint, map_location, key: As in :func:`read_state_dict`.
        prefix: What comes before the module's names in the file, such as ``'backbone.'``. Default:
            the one under which most of them are found.
        min_matched: Share of the module's parameters and persistent buffers, 0 to 1, that the
            file must have. With 1, none may be missing. With less than 1, any may be missing up to
            that share, and the file may have others. Default: None, the rule above.
        skip: Parts of the module that keep their values, by their names in it. ``('norm3',)`` of a
            backbone leaves the norm of the last map new, as many authors' detectors do. Otherwise
            it is the last norm of the classifier. The report leaves them out.
            Default: ().
        adapt_input_conv: Whether weights for images of other channels are adapted, as in timm. For
            one channel, the weights of the channels are summed. For n channels, the c channels are
            repeated in turn until there are n, and multiplied by c / n. Default: False.

    Raises:
        FileNotFoundError, UnsafeCheckpointError: As in :func:`read_state_dict`.
        ValueError: As there. Also if nothing matches, several prefixes match equally well, too
            little matches, a value is NaN or infinite, also in the module's dtype, values are
            integers where the module has floating point, a tensor has another shape and no
            ``resize_weight``, the module is on the meta device, or ``skip`` names no part of it.
    """
    if min_matched is not None and not 0 <= min_matched <= 1:
        raise ValueError(f'min_matched must be between 0 and 1, got {min_matched}')
    module = _unwrapped(module)
    kind = type(module).__name__
    tensors = _own_tensors(module, skip)
    released = is_released(checkpoint)
    if released:
        checkpoint = address_of(released_name(checkpoint))
    weights = read_weights(checkpoint, map_location, key)
    tensors = renamed(tensors, weights.tensors, module, checkpoint, min_matched)
    origin = remark = ''
    if released:
        origin = f' ({released_place(checkpoint)})'
        tensors, remark = _without_other_head(tensors, module)
    tensors, alike = _selected(tensors, prefix, f'this {kind}', checkpoint)
    try:
        state_dict, report = fitted(tensors, module, min_matched, adapt_input_conv)
    except ValueError as error:
        others = fitting_sentence(tensors.given)
        raise ValueError(f'{checkpoint} does not fit: {error}{others}') from None
    if alike:
        raise ValueError(
            f'{checkpoint} has weights of this {kind} under several prefixes alike; choose by '
            f'prefix= one of (with the number of tensors) {alike}'
        )
    try:
        _load_or_restore(module, tensors, state_dict)
    except Exception as error:
        raise ValueError(f'{checkpoint} does not fit: {error}') from error
    print_log(
        f'{kind} from {checkpoint}{origin}{weights.source()}, {report.sentence(len(tensors.own))}'
        f'{remark}',
        logger='current',
        level=logging.WARNING if report.missing else logging.INFO,
    )
    return report


def _own_tensors(module: nn.Module, skip: Sequence[str]) -> Tensors:
    """The tensors of a module without those of skipped parts."""
    kind = type(module).__name__
    state = {k: v for k, v in module.state_dict().items() if isinstance(v, Tensor)}
    empty = [name for name, value in state.items() if value.is_meta]
    if empty:
        raise ValueError(
            f'{first_names(empty)} of this {kind} are on the meta device, where nothing can be '
            "loaded; call its to_empty(device='cpu') first"
        )
    in_module = plain_names(state)
    unknown = [part for part in skip if not any(is_in(name, [part]) for name in in_module)]
    if isinstance(skip, str) or unknown:
        raise ValueError(
            f"skip must be a list of parts of this {kind}, such as ['norm3'], got {skip!r}; its "
            f'parts are {[name for name, _ in module.named_children()]}'
        )
    own = {name: state[raw] for name, raw in in_module.items()}
    return Tensors(own, in_module).without(skip)


def _without_other_head(tensors: Tensors, module: nn.Module) -> Tuple[Tensors, str]:
    """Without the head, if that of a released classifier has other classes, and a remark on it."""
    weight, own = (named.get('head.fc.weight') for named in (tensors.given, tensors.own))
    classes = 0 if own is None else len(own)
    if weight is None or len(weight) == classes or not hasattr(module, 'head'):
        return tensors, ''
    remark = f', head of {len(weight)} classes left out, as the model has {classes}'
    return tensors.without(['head']), remark


def _selected(
    tensors: Tensors, prefix: Optional[str], what: str, checkpoint: Union[str, PathLike]
) -> Tuple[Tensors, Dict[str, int]]:
    """With the tensors under a prefix alone, and the counts of prefixes that match alike."""
    prefix, alike = find_prefix(tensors.given, tensors.own, prefix, what, checkpoint)
    given = {k[len(prefix) :]: v for k, v in tensors.given.items() if k.startswith(prefix)}
    return tensors._replace(given=given, prefix=prefix), alike


def _load_or_restore(module: nn.Module, tensors: Tensors, state_dict: Dict[str, Tensor]) -> None:
    """Load, and on an error restore the module."""
    before = {name: value.clone() for name, value in tensors.own.items()}
    try:
        module.load_state_dict(state_dict, strict=False)
    except Exception:
        for name, value in tensors.own.items():  # these share the memory of the module
            value.copy_(before[name])
        raise
