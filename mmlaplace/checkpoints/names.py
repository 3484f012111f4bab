"""Names of tensors: remove wrappers' prefixes, rename those of older versions, count prefixes."""

import re
from collections import Counter
from os import PathLike
from typing import Collection, Dict, Iterable, List, Optional, Tuple, Union

from torch import Tensor


def plain_names(names: Iterable[str]) -> Dict[str, str]:
    """Old names by names without torch.compile's ``_orig_mod``. If two collide, none is changed."""
    names = list(names)
    plain = {'.'.join(p for p in name.split('.') if p != '_orig_mod'): name for name in names}
    return plain if len(plain) == len(names) else dict(zip(names, names))


def count_prefixes(keys: Iterable[str], names: Iterable[str]) -> Counter:
    """How many of ``names`` come after each prefix of ``keys`` that ends with a dot."""
    wanted, counts = set(names), Counter[str]()
    for key in keys:
        parts = key.split('.')
        for i in range(len(parts)):
            if '.'.join(parts[i:]) in wanted:
                counts[''.join(f'{part}.' for part in parts[:i])] += 1
    return counts


def first_names(names: List[str]) -> str:
    """The number of names, and the first three, for messages."""
    return f'{len(names)}' + (f' ({", ".join(names[:3])}{", …" * (len(names) > 3)})' * bool(names))


# What tensors of version 0.1 are called now.
OLD_NAMES = {
    r'\battn\.(_orig_mod\.)?query_gate\.': r'attn.\1qkv.',
    r'\battn\.(_orig_mod\.)?key_value\.': r'attn.\1kv.',
    r'\battn\.(_orig_mod\.)?reduction\.': r'attn.\1sr.',
    r'\battn\.(_orig_mod\.)?sample\.': r'attn.\1landmarks.',
    r'\battn\.(_orig_mod\.)?local\.': r'attn.\1lepe.',
    r'\bffn\.(_orig_mod\.)?local\.': r'ffn.\1dwconv.',
    r'\bposition\.(_orig_mod\.)?class_(token|position)$': r'position.\1cls_\2',
}
# Tensors that the authors' files and older ones lack, by those with the same value.
COPIED_NAMES = {r'\bbn\.num_batches_tracked$': 'forwards'}


def rename_old_tensors(state_dict: Dict[str, Tensor], own: Collection[str]) -> None:
    """Rename tensors of version 0.1 to their current names, in place, and copy what is new.

    Args:
        state_dict: The state dict of a checkpoint, under any prefix.
        own: Names in the module to be loaded. A tensor is renamed only if the module has its new
            name and lacks its old name, because other modules may use the old words too.
    """

    def known(name: str) -> bool:
        parts = name.split('.')
        return any('.'.join(parts[i:]) in own for i in range(len(parts)))

    for name in list(state_dict):
        new = name
        for old, now in OLD_NAMES.items():
            new = re.sub(old, now, new)
        if new != name and new not in state_dict and known(new) and not known(name):
            state_dict[new] = state_dict.pop(name)
    for name, value in list(state_dict.items()):
        for old, now in COPIED_NAMES.items():
            new = re.sub(old, now, name)
            if new not in state_dict and known(new):
                state_dict[new] = value.float()  # a count, as one that can be averaged


def find_prefix(
    theirs: Dict[str, Tensor],
    own: Dict[str, Tensor],
    prefix: Optional[str],
    what: str,
    checkpoint: Union[str, PathLike],
) -> Tuple[str, Dict[str, int]]:
    """The prefix of a module in a file, and if several match equally, the tensors of each.

    Raises:
        ValueError: If no tensor of the file is one of the module, or none under this prefix.
    """
    counts = count_prefixes(theirs, own)
    if not counts:
        raise ValueError(
            f'{checkpoint} has no tensor of {what}: its names are {first_names(list(theirs))}, '
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
