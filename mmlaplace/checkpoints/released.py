"""Released weights by the name of their model: ``mmlaplace://ravlt-tiny``."""

import os
from difflib import get_close_matches
from os import PathLike
from typing import Any, Dict, Union

from ._hubs import TIMM
from .dense import DENSE
from .published import IMAGENET, PUBLISHED, ImageStats

SCHEME = 'mmlaplace://'
LIST = 'python -m mmlaplace list --weights'
NO_LICENCE = 'none'
HUGGING_FACE = 'https://huggingface.co'
PAGES_OF_TIMM = f'{HUGGING_FACE}/timm/'


def is_released(checkpoint: Any) -> bool:
    """Whether a checkpoint is given by the name of a released model."""
    return str(checkpoint).startswith(SCHEME)


def is_name(checkpoint: Any) -> bool:
    """Whether a checkpoint is given by a name, ``mmlaplace://NAME`` or ``timm://NAME``."""
    return str(checkpoint).startswith((SCHEME, TIMM))


def address_of(name: str) -> str:
    """The address ``mmlaplace://NAME`` of released weights."""
    return f'{SCHEME}{spelled(name)}'


def spelled(name: str) -> str:
    """The one spelling of a name for users: with ``-``, and of detectors that of their config."""
    return name.replace('_', '-') if name in PUBLISHED else name


def released_name(checkpoint: Union[str, PathLike]) -> str:
    """The name in ``PUBLISHED`` or ``DENSE`` of the address ``mmlaplace://NAME``.

    ``-``, ``_`` and case do not count, so the names of backbones and of models of timm work too.

    Raises:
        ValueError: If there is no such model. The message names similar ones.
    """
    name = str(checkpoint)[len(SCHEME) :]
    names = _by_letters()
    if _letters(name) in names:
        return names[_letters(name)]
    near = [each for each in names if _letters(name) and each.startswith(_letters(name))]
    near = near or get_close_matches(_letters(name), names, cutoff=0.75)
    similar = ', '.join(spelled(names[letters]) for letters in near[:4])
    hint = f'; similar names are {similar}' if similar else ''
    raise ValueError(
        f'no released weights of {name!r} are known{hint}; {LIST} shows all, and the path of a '
        'checkpoint of your own works too'
    )


def image_stats_of(checkpoint: str) -> ImageStats:
    """The statistics of the images that weights of ``mmlaplace://NAME`` were trained with.

    Those of ImageNet stand for names of which no weights are released.
    """
    name = _by_letters().get(_letters(checkpoint[len(SCHEME) :]), '')
    model = PUBLISHED.get(name)
    return IMAGENET if model is None else model.image_stats


def licence_of(name: str) -> str:
    """What is known of the licence of released weights, for lists and messages.

    Args:
        name: In ``PUBLISHED`` or ``DENSE``.

    Examples:
        >>> from mmlaplace.checkpoints.released import licence_of
        >>> licence_of('mlla_tiny')
        'MIT (of the repository; none is stated for the weights apart)'
    """
    model = DENSE.get(name) or PUBLISHED[name]
    if model.licence == NO_LICENCE:
        return 'none: the repository has no licence, so ask its authors before you ship the weights'
    if not model.licence:
        return 'not known here: look into the repository'
    apart = getattr(model, 'weights_licence', '')
    if apart:
        return f'{model.licence} (of the repository), {apart} (of the weights)'
    return f'{model.licence} (of the repository; none is stated for the weights apart)'


def _by_letters() -> Dict[str, str]:
    """The names of released models by their letters."""
    return {_letters(known): known for known in (*PUBLISHED, *DENSE)}


def _letters(name: str) -> str:
    return name.lower().replace('-', '').replace('_', '')


def released_place(checkpoint: Union[str, PathLike]) -> str:
    """The authors' address of the weights ``mmlaplace://NAME``, or that of a mirror.

    Of a model on a page of timm it is ``timm://NAME``. As in huggingface_hub, the environment
    variable ``HF_ENDPOINT`` sets a mirror of the Hugging Face hub.

    Raises:
        ValueError: If there is no such model, its authors have released no weights, or only a web
            page has them.
    """
    name = released_name(checkpoint)
    model = DENSE.get(name) or PUBLISHED[name]
    if model.page.startswith(PAGES_OF_TIMM):
        return TIMM + model.page[len(PAGES_OF_TIMM) :]
    if model.page:
        raise ValueError(
            f'the weights of {spelled(name)!r} are behind a link of the web page {model.page}; '
            f'download them there, and give the path of the file instead of {checkpoint}'
        )
    if not model.weights:
        raise ValueError(
            f'the authors have released no weights of {spelled(name)!r}; {LIST} shows the models '
            'that have some, and the path of a checkpoint of your own works too'
        )
    if model.weights.startswith(HUGGING_FACE):
        endpoint = os.environ.get('HF_ENDPOINT') or HUGGING_FACE
        return endpoint.rstrip('/') + model.weights[len(HUGGING_FACE) :]
    return model.weights
