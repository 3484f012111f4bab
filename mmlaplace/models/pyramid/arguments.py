"""Reads and checks the arguments of a backbone: sizes, outputs, images and rates."""

from typing import Any, Dict, List, Sequence, Tuple, Union

from ..known_options import did_you_mean

ARCH_KEYS = ('embed_dims', 'depths', 'num_heads', 'ffn_ratios')
OUT_TYPES = ('featmap', 'cls_token')


def parse_arch(backbone: Any, arch: Union[str, dict, None], num_stages: int) -> Dict[str, tuple]:
    """An arch by its name in a zoo, or as a dict, with one entry for each stage in each value.

    Args:
        backbone: Class with ``arch_zoo`` and ``default_arch``.
        arch: The user's value, or None for the default.
        num_stages: Number of the host's stages.

    Raises:
        ValueError: For an unknown name or key, a missing one, or another number of entries.
    """
    sizes: Any = backbone.default_arch if arch is None else arch
    if isinstance(sizes, str):
        if sizes not in backbone.arch_zoo:
            hint = did_you_mean(sizes, backbone.arch_zoo)
            raise ValueError(
                f'{backbone.__name__} has no arch {sizes!r}{hint}; give one of '
                f'{list(backbone.arch_zoo)}, or a dict with the keys {ARCH_KEYS}'
            )
        sizes = backbone.arch_zoo[sizes]
    missing = [key for key in ARCH_KEYS if key not in sizes]
    unknown = [key for key in sizes if key not in ARCH_KEYS]
    if missing or unknown:
        raise ValueError(
            f'a dict for arch must have the keys {ARCH_KEYS}; missing: {missing}, unknown: '
            f'{unknown}'
        )
    for key in ARCH_KEYS:
        values = sizes[key]
        if not isinstance(values, (list, tuple)) or len(values) != num_stages:
            raise ValueError(
                f'arch[{key!r}] must have one entry for each of the {num_stages} stages, got '
                f'{values}'
            )
        if min(values) <= 0:
            raise ValueError(f'arch[{key!r}] must be positive in every stage, got {values}')
    return {key: tuple(sizes[key]) for key in ARCH_KEYS}


def drop_path_rates(last: float, depths: Sequence[int]) -> List[List[float]]:
    """The rate of each block of each stage, which rises linearly from 0 to ``last``."""
    last_block = max(sum(depths) - 1, 1)
    rates = []
    first = 0
    for depth in depths:
        rates.append([last * block / last_block for block in range(first, first + depth)])
        first += depth
    return rates


def parse_out_indices(
    out_indices: Union[int, Sequence[int], None], num_stages: int
) -> Tuple[int, ...]:
    """The stages to return, each by its number from 0. None stands for all of them.

    Raises:
        ValueError: For a stage that does not exist, or stages that do not rise.
    """
    if out_indices is None:
        return tuple(range(num_stages))
    indices = (out_indices,) if isinstance(out_indices, int) else tuple(out_indices)
    exist = all(isinstance(i, int) and -num_stages <= i < num_stages for i in indices)
    if not exist and num_stages == 1:
        raise ValueError(
            f'out_indices must be 0 or -1, the only stage of a plain ViT, got {out_indices}; for a '
            'head of several strides, leave it out and put a pyramid behind the backbone by '
            'neck=mmlaplace.plain_pyramid(backbone), as configs/heads/plain does'
        )
    if not indices or not exist:
        raise ValueError(
            f'out_indices must be stages from 0 to {num_stages - 1}, or from -{num_stages} to -1, '
            f'where -1 is the last, got {out_indices}'
        )
    stages = tuple(i % num_stages for i in indices)
    if list(stages) != sorted(set(stages)):
        raise ValueError(
            'out_indices must be in ascending order, in which the maps are returned, got '
            f'{out_indices}, which is {stages}; write {tuple(sorted(set(stages)))}'
        )
    return stages


def check_ranges(backbone: Any, frozen_stages: int, drop_path_rate: float, out_type: str) -> None:
    """Raise a ValueError for a value that a pyramid with these outputs cannot take."""
    stages = backbone.num_stages
    if not -1 <= frozen_stages <= stages:
        raise ValueError(f'frozen_stages must be -1 to {stages}, got {frozen_stages}')
    if not isinstance(drop_path_rate, (int, float)) or not 0 <= drop_path_rate < 1:
        raise ValueError(
            'drop_path_rate must be one number in [0, 1), the rate of the last block, got '
            f'{drop_path_rate!r}'
        )
    if out_type not in OUT_TYPES:
        raise ValueError(f'out_type must be one of {OUT_TYPES}, got {out_type!r}')
    if any(backbone.cls_tokens[:-1]):
        raise ValueError('only the last stage of a host can have a class token, got one before it')
    class_layers = getattr(backbone, 'class_layers', False)  # class attention after the blocks
    with_token = tuple(i for i, count in enumerate(backbone.cls_tokens) if count or class_layers)
    if out_type == 'cls_token' and backbone.out_indices != with_token:
        needs = f'needs out_indices={with_token}, the stages with a class token'
        if not with_token:
            needs = f'needs a class token, which this {type(backbone).__name__} does not have'
        raise ValueError(
            f"out_type='cls_token' {needs}, got out_indices={backbone.out_indices}; hosts such as "
            'ViT, SOFT and PVT have a class token with with_cls_token=True. For dense heads and '
            "global pooling, set out_type='featmap'"
        )


def check_kinds(img_size: Any, in_channels: Any, out_norms: Any) -> None:
    """Raise a ValueError for another kind of value than a pyramid takes."""
    if isinstance(in_channels, bool) or not isinstance(in_channels, int) or in_channels < 1:
        raise ValueError(
            f'in_channels must be a positive number, 3 for colour images, got {in_channels!r}'
        )
    sides = (img_size, img_size) if isinstance(img_size, int) else img_size
    is_pair = isinstance(sides, (list, tuple)) and len(sides) == 2
    if not is_pair or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ValueError(
            'img_size must be a positive number of pixels, or two for height and width, got '
            f'{img_size!r}'
        )
    if not (out_norms is None or isinstance(out_norms, (bool, dict))):
        raise ValueError(
            "out_norms must be True, False, None or a config such as dict(type='BN'), got "
            f'{out_norms!r}'
        )
