"""Names of tensors: remove wrappers' prefixes, count prefixes."""

from collections import Counter
from os import PathLike
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

from torch import Tensor

# Of torch.compile, and of its wrapper for activation checkpointing.
WRAPPERS = ('_orig_mod', '_checkpoint_wrapped_module')


def plain_names(names: Iterable[str]) -> Dict[str, str]:
    """Names, by themselves without those of torch's wrappers. If two collide, all stay."""
    names = list(names)
    plain = {'.'.join(p for p in name.split('.') if p not in WRAPPERS): name for name in names}
    return plain if len(plain) == len(names) else {name: name for name in names}


def count_prefixes(keys: Iterable[str], names: Iterable[str]) -> Counter:
    """How many of ``names`` come after each prefix of ``keys`` that ends with a dot."""
    wanted = set(names)
    counts = Counter[str]()
    for key in keys:
        parts = key.split('.')
        for i in range(len(parts)):
            if '.'.join(parts[i:]) in wanted:
                counts[''.join(f'{part}.' for part in parts[:i])] += 1
    return counts


def first_names(names: List[str]) -> str:
    """The number of names, and the first three, for messages."""
    if not names:
        return '0'
    rest = ', …' if len(names) > 3 else ''
    return f'{len(names)} ({", ".join(names[:3])}{rest})'


def misfit(
    missing: List[str],
    unexpected: List[str],
    other: List[str],
    given: Mapping[str, Sequence[int]],
    own: Mapping[str, Sequence[int]],
) -> str:
    """Which tensors do not fit, for messages; of those of another shape, the first two shapes."""
    example = f', as {tuple(given[other[0]])} for {tuple(own[other[0]])}' if other else ''
    return (
        f'missing {first_names(missing)}, unexpected {first_names(unexpected)}, of another shape '
        f'{first_names(other)}{example}'
    )


def find_prefix(
    stored: Dict[str, Tensor],
    own: Dict[str, Tensor],
    prefix: Optional[str],
    what: str,
    checkpoint: Union[str, PathLike],
) -> Tuple[str, Dict[str, int]]:
    """The prefix of a module in a file, and if several match equally, the tensors of each.

    Raises:
        ValueError: If no tensor of the file is one of the module, or none under this prefix.
    """
    counts = count_prefixes(stored, own)
    if not counts:
        raise ValueError(
            f'{checkpoint} has no tensor of {what}: its names are {first_names(list(stored))}, '
            f'those expected {first_names(list(own))}'
        )
    (first, best), *_ = counts.most_common(1)
    alike: Dict[str, int] = {}
    if prefix is None:
        prefix = first
        alike = {other: count for other, count in counts.items() if count == best}
    elif prefix:
        (prefix,) = plain_names([prefix if prefix.endswith('.') else f'{prefix}.'])
    if prefix not in counts:
        raise ValueError(
            f'prefix {prefix!r} matches no tensor of {what} in {checkpoint}; prefixes that '
            f'do (with the number of tensors): {dict(counts.most_common(4))}'
        )
    return prefix, alike if len(alike) > 1 else {}
