"""Rows of names, and changes of tensors, that several papers share."""

from typing import Tuple

from torch import Tensor

from .conversion import Rows, position_map

HEAD: Rows = {'head.': 'head.fc.'}
# Of the maps that detectors and segmentors take.
MAP_NORMS: Rows = {'norm{i}.': 'norm{i}.'}
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
    'q.': 'qkv.',
    'kv.': 'kv.',
    'proj.': 'proj.',
    'sr.': 'sr.projection.',
    'norm.': 'sr.norm.',
}


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


def unchanged(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The tensor as it is, beside another change of it."""
    return value


def zeros(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """Zeros of its shape, for what the authors do not have."""
    return value.new_zeros(value.shape)


def flat(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """All axes as one."""
    return value.flatten()


def first(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """Without a first axis of one."""
    return value.squeeze(0)


def linear(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """The weight of a linear, of that of a 1 x 1 convolution. A bias stays as it is."""
    return value.flatten(1) if value.dim() == 4 else value
