"""The number of classes of heads against the classes of a data set."""

from typing import Any, Iterator, Tuple

from .errors import FirstCheckError, pass_over, shown
from .leaves import classes_of, source_of

# Layers with a num_classes that is not that of the data set.
OTHERS = ('VGG', 'FusedSemanticHead')


def check_heads(leaf: Any, split: str, model: Any) -> None:
    """Raise a FirstCheckError if a head of a detector or segmentor has other classes than the data.

    As mmdet's ``NumClassCheckHook``, which no config has by default, but before the first step.
    """
    names = classes_of(leaf)
    if not names:
        return pass_over(f'{type(leaf).__name__} names no classes')
    for path, count in _heads(model):
        if count != len(names):
            raise FirstCheckError(
                f'{path} has num_classes={count}, and the {split} data of {source_of(leaf)} has '
                f'{len(names)} classes, {shown(names)}; set num_classes={len(names)} there, or '
                f'correct metainfo.classes of {split}_dataloader.dataset'
            )


def _heads(model: Any) -> Iterator[Tuple[str, int]]:
    if hasattr(model, 'decode_head'):  # mmseg's auxiliary heads may have classes of their own
        head = model.decode_head
        parts = enumerate(head) if hasattr(head, '__iter__') else [('', head)]
        found = [(f'decode_head.{name}'.rstrip('.'), part) for name, part in parts]
    else:
        found = list(model.named_modules())
    for path, part in found:
        count = getattr(part, 'num_classes', None)
        if not isinstance(count, int) or path.startswith(('backbone', 'data_preprocessor')):
            continue
        if path.endswith('rpn_head') or type(part).__name__ in OTHERS:
            continue
        if not getattr(part, 'class_agnostic', False):
            yield f'model.{path}'.rstrip('.'), count
