"""Convert checkpoints of others: tensors renamed one by one, and a report of every key."""

from typing import Callable, Dict, List, Tuple

import torch
from torch import Tensor


class Conversion:
    """The authors' tensors under our names.

    Every tensor must be moved or dropped by name. :meth:`finish` refuses what is left.

    Args:
        theirs: Tensors by the authors' names.
        prefix: What comes before each of our names. Default: 'backbone.', as in a classifier.

    Attributes:
        ours: Tensors by our names.
        report: Each of theirs with its name, our name or why it was dropped, and its shape.
    """

    def __init__(self, theirs: Dict[str, Tensor], prefix: str = 'backbone.') -> None:
        self.theirs = dict(theirs)
        self.prefix = prefix
        self.ours: Dict[str, Tensor] = {}
        self.report: List[Tuple[str, str, tuple]] = []

    def has(self, name: str) -> bool:
        """Whether a tensor of theirs is still to be converted."""
        return name in self.theirs

    def take(self, name: str, target: str) -> Tensor:
        """Remove one of theirs, and report what became of it."""
        if name not in self.theirs:
            raise ValueError(
                f'this checkpoint has no {name}, which would become {target}; its names are '
                f'{list(self.theirs)[:3]} …'
            )
        value = self.theirs.pop(name)
        self.report.append((name, target, tuple(value.shape)))
        return value

    def put(self, ours: str, value: Tensor) -> None:
        """Set one of ours."""
        self.ours[self.prefix + ours] = value

    def move(self, ours: str, *theirs: str, by: Callable[[Tensor], Tensor] = torch.clone) -> None:
        """One of theirs, changed ``by`` a function, or several concatenated become one of ours."""
        values = [self.take(name, self.prefix + ours) for name in theirs]
        self.put(ours, torch.cat(values) if values[1:] else by(values[0]))

    def layer(self, ours: str, *theirs: str) -> None:
        """The weights and, where there are any, biases and statistics of layers, concatenated."""
        for suffix in ('weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked'):
            if self.has(f'{theirs[0]}.{suffix}') or suffix == 'weight':
                self.move(f'{ours}.{suffix}', *(f'{name}.{suffix}' for name in theirs))

    def drop(self, name: str, why: str) -> None:
        """Leave out a tensor of theirs, if it is there."""
        if self.has(name):
            self.take(name, f'dropped: {why}')

    def head(self, name: str = 'head') -> None:
        """The classifier's linear, if there is one, for mmpretrain's LinearClsHead."""
        if self.has(f'{name}.weight'):
            self.prefix, prefix = '', self.prefix
            self.layer('head.fc', name)
            self.prefix = prefix

    def finish(self) -> Dict[str, Tensor]:
        """Ours, once nothing of theirs is left."""
        if self.theirs:
            raise ValueError(
                f'{len(self.theirs)} tensors of this checkpoint have no place in our backbone: '
                f'{list(self.theirs)}'
            )
        return {name: value.clone().contiguous() for name, value in self.ours.items()}


def position_map(tokens: Tensor, image_size: Tuple[int, int] = (1, 1)) -> Tensor:
    """Positions ``(1, N, C)`` of the tokens of an image as a map ``(1, C, H, W)``."""
    count = tokens.shape[1]
    height = round((count * image_size[0] / image_size[1]) ** 0.5)
    if height == 0 or count % height or height * image_size[1] != count // height * image_size[0]:
        raise ValueError(
            f'{count} positions are no map of an image of the sides {tuple(image_size)}; give the '
            'size it was trained at, in pixels, by --image-size'
        )
    return tokens.transpose(1, 2).unflatten(2, (height, count // height))
