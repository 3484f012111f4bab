"""Whether the weights that a run loads are those of its model."""

from typing import Any, Dict, List, Mapping, Tuple

from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import Tensor

from ...checkpoints.fit import optional_outputs, other_arch
from ...checkpoints.names import first_names, misfit, plain_names
from ...checkpoints.own_names import check_dense, fitting_sentence, in_own_names
from ...checkpoints.resizing import resize_weights
from .errors import FirstCheckError

# Parts that a prediction does without.
TRAINING_ONLY = ('auxiliary_head.',)
TO_BACKBONE = (
    "to start from a classifier's weights, give them to the backbone: --cfg-options "
    'model.backbone.init_cfg.type=Pretrained model.backbone.init_cfg.checkpoint='
)


def check_weights(model: Any, checkpoint: Mapping[str, Any], place: str, use: str) -> None:
    """Compare the weights of a checkpoint with the parameters of a model, before they are loaded.

    mmengine only logs what does not fit, and then trains or scores random parameters.

    Args:
        model: The model, which may be wrapped.
        checkpoint: The content of the file.
        place: Its path or address, for messages.
        use: ``'test'``: each parameter must be there. ``'resume'``: each parameter must have its
            shape. ``'start'``: a parameter of the backbone must be there at least.

    Raises:
        FirstCheckError: If that is not so.
    """
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    raw = checkpoint.get('state_dict', checkpoint)
    named = {k.removeprefix('module.'): v for k, v in raw.items() if isinstance(v, Tensor)}
    stored = {plain: named[name] for plain, name in plain_names(named).items()}
    parameters = dict(model.named_parameters())
    own = {plain: parameters[name] for plain, name in plain_names(parameters).items()}
    try:
        check_dense(stored, own)
        given = dict(in_own_names(stored, own, place))
        if use != 'resume':
            resize_weights(model, given)
    except ValueError as error:
        raise FirstCheckError(f'{place}: {error}') from None
    shapes = {k: (tuple(given[k].shape), tuple(own[k].shape)) for k in own if k in given}
    fitting = [k for k, (one, other) in shapes.items() if one == other]
    kind = type(model).__name__
    if use == 'start':
        return _check_start(own, given, fitting, shapes, kind, place)
    missing = _missing(model, own, given) if use == 'test' else [k for k in own if k not in given]
    other = [k for k, (one, another) in shapes.items() if one != another]
    if use == 'test':
        other = [k for k in other if not k.startswith(TRAINING_ONLY)]
    if not missing and not other:
        return
    known = plain_names(model.state_dict())
    unexpected = [k for k in given if k not in known]
    given_shapes, own_shapes = ({k: tuple(v.shape) for k, v in one.items()} for one in (given, own))
    reason = misfit(missing, unexpected, other, given_shapes, own_shapes)
    if use == 'test':
        raise FirstCheckError(
            f'{place} is not the checkpoint of this {kind}: {reason}; these would be scored with '
            'random values; name the checkpoint of this config, or the config of this checkpoint'
            + fitting_sentence(given)
        )
    raise FirstCheckError(
        f'{place} cannot be resumed: {reason}; resume with the config of that run, or start a new '
        f'run from its weights: leave out --resume, and add --cfg-options load_from={place}'
    )


def _missing(model: Any, own: Dict[str, Any], given: Dict[str, Tensor]) -> List[str]:
    """The parameters that a prediction needs and a file lacks."""
    allowed = optional_outputs(model, list(given))
    return [
        name
        for name in own
        if name not in given and name not in allowed and not name.startswith(TRAINING_ONLY)
    ]


def _check_start(
    own: Dict[str, Any],
    given: Dict[str, Tensor],
    fitting: List[str],
    shapes: Dict[str, Tuple[tuple, tuple]],
    kind: str,
    place: str,
) -> None:
    part = 'backbone.' if any(name.startswith('backbone.') for name in own) else ''
    if any(name.startswith(part) for name in fitting):
        return
    inside = {name: pair for name, pair in shapes.items() if name.startswith(part)}
    wanted = [name for name in own if name.startswith(part)]
    reason = other_arch(inside, kind) or (
        f'it has the tensors {first_names(list(given))}, and none of the {part[:-1] or kind}, '
        f'{first_names(wanted)}'
    )
    raise FirstCheckError(
        f'nothing of {place} would be loaded: {reason}{fitting_sentence(given)}; name a checkpoint '
        f'of this model in load_from; {TO_BACKBONE}{place}'
    )


def check_classes(checkpoint: Mapping[str, Any], classes: Tuple[str, ...], place: str) -> None:
    """Refuse a checkpoint whose classes have the same names in another order.

    Raises:
        FirstCheckError: With the first label that has two names.
    """
    meta = (checkpoint.get('meta') or {}).get('dataset_meta') or {}
    stored = tuple(meta.get('classes') or ())
    if stored == tuple(classes) or sorted(map(str, stored)) != sorted(map(str, classes)):
        return
    number = next(i for i, pair in enumerate(zip(stored, classes)) if pair[0] != pair[1])
    raise FirstCheckError(
        f'{place} was trained with class {number} as {stored[number]!r}, and this data has '
        f'{classes[number]!r} there; set metainfo=dict(classes={stored}) of the data set'
    )
