"""A family: names of parameters, a backbone, and the place of the weights."""

from typing import Any, Dict, NamedTuple, Optional, Tuple

from torch import Tensor

from ..conversion import Names, Rows, position_map


class Family(NamedTuple):
    """One size of a family of classifiers, with the place of its weights, if they are released.

    Attributes:
        names: Tables of names, as the authors and timm have them.
        backbone: Config of the backbone that the weights fit, with its ``type`` and ``arch``.
        weights: Address of the file of weights, if it is known.
        neck: Config of the classifier's neck, if it has weights.
        page: Address of a web page with the weights, if that of the file is not known. With
            neither, the authors have released none.
    """

    names: Tuple[Names, ...]
    backbone: Dict[str, Any]
    weights: str = ''
    neck: Optional[Dict[str, Any]] = None
    page: str = ''

    @property
    def place(self) -> str:
        """Where the weights are, for lists."""
        return self.weights or (f'on {self.page}' if self.page else 'not released')


HEAD: Rows = {'head.': 'head.fc.'}
# A block but its attention.
BLOCK: Rows = {
    'norm1.': 'norm1.',
    'norm2.': 'norm2.',
    'mlp.fc1.': 'ffn.layers.0.',
    'mlp.fc2.': 'ffn.layers.3.',
}
# Softmax on one map, and on a reduced map of keys and values.
ATTENTION: Rows = {'qkv.': 'qkv.', 'proj.': 'proj.'}
REDUCED: Rows = {
    'q.': 'qkv.', 'kv.': 'kv.', 'proj.': 'proj.', 'sr.': 'sr.projection.', 'norm.': 'sr.norm.',
}  # fmt: skip


def class_position(tokens: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The position of the class token, ``(1, 1, C)`` of ``(1, 1 + N, C)``."""
    return tokens[:, :1]


def map_positions(tokens: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The positions of the other tokens, ``(1, C, H, W)`` of ``(1, 1 + N, C)``."""
    return position_map(tokens[:, 1:], image_size)


def offset_map(table: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """Swin's biases ``(offsets², heads)`` as a map ``(1, heads, offsets, offsets)``."""
    return position_map(table.unsqueeze(0))


def square_map(tokens: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """Positions in a window ``(1, N, C)``, which is square in any image."""
    return position_map(tokens)


def flat(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """All axes as one."""
    return value.flatten()


def first(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """Without a first axis of one."""
    return value.squeeze(0)


def linear(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The weight of a linear, of that of a 1 x 1 convolution. A bias stays as it is."""
    return value.flatten(1) if value.dim() == 4 else value
