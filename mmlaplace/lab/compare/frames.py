"""The layers around the attentions: the same for all, or those of the papers."""

from dataclasses import asdict
from typing import Any, Dict, List, NamedTuple

from ...models import QKVAttention
from ..side_by_side.attention_file import find_attention, name_and_options
from ..side_by_side.attention_study import config_of

# Linears of queries, keys and values, a 3 x 3 depthwise convolution of V as the only position, and
# a last linear. Nearly all papers with linear attentions have these, many with more.
SHARED: Dict[str, Any] = dict(
    qkv='qkv',
    qkv_bias=True,
    gate=False,
    key_positions=False,
    rope=False,
    lepe_kernel=3,
    lepe_filters='channel',
    lepe_bias=True,
    second_lepe_kernel=0,
    proj=True,
)


class Candidate(NamedTuple):
    """An attention of a comparison.

    Attributes:
        label: Its name in tables.
        name: Its name with its options, as :func:`config_of` takes it.
        cfg: Its config.
        changed: Fields of its own frame that are another here, with their values here.
        kept: Fields of the shared frame that it cannot take, or that belong to its rule.
    """

    label: str
    name: str
    cfg: dict
    changed: Dict[str, Any]
    kept: List[str]


def candidate(name: str, own_frames: bool = False) -> Candidate:
    """An attention by its name, with the shared frame or its own.

    Args:
        name: As in :func:`config_of`. Options in the name win over those of the shared frame.
        own_frames: Whether it keeps the frame of its paper. Default: False.

    Raises:
        ValueError: If there is no such attention or option.

    Examples:
        >>> from mmlaplace.lab.compare.frames import candidate
        >>> candidate('SOFT').changed
        {'lepe_filters': 'channel', 'lepe_bias': True}
    """
    kind, options = name_and_options(name)
    cls: Any = find_attention(kind)
    label = ', '.join([cls.__name__.removesuffix('Attention'), *options])
    given = config_of(name, landmarks=None)
    known = cls.known_options()
    own = asdict(cls.frame) if issubclass(cls, QKVAttention) else {}
    kept = [] if own_frames else [field for field in SHARED if field not in known]
    if own.get('qkv') == 'shared_qk' and 'qkv' in known and not own_frames:
        kept.append('qkv')  # equal queries and keys belong to the mixing rule
    shared = {}
    if not own_frames:
        for field, value in SHARED.items():
            if field not in kept and field not in given:
                shared[field] = value
    parts = [kind if ':' in kind else cls.__name__, *options]
    parts += [f'{field}={str(value).lower()}' for field, value in shared.items()]
    whole = ', '.join(parts)
    return Candidate(
        label,
        whole,
        config_of(whole, landmarks=None),
        {field: value for field, value in shared.items() if own.get(field, value) != value},
        kept,
    )
