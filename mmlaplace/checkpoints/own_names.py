"""The tensors of a checkpoint by the names of mmlaplace, converted if these are the authors'."""

from typing import Any, Dict, Mapping, Optional

import torch.nn as nn
from torch import Tensor

from . import dense
from .fit import Tensors
from .names import count_prefixes, first_names, plain_names
from .published import PREFIX, describe, fitting, other_options, recognise


def fitting_sentence(weights: Mapping[str, Tensor]) -> str:
    """The end of a message on weights, of a backbone or a whole model: the models that they fit.

    It is empty if there is none.
    """
    if dense.kind_of(weights) not in ('', 'classifier'):
        names = [dense.DENSE[name].config or name for name in dense.fitting_dense(weights)]
        return f'; it fits the config {" or ".join(dict.fromkeys(names))}' if names else ''
    whole = any(name.startswith(PREFIX) for name in weights)
    fit = fitting(weights if whole else {PREFIX + k: v for k, v in weights.items()})
    return f'; it fits {" or ".join(map(describe, fit))}' if fit else ''


def in_own_names(
    given: Dict[str, Tensor], own: Mapping[str, Tensor], checkpoint: Any
) -> Dict[str, Tensor]:
    """The tensors of a checkpoint by the names of mmlaplace, converted if these are the authors'.

    Args:
        given: The tensors.
        own: The tensors of the module that they are for. If most of their names are in the
            checkpoint, nothing is converted.
        checkpoint: Its path or address, for errors.

    Raises:
        ValueError: If the names are the authors', and a tensor has no place, or as many positions
            as the module's map of another aspect.
    """
    plain = {name.removeprefix('module.'): value for name, value in given.items()}
    whole = dense.table_of(plain)
    table = whole or recognise(plain)
    if table is None:
        return given
    stored_names, own_names = list(given), list(own)
    if whole is not None:  # necks and heads have the same names in any case
        stored_names = [k for k in given if k.removeprefix('module.').startswith(PREFIX)]
        own_names = [name for name in own if name.startswith(PREFIX)] or own_names
    counts = count_prefixes(stored_names, own_names).most_common(1)
    if counts and 2 * counts[0][1] > len(own_names):
        return given
    try:
        weights = (dense.convert(plain, whole) if whole else table.convert(plain)).weights
        _check_aspects(weights, own)
    except ValueError as error:
        raise ValueError(f'{checkpoint} cannot be converted: {error}') from error
    return weights


def renamed(
    tensors: Tensors,
    stored: Mapping[str, Tensor],
    module: nn.Module,
    checkpoint: Any,
    min_matched: Optional[float],
) -> Tensors:
    """With the tensors of a checkpoint, by the names of mmlaplace.

    Args:
        tensors: Those of the module.
        stored: Those of the checkpoint, by their names in the file.
        module: The module.
        checkpoint: Its path or address, for errors.
        min_matched: As in :func:`load_weights`.

    Raises:
        ValueError: As :func:`in_own_names`, and for a model with other options or heads.
    """
    plain = {name: stored[raw] for name, raw in plain_names(stored).items()}
    given = in_own_names(plain, tensors.own, checkpoint)
    reason = ''
    if given is not plain:  # a file of the authors does not tell all options
        reason = other_options(module, given, checkpoint)
    if not reason and min_matched in (None, 1):
        reason = dense.other_kind(given, tensors.own)
    if reason:
        raise ValueError(f'{checkpoint} does not fit: {reason}')
    return tensors._replace(given=given)


def _check_aspects(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise a ValueError where a square map was made of positions that may be another map's."""
    for name, value in weights.items():
        given, wanted = value.shape, own.get(name, own.get(name.removeprefix(PREFIX), value)).shape
        both_maps = len(given) == len(wanted) == 4 and given[:2] == wanted[:2]
        if both_maps and given != wanted and given.numel() == wanted.numel():
            raise ValueError(
                f'the positions of {name} are a map of {given[2]} x {given[3]} if its images were '
                f'square, and of {wanted[2]} x {wanted[3]} if they had the aspect of this model; '
                'say which, in pixels, to tools/model_converters/convert.py by --image-size, and '
                'load the new file'
            )


def rename_maps(backbone: Any, state_dict: Dict[str, Tensor], prefix: str) -> None:
    """Rename the tensors of a backbone in place, if the names are those of authors' detectors.

    So every way to load a whole model takes the authors' file, as the toolboxes have the authors'
    names of necks and heads. Norms of maps that the backbone does not return are left out.

    Args:
        backbone: The backbone.
        state_dict: Tensors, with others or without.
        prefix: What comes before the names of the backbone.

    Raises:
        ValueError: If they do not fill the backbone, or have no place in it.
    """
    given = {k[len(prefix) :]: v for k, v in state_dict.items() if k.startswith(prefix)}
    table = dense.maps_table(given)
    if table is None:
        return
    kind = type(backbone).__name__
    own = backbone.state_dict()
    try:
        converted = table.convert(given, prefix='').weights
        other = backbone.other_outputs(converted)
    except ValueError as error:
        raise ValueError(f'this file of the authors does not fit this {kind}: {error}') from error
    missing = [name for name in own if name not in converted and name not in other]
    unexpected = [name for name in converted if name not in own and name not in other]
    if missing or unexpected:
        raise ValueError(
            f'this file of the authors does not fit this {kind}: missing {first_names(missing)}, '
            f'unexpected {first_names(unexpected)}{fitting_sentence(converted)}; a classifier is '
            'loaded by load_weights'
        )
    for name in given:
        del state_dict[prefix + name]
    state_dict.update({prefix + name: v for name, v in converted.items() if name in own})


def check_dense(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if a file has too little of a detector or segmentor to start it.

    mmengine only logs it. A classifier by the names of mmlaplace passes, as it fills the backbone.

    Args:
        weights: The tensors of the file.
        own: The tensors of the model. Of another model than a detector or segmentor, nothing is
            checked.
    """
    given = {name.removeprefix('module.'): value for name, value in weights.items()}
    wanted = {name.removeprefix('module.'): value for name, value in own.items()}
    if dense.kind_of(wanted) in ('', 'classifier'):
        return
    table = dense.table_of(given)
    if table is not None and table.whole:
        raise ValueError(
            'the checkpoint is a whole model by the names of its authors, which this loader does '
            'not know; give its mmlaplace://NAME, or convert it by '
            'tools/model_converters/convert.py'
        )
    dense.check_heads(given, wanted)
    heads = [name for name in given if not name.startswith((PREFIX, 'neck.'))]
    # A Faster R-CNN may well start a Mask R-CNN.
    few = 2 * len({*heads} & {*wanted}) < len(heads)
    if few and dense.other_kind(given, wanted):
        named = in_own_names(given, {}, 'the checkpoint')
        raise ValueError(f'the checkpoint does not fit: {dense.other_kind(named, wanted)}')
    if not dense.kind_of(given) and recognise(given):
        raise ValueError(
            "the checkpoint is a classifier by the names of its authors; give it to the backbone's "
            'init_cfg, which converts it'
        )
