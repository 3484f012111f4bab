"""Released weights by the name of their model: ``mmlaplace://ravlt-tiny``."""

import os
from difflib import get_close_matches
from os import PathLike
from typing import Any, Union

from .dense import DENSE
from .published import PUBLISHED

SCHEME = 'mmlaplace://'
LIST = 'python -m mmlaplace list --weights'
HUGGING_FACE = 'https://huggingface.co'


def is_released(checkpoint: Any) -> bool:
    """Whether a checkpoint is given by the name of a released model."""
    return str(checkpoint).startswith(SCHEME)


def address_of(name: str) -> str:
    """The address ``mmlaplace://NAME`` of released weights."""
    return f'{SCHEME}{name}'


def released_name(checkpoint: Union[str, PathLike]) -> str:
    """The name in ``PUBLISHED`` or ``DENSE`` of the address ``mmlaplace://NAME``.

    ``-``, ``_`` and case do not count, so the names of backbones and of models of timm work too.

    Raises:
        ValueError: If there is no such model. The message names similar ones.
    """
    name = str(checkpoint)[len(SCHEME) :]
    names = {_letters(known): known for known in (*PUBLISHED, *DENSE)}
    if _letters(name) in names:
        return names[_letters(name)]
    near = [each for each in names if _letters(name) and each.startswith(_letters(name))]
    near = near or get_close_matches(_letters(name), names, cutoff=0.75)
    similar = ', '.join(names[letters] for letters in near[:4])
    hint = f'; similar names are {similar}' if similar else ''
    raise ValueError(
        f'no released weights of {name!r} are known{hint}; {LIST} shows all, and the path of a '
        'checkpoint of your own works too'
    )


def _letters(name: str) -> str:
    return name.lower().replace('-', '').replace('_', '')


def released_place(checkpoint: Union[str, PathLike]) -> str:
    """The authors' address of the weights ``mmlaplace://NAME``, or that of a mirror.

    As in huggingface_hub, the environment variable ``HF_ENDPOINT`` sets a mirror of the Hugging
    Face hub.

    Raises:
        ValueError: If there is no such model, its authors have released no weights, or only a web
            page has them.
    """
    name = released_name(checkpoint)
    model = DENSE.get(name) or PUBLISHED[name]
    if model.page:
        raise ValueError(
            f'the weights of {name!r} are behind a link of the web page {model.page}; download '
            f'them there, and give the path of the file instead of {checkpoint}'
        )
    if not model.weights:
        raise ValueError(
            f'the authors have released no weights of {name!r}; {LIST} shows the models that have '
            'some, and the path of a checkpoint of your own works too'
        )
    if model.weights.startswith(HUGGING_FACE):
        endpoint = os.environ.get('HF_ENDPOINT') or HUGGING_FACE
        return endpoint.rstrip('/') + model.weights[len(HUGGING_FACE) :]
    return model.weights
