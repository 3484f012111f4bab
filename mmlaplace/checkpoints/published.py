"""Published classifiers: names of their parameters, and the backbones that they fit."""

import re
from functools import cache
from pathlib import Path
from typing import (
    Any,
    Collection,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

import torch
from mmengine.registry import MODELS
from torch import Tensor

from .conversion import NameTable
from .names import misfit
from .resizing import other_windows


class ImageStats(NamedTuple):
    """Of the images that weights were trained with, in RGB and from 0 to 255: each channel's.

    Attributes:
        mean: The mean, which is subtracted.
        std: The deviation, by which is divided.
    """

    mean: Tuple[float, float, float]
    std: Tuple[float, float, float]


IMAGENET = ImageStats((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
# CLIP's authors have statistics of their own images, and SigLIP's scale pixels to -1 and 1.
CLIP = ImageStats((122.771, 116.746, 104.094), (68.501, 66.632, 70.323))
MINUS_ONE_TO_ONE = ImageStats((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))


class PublishedModel(NamedTuple):
    """A classifier as its authors published it: names, a backbone, and the place of the weights.

    Attributes:
        names: Tables of names, as the authors and timm have them.
        backbone: Config of the backbone that the weights fit, with its ``type`` and ``arch``.
        weights: Address of the file of weights, if it is known.
        neck: Config of the classifier's neck, if it has weights.
        page: Address of a web page with the weights, if that of the file is not known. With
            neither, the authors have released none.
        head: Whether the file has a classifier. Files of self-supervised training have none.
            Default: True.
        image_stats: Of the images that the weights were trained with. Default: ImageNet's.
        licence: Of the repository, if it is not that of the family, which fills it in.
        weights_licence: Of the file, where the authors say it apart. The family fills it in.
    """

    names: Tuple[NameTable, ...]
    backbone: Dict[str, Any]
    weights: str = ''
    neck: Optional[Dict[str, Any]] = None
    page: str = ''
    head: bool = True
    image_stats: ImageStats = IMAGENET
    licence: str = ''
    weights_licence: str = ''

    @property
    def place(self) -> str:
        """Where the weights are, for lists."""
        place = self.weights or (f'on {self.page}' if self.page else 'not released')
        return place if self.head else f'{place} (without a classifier)'


# By name. The files of papers in ``models/backbones/`` add to it.
PUBLISHED: Dict[str, PublishedModel] = {}
BLOCK = re.compile(r'(?:.*\.)?stages\.(\d+)\.blocks\.(\d+)\.')
OF_THE_WEIGHTS = ('pretrained_window',)  # no tensor shows it, and it follows the image size
OWN = re.compile(r'(?:.*\.)?stages\.\d+\.(patch_embed|blocks)\.')
PREFIX, NECK = 'backbone.', 'neck.'


def recognise(names: Collection[str]) -> Optional[NameTable]:
    """The table of the authors' names that a checkpoint has, or None.

    Of the tables whose identifying names are all there, it is the one with the fewest unknown
    names, and of several such tables the one with the most identifying. A ``module.`` before the
    names does not count.
    """
    names = {name.removeprefix('module.') for name in names}
    return best_table((table for model in PUBLISHED.values() for table in model.names), names)


def best_table(tables: Iterable[NameTable], names: Collection[str]) -> Optional[NameTable]:
    """The table that :func:`recognise` takes, of these."""
    given = set(names)
    # Many models have the same table.
    candidates = {id(table): table for table in tables if given.issuperset(table.identifying)}

    def misses(table: NameTable) -> Tuple[int, int]:
        return len(table.unknown(given)), -len(table.identifying)

    return min(candidates.values(), key=misses, default=None)


def describe(name: str) -> str:
    """A published model by its name and its backbone."""
    options = ', '.join(f'{key}={value!r}' for key, value in PUBLISHED[name].backbone.items())
    return f'{name}, dict({options})'


class _State(NamedTuple):
    """A model's backbone, shapes in it and the neck, and names whose shape follows the images."""

    backbone: torch.nn.Module
    shapes: Dict[str, torch.Size]
    resized: Set[str]


@cache
def _state_of(name: str) -> _State:
    neck = PUBLISHED[name].neck
    with torch.device('meta'):
        backbone = MODELS.build(dict(PUBLISHED[name].backbone, out_indices=-1))
        behind = MODELS.build(neck).state_dict() if neck else {}
    resized: Set[str] = set()
    for path, part in backbone.named_modules():
        if hasattr(part, 'resize_weight'):
            resized.update(f'{path}.{own}' for own, _ in part.named_parameters(recurse=False))
    state = {**backbone.state_dict(), **{NECK + key: value for key, value in behind.items()}}
    return _State(backbone, {key: value.shape for key, value in state.items()}, resized)


def shapes_of(name: str) -> Dict[str, torch.Size]:
    """Names and shapes of a published classifier, those of its backbone without a prefix."""
    return _state_of(name).shapes


def _depths_and_widths(name: str) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    backbone = PUBLISHED[name].backbone
    sizes = backbone['arch']
    if isinstance(sizes, str):
        cls = MODELS.get(backbone['type'])
        sizes = cls.arch_zoo[sizes] if cls is not None else {}
    return tuple(sizes.get('depths', ())), tuple(sizes.get('embed_dims', ()))


def unfit(name: str, weights: Mapping[str, Tensor], resize: bool = True) -> str:
    """Why the weights of a classifier do not fit a model, or nothing if they fit.

    Args:
        name: Name of the published model.
        weights: By the names of mmlaplace, with those of the backbone after ``backbone.``. If none
            is of a neck, the model's neck does not count.
        resize: Whether tensors that depend on the image size may have another size. Default: True.
            Tables of other windows may not.
    """
    backbone, own, resized = _state_of(name)
    given = {
        k.removeprefix(PREFIX): v.shape for k, v in weights.items() if k.startswith((PREFIX, NECK))
    }
    if not any(k.startswith(NECK) for k in given):
        own = {key: shape for key, shape in own.items() if not key.startswith(NECK)}
    missing = [key for key in own if key not in given]
    unexpected = [key for key in given if key not in own]
    other = [
        key
        for key, shape in own.items()
        if key in given
        and given[key] != shape
        and not (resize and key in resized and given[key][:2] == shape[:2])
    ]
    if not missing and not unexpected and not other:
        return other_windows(backbone, given)
    return misfit(missing, unexpected, other, given, own)


def near(weights: Mapping[str, Tensor]) -> List[str]:
    """The models with the depths and the widths of weights. To compare more, they are built."""
    blocks: Dict[int, Set[int]] = {}
    sides: Dict[int, Set[int]] = {}
    for key, value in weights.items():
        if match := BLOCK.match(key):
            stage, block = int(match[1]), int(match[2])
            blocks.setdefault(stage, set()).add(block)
            sides.setdefault(stage, set()).update(value.shape)
    given_depths = tuple(len(numbers) for numbers in blocks.values())
    names = []
    for name in PUBLISHED:
        depths, widths = _depths_and_widths(name)
        same_widths = all(width in given for width, given in zip(widths, sides.values()))
        if depths == given_depths and same_widths:
            names.append(name)
    return names


def fitting(weights: Mapping[str, Tensor]) -> List[str]:
    """The models that the weights of a classifier fit; exactly, or else after a resizing."""
    has_head = any(name.startswith('head.') for name in weights)
    names = near(weights)
    for resize in (False, True):
        fit = [name for name in names if not unfit(name, weights, resize)]
        with_such_a_head = [name for name in fit if PUBLISHED[name].head == has_head]
        if fit:
            return with_such_a_head or fit
    return []


def are_own(names: Iterable[str]) -> bool:
    """Whether names are those of a backbone or a classifier of mmlaplace."""
    parts = {match[1] for name in names if (match := OWN.match(name))}
    return parts == {'patch_embed', 'blocks'}


def by_file_name(
    names: Sequence[str], checkpoint: Any, models: Optional[Mapping[str, Any]] = None
) -> List[str]:
    """Those of several models that fit which the name of the file tells, or all if it does not.

    It tells a model if it has all words and numbers of the model's name, or of the name of its
    released file, and more of them than of any other model.

    Args:
        names: The models.
        checkpoint: Path or address of the file.
        models: By name, what has their ``weights``. Default: None, ``PUBLISHED``.

    Examples:
        >>> from mmlaplace.checkpoints.published import by_file_name
        >>> by_file_name(['cswin_large', 'cswin_large_384'], 'cswin_large_384.pth')
        ['cswin_large_384']
        >>> by_file_name(['cswin_large', 'cswin_large_384'], 'best.pth')
        ['cswin_large', 'cswin_large_384']
    """
    known = PUBLISHED if models is None else models
    given = {str(checkpoint), str(checkpoint).rpartition('://')[2]}  # mmlaplace://NAME
    released = [name for name in names if given & {name, known[name].weights}]
    if released:
        return released
    words = _words(str(checkpoint))
    counts = {}
    for name in names:
        counts[name] = 0
        for model_words in (_words(name), _words(known[name].weights)):
            if model_words <= words:
                counts[name] = max(counts[name], len(model_words))
    most = max(counts.values(), default=0)
    likeliest = [name for name, count in counts.items() if count == most]
    return likeliest if most and len(likeliest) == 1 else list(names)


def _words(path: str) -> Set[str]:
    """Words and numbers of a file's name, on the Hugging Face hub of the whole address."""
    last = path if path.startswith('hf://') else Path(path).name
    return set(re.findall(r'[a-z]+|\d+', re.sub(r'\.(pth|pt|bin|safetensors)$', '', last.lower())))


def other_options(module: torch.nn.Module, weights: Mapping[str, Tensor], checkpoint: Any) -> str:
    """Why a file is for a backbone of other options, or nothing.

    Of models with the same names and shapes, such as CSWin for 224 and for 384 pixels, whose
    stripes are wider, the name of the file tells one. Where all have one value of
    ``OF_THE_WEIGHTS``, no name is needed.

    Args:
        module: A backbone, or a model with one.
        weights: The classifier in the file, converted.
        checkpoint: Path or address of the file.
    """
    fit = fitting(weights)
    if fit and 'rope' in _words(str(checkpoint)):  # of timm's ViTs, whose tensors do not tell it
        return (
            f'its name says that it has rotary positions (rope), and {" or ".join(fit)} has none; '
            'there is no such model here'
        )
    likely = by_file_name(fit, checkpoint)
    if not likely:
        return ''
    options = {name: _options_of(_state_of(name).backbone) for name in fit}
    for part in module.modules():
        if not hasattr(part, 'other_outputs'):  # it is no backbone
            continue
        own = _options_of(part)
        for key, value in options[likely[0]].items():
            if own.get(key, value) == value:
                continue
            path, option = key
            differs = any(other.get(key) != value for other in options.values())
            shared = all(options[name].get(key) == value for name in likely)
            by_name = len(likely) == 1 and differs
            by_weights = option in OF_THE_WEIGHTS and shared
            if by_name or by_weights:
                return (
                    f'{"" if likely == fit else "by its name "}it is '
                    f'{" or ".join(map(describe, likely))}, where {path} has {option}={value}, '
                    f'and this {type(part).__name__} has {own[key]}; build it with these options, '
                    'or to load it as it is, convert it by tools/model_converters/convert.py'
                )
    return ''


def _options_of(backbone: torch.nn.Module) -> Dict[Tuple[str, str], Any]:
    """The values of a backbone's parts that its tensors do not show. Sizes of maps are tuples."""
    return {
        (path, name): value
        for path, part in backbone.named_modules()
        for name, value in {**vars(part), 'type': type(part).__name__}.items()
        if isinstance(value, (bool, int, float, str))
    }
