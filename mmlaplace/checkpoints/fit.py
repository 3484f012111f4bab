"""What does not fit, of the names, shapes and values of a checkpoint, and what to do about it."""

import math
import re
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Set, Tuple

import torch
import torch.nn as nn
from torch import Tensor

from .names import first_names, plain_names
from .resizing import fit_channels, resize_weights

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
HEAD = re.compile(r'\w*head\.')
# Options that the shapes of single tensors follow. Those of all other tensors follow the arch.
OPTIONS = {
    r'attn\.(.*\.)?landmarks\.conv\.weight$': 'num_landmarks',
    r'attn\.(.*\.)?(key_sums|value_sums)$': 'num_landmarks',
    r'attn\.(.*\.)?(gather|spread)_(map|rows|columns|prefix)$': 'num_landmarks',
    r'attn\.(.*\.)?projection_matrix$': 'num_features',
    r'attn\.(.*\.)?(anchors|directions|means)$': 'num_anchors or num_bits',
    r'attn\.(.*\.)?mixture$': 'grid',
    r'attn\.(.*\.)?sr\.projection\.weight$': 'sr_ratio',
    r'attn\.(.*\.)?(lepe|second_lepe)\.conv\.weight$': 'lepe_kernel or second_lepe_kernel',
}


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

    def sentence(self, wanted: int) -> str:
        """The report in a line of the log, for a module with so many tensors."""
        return (
            f'prefix {self.prefix!r}: matched {len(self.matched)} of {wanted} tensors, missing '
            f'{first_names(self.missing)}, unexpected {first_names(self.unexpected)}, resized '
            f'{first_names(self.resized)}'
        )


class Tensors(NamedTuple):
    """The tensors of a module and those of a checkpoint, by names without ``_orig_mod``.

    Attributes:
        own: The module's that the checkpoint is to fill. They share the memory of the module.
        in_module: The names in the module's state dict, by the names here, of all its tensors.
        skip: Parts of the module that keep their values.
        given: The checkpoint's.
        prefix: What came before the module's names in the checkpoint.
    """

    own: Dict[str, Tensor]
    in_module: Dict[str, str]
    skip: Tuple[str, ...] = ()
    given: Dict[str, Tensor] = {}
    prefix: str = ''

    def without(self, parts: Iterable[str]) -> 'Tensors':
        """With further parts of the module that keep their values."""
        skip = (*self.skip, *parts)
        own = {name: value for name, value in self.own.items() if not is_in(name, skip)}
        return self._replace(own=own, skip=skip)

    def report(self) -> LoadReport:
        """How the names and shapes match."""
        own, given = self.own, self.given
        return LoadReport(
            self.prefix,
            matched=[k for k in own if k in given],
            missing=[k for k in own if k not in given],
            unexpected=[k for k in given if k not in own and not is_in(k, self.skip)],
            resized=[k for k in own if k in given and given[k].shape != own[k].shape],
        )


def is_in(name: str, parts: Iterable[str]) -> bool:
    """Whether a tensor is one of these parts of a module, or inside of one."""
    return any(name == part or name.startswith(f'{part}.') for part in parts)


def fitted(
    tensors: Tensors, module: nn.Module, min_matched: Optional[float], adapt_input_conv: bool
) -> Tuple[Dict[str, Tensor], LoadReport]:
    """The tensors of a checkpoint as a state dict that a module can load, and how they match.

    Args:
        tensors: Those of the module and of the checkpoint.
        module: The module.
        min_matched, adapt_input_conv: As in :func:`load_weights`.

    Raises:
        ValueError: For names, shapes and values that :func:`load_weights` refuses.
    """
    own, in_module, report = tensors.own, tensors.in_module, tensors.report()
    for name in report.resized:
        check_stored(name, tensors.given[name])
    check_names(module, own, tensors.given, report, min_matched)
    # PyTorch computes little in floats of 8 bits.
    values = {k: v.float() if v.dtype in FLOAT8 else v for k, v in tensors.given.items()}
    check_values(own, values, report.matched)
    values = fit_channels(own, values, adapt_input_conv)
    state_dict = {in_module.get(k, k): v for k, v in values.items() if not is_in(k, tensors.skip)}
    resize_weights(module, state_dict)
    shapes = {
        name: (tuple(state_dict[in_module[name]].shape), tuple(own[name].shape))
        for name in report.resized
    }
    if reason := other_arch(shapes, type(module).__name__):
        raise ValueError(reason)
    return state_dict, report


def optional_outputs(module: nn.Module, stored: Iterable[str]) -> Set[str]:
    """Names in backbones that may be missing or unexpected, as a checkpoint is for other maps.

    :meth:`PyramidBackbone.other_outputs` gives them.
    """
    names: Set[str] = set()
    for path, part in module.named_modules():
        if hasattr(part, 'other_outputs'):
            (prefix,) = plain_names([f'{path}.' if path else ''])
            inside = [name[len(prefix) :] for name in stored if name.startswith(prefix)]
            names.update(prefix + name for name in part.other_outputs(inside))
    return names


def _may_differ(module: nn.Module, own: Iterable[str], stored: Iterable[str]) -> Set[str]:
    """Names that may be missing or unexpected, because the checkpoint is for another task.

    If a classifier's checkpoint is loaded into a detector or segmentor, all names outside the
    backbone are among them.
    """
    names = optional_outputs(module, stored)
    parts = {name.split('.')[0] for name in own}
    stored_parts = {name.split('.')[0] for name in stored}
    classifier = stored_parts - {'neck'} == {'backbone', 'head'}
    if classifier and 'backbone' in parts and 'head' not in parts:
        names.update(name for name in (*own, *stored) if not name.startswith('backbone.'))
    return names


