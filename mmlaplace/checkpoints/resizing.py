"""Tensors whose shape depends on the size of the images, their channels, or the windows."""

import math
import re
from typing import Dict, Mapping, Sequence

import torch
import torch.nn as nn
from torch import Tensor

STAGE = re.compile(r'(?:.*\.)?stages\.(\d+)\.')
# The layers that see the image.
FIRST_LAYERS = re.compile(r'(?:.*\.)?stages\.0\.patch_embed\.')


def resize_weights(module: nn.Module, state_dict: Dict[str, Tensor], prefix: str = '') -> None:
    """Resize tensors to the module's shapes, in place, where its parts have a method for it.

    A part with a tensor whose shape depends on the image size has ``resize_weight(name, value)``.

    Args:
        module: The module.
        state_dict: The tensors.
        prefix: What comes before the module's names in ``state_dict``. Default: ''.

    Raises:
        ValueError: If tables are those of other windows, as :func:`other_windows` says.
    """
    reason = other_windows(module, {k: v.shape for k, v in state_dict.items()}, prefix)
    if reason:
        raise ValueError(reason)
    for path, part in module.named_modules():
        if hasattr(part, 'resize_weight'):
            tensors = dict(part.named_parameters(recurse=False))
            tensors.update(part.named_buffers(recurse=False))
            for name, own in tensors.items():
                key = f'{prefix}{path}.{name}' if path else f'{prefix}{name}'
                given = state_dict.get(key)
                if given is None or given.shape == own.shape or given.dim() != own.dim():
                    continue
                # A file of halves may fill a module in fp32. In halves the result would be rounded.
                wide = given.to(torch.promote_types(given.dtype, own.dtype))
                state_dict[key] = part.resize_weight(name, wide)


def other_windows(module: nn.Module, shapes: Mapping[str, Sequence[int]], prefix: str = '') -> str:
    """Why the tables of a checkpoint are for other windows than the module's, or nothing.

    The side of a window is part of the architecture. Only on a map that is shorter, a window
    shrinks to the map. So the tables of the checkpoint must be those of the module's windows on
    images of one size: there is a ratio r of this size to the module's ``img_size`` with
    :math:`w = \\min(W, \\lceil r M \\rceil)` for each table's window w, its ``window_size`` W here,
    and the side M of its map here.
    """
    low, high = 0.0, math.inf
    given: Dict[str, int] = {}  # sides by stage, or by path
    own: Dict[str, int] = {}
    for path, part in module.named_modules():
        for name in getattr(part, 'window_tables', dict)():
            key = f'{path}.{name}' if path else name
            shape = shapes.get(prefix + key, ())
            if len(shape) != 4:
                continue
            side = part.side_of_table(name, shape)
            longest = part.window_size
            tokens = min(part.input_resolution)
            match = STAGE.match(key)
            stage = match[1] if match else key
            given[stage] = side
            own[stage] = longest
            low = max(low, (side - 1) / tokens)
            if side > longest:
                high = 0.0
            elif side < longest and tokens > 1:
                high = min(high, side / (tokens - 1))
    if low < high:
        return ''
    stored = tuple(given.values())
    wanted = tuple(own.values())
    # On maps that get shorter, one window_size gives sides that do not rise.
    option = f'window_size={stored[0]}'
    if list(stored) != sorted(stored, reverse=True):
        option = f'attn_cfg=dict(per_stage=dict(window_size={stored}))'
    return (
        f'its tables are of windows of {_sides(stored)} tokens a side, and those of this '
        f'{type(module).__name__} of {_sides(wanted)}; build it with {option}; or to train further '
        'with other windows, build it with resize_windows=True, which resizes the tables'
    )


def _sides(sides: Sequence[int]) -> str:
    return str(sides[0]) if len(set(sides)) == 1 else ', '.join(map(str, sides))


def fit_channels(
    own: Mapping[str, Tensor], stored: Mapping[str, Tensor], adapt: bool
) -> Dict[str, Tensor]:
    """The tensors of a checkpoint, whose first convolutions are adapted to the image's channels.

    Args:
        own: The module's tensors.
        stored: Those of the checkpoint, by the same names.
        adapt: As ``adapt_input_conv`` of :func:`load_weights`.

    Raises:
        ValueError: If they are for other channels, unless ``adapt``.
    """
    adapted = dict(stored)
    for name in own.keys() & stored.keys():
        weight, shape = stored[name], own[name].shape
        if not FIRST_LAYERS.match(name) or weight.dim() != 4 or len(shape) != 4:
            continue
        channels, wanted = weight.shape[1], shape[1]
        if channels == wanted or (weight.shape[0], *weight.shape[2:]) != (shape[0], *shape[2:]):
            continue
        if not adapt:
            raise ValueError(
                f'its {name} is for images of {channels} channels, and the module has in_channels='
                f'{wanted}; build it with in_channels={channels}, or adapt the weights by '
                "adapt_input_conv=True in load_weights, or in init_cfg=dict(type='Pretrained', …)"
            )
        if wanted == 1:
            adapted[name] = weight.sum(1, keepdim=True)
        else:
            repeated = weight.repeat(1, math.ceil(wanted / channels), 1, 1)
            adapted[name] = repeated[:, :wanted] * (channels / wanted)
    return adapted
