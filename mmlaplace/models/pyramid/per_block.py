"""Attentions of single blocks of a stage."""

from typing import Any, Callable, List, Optional, Sequence

# No options of an attention: how many blocks of a stage get it, and changes of single blocks.
FIRST_BLOCKS, PER_BLOCK = 'first_blocks', 'per_block'


def in_first_blocks(changed: Any, stage: Any, count: int) -> Callable[[dict, int], List]:
    """As ``attn_in_blocks``: of the blocks with attentions, the first are those of ``changed``."""

    def attn_in_blocks(attn: dict, depth: int) -> List[Optional[dict]]:
        first, later = changed.attn_in_blocks(attn, depth), stage.attn_in_blocks(stage.attn, depth)
        having = [j for j in range(depth) if first[j] is not None]
        return [later[j] if j in having[count:] else first[j] for j in range(depth)]

    return attn_in_blocks


def check_list(given: Any) -> Sequence[Optional[dict]]:
    """The value of ``per_block``, or a ValueError if it is no list."""
    if isinstance(given, (list, tuple)):
        return given
    raise ValueError(
        f'{PER_BLOCK} must be a list with a dict or None for each block of a stage, got {given!r}'
    )


def in_each_block(stage: Any, own: Sequence[Any]) -> Callable[[dict, int], List]:
    """As ``attn_in_blocks``: those of a stage, or of the changed stage that a block has for it."""

    def attn_in_blocks(attn: dict, depth: int) -> List[Optional[dict]]:
        if len(own) != depth:
            raise ValueError(
                f'{PER_BLOCK} must have one entry for each of the {depth} blocks of its stage, got '
                f'{len(own)}; with several stages, attn_cfg is a list of dicts with such lists'
            )
        found = list(stage.attn_in_blocks(attn, depth))
        for j, changed in enumerate(own):
            if changed is not None and found[j] is None:
                raise ValueError(
                    f'{PER_BLOCK} has {changed.attn!r} for block {j}, which has no attention; set '
                    'None there'
                )
            if changed is not None:
                found[j] = changed.attn_in_blocks(changed.attn, depth)[j]
        return found

    return attn_in_blocks