def check_names(
    module: nn.Module,
    own: Dict[str, Tensor],
    stored: Dict[str, Tensor],
    report: LoadReport,
    min_matched: Optional[float],
) -> None:
    """Raise a ValueError for names that :func:`load_weights` refuses before it loads."""
    kind = type(module).__name__
    allowed = _may_differ(module, own, stored)
    share = len(report.matched) / len(own)
    hint = f'if that is meant, min_matched={math.floor(100 * min(share, 0.99)) / 100} takes it'
    missing = [k for k in report.missing if min_matched == 1 or k not in allowed]
    enough = not missing if min_matched in (None, 1) else share >= min_matched
    if not enough:
        largest = _largest_part(own)
        if not any(k.startswith(largest) for k in report.matched):
            count = sum(k.startswith(largest) for k in own)
            inside = [k for k in stored if k.startswith(largest)]
            hint = (
                f'nothing of the {count} tensors of its {largest[:-1]} is there, where the file '
                f'has {first_names(inside)}; take a checkpoint with the names of this {kind}'
            )
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


def _largest_part(own: Iterable[str]) -> str:
    """The start of the names of the part with most tensors, such as ``'backbone.'``."""
    counts: Dict[str, int] = {}
    for name in own:
        part = f'{name.partition(".")[0]}.'
        counts[part] = counts.get(part, 0) + 1
    return max(counts, key=counts.__getitem__)


def other_arch(shapes: Dict[str, Tuple[tuple, tuple]], kind: str) -> str:
    """A sentence on tensors whose shapes in the file and in the module differ, if there are any.

    Args:
        shapes: By its name, the shape of a tensor in the file and in the module.
        kind: The name of the module's class.
    """
    other = [name for name, (given, own) in shapes.items() if given != own]
    if not other:
        return ''
    given, own = shapes[other[0]]
    shown = f'its {other[0]} has shape {given}, that of this {kind} {own}'
    if all(name.startswith('head.') for name in other) and given and own and given[0] != own[0]:
        classes = given[0]
        return (
            f'its head has {classes} classes, and that of this {kind} {own[0]}; build the model '
            f'with num_classes={classes}, or load its backbone alone, '
            'load_weights(model.backbone, …)'
        )
    if all(HEAD.match(name) for name in other):
        return (
            f'its heads are others: {shown}; build the model with the num_classes and the heads of '
            'the checkpoint, or load its backbone alone, load_weights(model.backbone, …)'
        )
    options = [_option_of(name) for name in other]
    if all(options):
        wanted = ' and '.join(dict.fromkeys(options))
        return f'{shown}; build the model with the {wanted} that the checkpoint was trained with'
    return f'this checkpoint is for another arch: {shown}; in all, {first_names(other)} differ'


def _option_of(name: str) -> str:
    """The option that the shape of a tensor follows, or nothing if it is the arch."""
    for pattern, option in OPTIONS.items():
        if re.search(pattern, name):
            return option
    return ''


def check_values(own: Dict[str, Tensor], stored: Dict[str, Tensor], names: List[str]) -> None:
    """Raise a ValueError for values that the module cannot hold as they are.

    These are numbers of another kind, such as the codes of a quantized checkpoint, values that are
    NaN or infinite, and those that become so in the dtype of the module.
    """
    for name in names:
        given, wanted = stored[name].dtype, own[name].dtype
        # Counters may be floats, of an average of a whole state dict.
        if given != wanted and not given.is_floating_point and _kind(given) != _kind(wanted):
            raise ValueError(
                f'its {name} has values of {given}, and the module holds {wanted}; save the '
                f'checkpoint with values of {wanted}'
            )
    floats = [k for k in names if stored[k].is_floating_point()]
    check_finite({k: stored[k] for k in floats})
    broken = [k for k in floats if not stored[k].to(own[k].dtype).isfinite().all()]
    if broken:
        largest = stored[broken[0]].abs().max().item()
        dtype = own[broken[0]].dtype
        raise ValueError(
            f'values of {first_names(broken)}, up to {largest:.3g}, are too large for {dtype}; '
            'load it into a model of float32 or bfloat16'
        )


def check_finite(weights: Mapping[str, Tensor]) -> None:
    """Raise a ValueError for values that are NaN or infinite. It names their tensors."""
    broken = [k for k, v in weights.items() if v.is_floating_point() and not v.isfinite().all()]
    if broken:
        raise ValueError(
            f'NaN or infinite values in {first_names(broken)}; take a checkpoint from before them'
        )


def _kind(dtype: torch.dtype) -> str:
    if dtype.is_complex:
        return 'complex'
    if dtype == torch.bool:
        return 'bool'
    return 'float' if dtype.is_floating_point else 'int'


def check_stored(name: str, value: Tensor) -> None:
    """Raise a ValueError for a tensor with more elements than the file has values for it.

    A small file could name a tensor of any size, whose copy would fill the memory.
    """
    stored = value.untyped_storage().nbytes() // value.element_size()
    if value.numel() > stored and not value.is_meta:
        raise ValueError(
            f'its {name} has shape {tuple(value.shape)}, and the file only {stored} values for it; '
            'save its contiguous()'
        )
