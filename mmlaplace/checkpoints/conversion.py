"""Convert the authors' checkpoints: rename each tensor, and report every key."""

from typing import Callable, Dict, List, Tuple

import torch
from torch import Tensor


class Conversion:
    """Converts the tensors of an authors' checkpoint to the names of mmlaplace.

    Every tensor must be moved or dropped by name. :meth:`finish` raises an error if one is left.

    Args:
        theirs: The authors' tensors, by the authors' names.
        prefix: Prefix of each name of mmlaplace. Default: 'backbone.', as in a classifier.

    Attributes:
        ours: The converted tensors, by the names of mmlaplace.
        report: A row for each of the authors' tensors: its name, the name in mmlaplace or why it
            was dropped, and its shape.
    """

    def __init__(self, theirs: Dict[str, Tensor], prefix: str = 'backbone.') -> None:
        self.theirs = dict(theirs)
        self.prefix = prefix
        self.ours: Dict[str, Tensor] = {}
        self.report: List[Tuple[str, str, tuple]] = []

    def has(self, name: str) -> bool:
        """Whether a tensor of the authors is still to be converted."""
        return name in self.theirs

    def take(self, name: str, target: str) -> Tensor:
        """Remove and return a tensor. Report its new name, or why it was dropped."""
        if name not in self.theirs:
            raise ValueError(
                f'this checkpoint has no {name}, which would become {target}; its names are '
                f'{list(self.theirs)[:3]} …'
            )
        value = self.theirs.pop(name)
        self.report.append((name, target, tuple(value.shape)))
        return value

    def put(self, ours: str, value: Tensor) -> None:
        """Set a tensor under its name in mmlaplace."""
        self.ours[self.prefix + ours] = value

    def move(self, ours: str, *theirs: str, by: Callable[[Tensor], Tensor] = torch.clone) -> None:
        """Move a tensor, changed ``by`` a function, to a new name, or concatenate several there."""
        values = [self.take(name, self.prefix + ours) for name in theirs]
        self.put(ours, torch.cat(values) if values[1:] else by(values[0]))

    def layer(self, ours: str, *theirs: str) -> None:
        """Concatenate and move the weights of layers, and any biases and statistics."""
        for suffix in ('weight', 'bias', 'running_mean', 'running_var', 'num_batches_tracked'):
            if self.has(f'{theirs[0]}.{suffix}') or suffix == 'weight':
                self.move(f'{ours}.{suffix}', *(f'{name}.{suffix}' for name in theirs))

    def drop(self, name: str, why: str) -> None:
        """Drop a tensor of the authors, if it is there."""
        if self.has(name):
            self.take(name, f'dropped: {why}')

    def head(self, name: str = 'head') -> None:
        """Move the classifier's linear, if there is one, for mmpretrain's LinearClsHead."""
        if self.has(f'{name}.weight'):
            self.prefix, prefix = '', self.prefix
            self.layer('head.fc', name)
            self.prefix = prefix

    def finish(self) -> Dict[str, Tensor]:
        """The converted tensors, once none of the authors' tensors is left."""
        if self.theirs:
            raise ValueError(
                f'{len(self.theirs)} tensors of this checkpoint have no place in our backbone: '
                f'{list(self.theirs)}'
            )
        return {name: value.clone().contiguous() for name, value in self.ours.items()}


def position_map(tokens: Tensor, image_size: Tuple[int, int] = (1, 1)) -> Tensor:
    """The position embeddings ``(1, N, C)`` of an image's tokens as a map ``(1, C, H, W)``."""
    count = tokens.shape[1]
    height = round((count * image_size[0] / image_size[1]) ** 0.5)
    if height == 0 or count % height or height * image_size[1] != count // height * image_size[0]:
        raise ValueError(
            f'{count} positions are no map of an image of the sides {tuple(image_size)}; give the '
            'size it was trained at, in pixels, by --image-size'
        )
    return tokens.transpose(1, 2).unflatten(2, (height, count // height))
