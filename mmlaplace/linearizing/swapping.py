"""Put another attention into a backbone with softmax, and keep the weights that fit."""

import copy
import re
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Union

import torch
import torch.nn as nn
from torch import Tensor

from ..models.attentions.base import QKVAttention
from ..models.attentions.frame import QKV_FORMS
from ..models.attentions.scaled_cosine import ScaledCosineAttention
from ..models.attentions.softmax import SoftmaxAttention
from ..models.attentions.window import WindowAttention
from ..models.pyramid import PlainBackbone
from ..models.pyramid.options import attention_class, takes
from .losses import blocks_of

SOFTMAX = (SoftmaxAttention, ScaledCosineAttention)  # and no class that derives from them


# Parts of a block that start anew, by what it inherits.
ANEW = dict(all=(), attention=('ffn',), ffn=('attn',), none=('attn', 'ffn'))


class Kept(NamedTuple):
    """What a new backbone took over from the old one.

    Attributes:
        share: Share of the new backbone's parameters that have the old values.
        new: Names of the tensors that are new, or of which a part is.
    """

    share: float
    new: List[str]


def softmax_places(backbone: Any) -> Dict[str, int]:
    """Names of the softmax attentions of a backbone, each with the number of its stage.

    In Swin and SwinV2 these are the attentions inside of the windows.

    Raises:
        ValueError: If there are none, or a stage has softmax in some of its blocks only.
    """
    places: Dict[str, int] = {}
    for i, stage in enumerate(getattr(backbone, 'stages', ())):
        found = {}
        for j, block in enumerate(stage['blocks']):
            name, attention = f'stages.{i}.blocks.{j}.attn', block.attn
            if isinstance(attention, WindowAttention):
                name, attention = f'{name}.attn', attention.attn
            if type(attention) in SOFTMAX:
                found[name] = i
        if 0 < len(found) < len(stage['blocks']):
            raise ValueError(
                f'stage {i} of {type(backbone).__name__} has softmax in {len(found)} of its '
                f'{len(stage["blocks"])} blocks; leave first_blocks and per_block out of its '
                'attn_cfg'
            )
        places.update(found)
    if not places:
        kinds = {type(m).__name__ for m in backbone.modules() if hasattr(m, 'check_token_map')}
        raise ValueError(
            f'{type(backbone).__name__} has no SoftmaxAttention to replace, only '
            f'{", ".join(sorted(kinds)) or "no attention of mmlaplace"}; take a config with '
            'softmax, such as one of ViT, PVTv2 or Swin'
        )
    return places


def blocks_at(places: Sequence[str], numbers: Collection[int]) -> List[str]:
    """Those of the softmax attentions that have these numbers. A ValueError says which are not."""
    unknown = [n for n in numbers if not 0 <= n < len(places)]
    if unknown:
        raise ValueError(
            f'there is no block {", ".join(map(str, unknown))}; the blocks with softmax are 0 to '
            f'{len(places) - 1}'
        )
    return [place for n, place in enumerate(places) if n in numbers]


def softmax_blocks(places: Sequence[str], numbers: Collection[int]) -> List[str]:
    """Those of the softmax attentions of a backbone that have these numbers from 0.

    Args:
        places: Names of the attentions, as :func:`softmax_places` gives them.
        numbers: The numbers.

    Raises:
        ValueError: If there is no such block, or no other one.
    """
    kept = blocks_at(places, numbers)
    if len(kept) == len(places):
        raise ValueError(
            f'all {len(places)} blocks with softmax are kept, so nothing is left to linearize; '
            'keep fewer'
        )
    return kept


def attention_plan(
    places: Sequence[str], attentions: Sequence[str], options: Optional[dict] = None
) -> Dict[str, dict]:
    """The config of the new attention of each block with softmax that gets one.

    Args:
        places: Names of the softmax attentions, as :func:`softmax_places` gives them.
        attentions: Each is ``NAME``, or ``NAME:BLOCKS`` with numbers from 0 such as ``0-3,5``. One
            name without blocks takes those that no other has.
        options: Options of all of these attentions. Those of one are in a dict under its name.
            Default: none.

    Raises:
        ValueError: If blocks are no numbers, not there, or of two attentions.

    Examples:
        >>> from mmlaplace.linearizing import attention_plan
        >>> attention_plan('abc', ['AgentAttention:0-1', 'MiTAAttention:2'],
        ...                dict(AgentAttention=dict(num_landmarks=16)))['a']
        {'type': 'AgentAttention', 'num_landmarks': 16}
    """
    names = [each.partition(':')[0] for each in attentions]
    shared = {name: value for name, value in (options or {}).items() if name not in names}
    plan: Dict[str, dict] = {}
    for each in sorted(attentions, key=lambda each: ':' not in each):  # that of the rest is last
        name, colon, numbers = each.partition(':')
        taken = [place for place in places if place not in plan]
        if colon:
            spans = [re.fullmatch(r'(\d+)(?:-(\d+))?', span) for span in numbers.split(',')]
            if not all(spans):
                raise ValueError(
                    f'{each!r} must be a name, or a name and blocks such as {name}:0-3,5'
                )
            ranges = [range(int(span[1]), int(span[2] or span[1]) + 1) for span in spans if span]
            taken = blocks_at(places, [n for numbers in ranges for n in numbers])
        twice = [n for n, place in enumerate(places) if place in plan and place in taken]
        if twice or not taken:
            raise ValueError(
                f'{each!r} has the blocks {twice} of another attention; give each block one'
                if twice
                else f'{each!r} gets no block; give it some that no other has'
            )
        own = dict(type=name, **{**shared, **(options or {}).get(name, {})})
        plan.update(dict.fromkeys(taken, own))
    return plan


def linear_config(
    cfg: dict,
    backbone: Any,
    attention: Union[str, Mapping[str, dict]],
    options: Optional[dict] = None,
    keep: Collection[str] = (),
) -> dict:
    """The config of a backbone, with another attention wherever it has softmax.

    Windows, other attentions and all sizes stay as they are. The ``window_size`` of a plain ViT is
    left out, with its ``global_blocks``, if no block that stays has such windows.

    Args:
        cfg: Config of the backbone.
        backbone: The backbone, built of it.
        attention: Name of a registered attention. Or by the names of softmax attentions, the
            config that takes the place of each, as :func:`attention_plan` gives them.
        options: Options of the one attention. Default: none.
        keep: Names of the softmax attentions that stay, of those of :func:`softmax_places`.
            Default: ().

    Raises:
        ValueError: For an unknown attention, softmax itself, an attention that takes no class
            tokens and registers where there are some, or as :func:`softmax_places`.

    Examples:
        >>> from mmengine.registry import MODELS
        >>> from mmlaplace.linearizing import linear_config
        >>> cfg = dict(type='PVTv2', arch='b0')
        >>> linear_config(cfg, MODELS.build(cfg), 'FLattenAttention')['attn_cfg']
        {'type': 'FLattenAttention'}
    """
    places = softmax_places(backbone)
    if isinstance(attention, str):
        attention = dict.fromkeys(places, dict(type=attention, **(options or {})))
    windows = {
        i
        for i, stage in enumerate(backbone.stages)
        if isinstance(stage['blocks'][0].attn, WindowAttention)
    }
    for place, new in attention.items():
        cls = attention_class(new['type'])
        if cls in SOFTMAX or (cls is WindowAttention and places[place] in windows):
            raise ValueError(f'{new["type"]} has softmax itself; choose a linear attention')
        if place not in keep:
            _check_takes_tokens(cls, backbone, places[place])
    whole, changed = range(backbone.num_stages), []
    for i, stage in enumerate(backbone.stages):
        old = _of_stage(cfg.get('attn_cfg'), i, type(stage['blocks'][0].attn))
        each: List[Optional[dict]] = []
        for place in (place for place, number in places.items() if number == i):
            own = None if place in keep or place not in attention else _at(attention[place], i)
            each.append(dict(attn_cfg=own) if own and i in windows else own)
        if not any(each):
            changed.append(old)
        elif any(own != each[0] for own in each):
            changed.append(dict(old or {}, per_block=each))
        else:
            changed.append(dict(old or {}, **(each[0] or {})) if i in windows else each[0])
    changed += [None] * (len(whole) - len(changed))  # stages that are not built
    cfg = copy.deepcopy(dict(cfg))
    one = next(iter(attention.values()))
    cfg['attn_cfg'] = one if changed == [_at(one, i) for i in whole] else changed
    windowed = any(_has_windows(backbone, place, attention, keep) for place in places)
    if isinstance(backbone, PlainBackbone) and not windowed:
        for name in ('window_size', 'global_blocks'):
            cfg.pop(name, None)
    return cfg


def _has_windows(
    backbone: Any, place: str, attention: Mapping[str, dict], keep: Collection[str]
) -> bool:
    """Whether an attention of a plain ViT has windows, and still has them in the new backbone."""
    if not getattr(backbone.get_submodule(place), 'window_size', 0):
        return False
    stays = place in keep or place not in attention
    return stays or takes(attention_class(attention[place]['type']), 'window_size')


def _check_takes_tokens(cls: Any, backbone: Any, stage: int) -> None:
    """Refuse an attention of maps alone for a stage with class tokens or registers."""
    count = backbone.cls_tokens[stage]
    if not count or takes(cls, 'num_prefix_tokens'):
        return
    reason = getattr(cls, 'no_prefix_tokens', 'its class has no such option')
    raise ValueError(
        f'{type(backbone).__name__} has {count} tokens before the map, class tokens or registers, '
        f'which {cls.__name__} does not take: {reason}; choose one that does, such as '
        'FLattenAttention or AgentAttention, or a backbone without such tokens, such as SigLIP'
    )


def _of_stage(attn_cfg: Any, number: int, cls: Any) -> Optional[dict]:
    """The part of an ``attn_cfg`` that changes one stage, whose attention is of a class."""
    if attn_cfg is None or not isinstance(attn_cfg, dict):
        return None if attn_cfg is None else copy.deepcopy(attn_cfg[number])
    known = [*cls.known_options(), 'type', 'first_blocks', 'per_block']
    return {name: v for name, v in _at(attn_cfg, number).items() if name in known} or None


def _at(attn_cfg: dict, number: int) -> dict:
    """A dict of options for one stage, with its values of ``per_stage``."""
    found = {name: value for name, value in attn_cfg.items() if name != 'per_stage'}
    for name, values in (attn_cfg.get('per_stage') or {}).items():
        if number < len(values) and values[number] is not None:
            found[name] = values[number]
    return found


@torch.no_grad()
def keep_weights(
    new: nn.Module, old: nn.Module, places: Dict[str, int], inherit: str = 'all'
) -> Kept:
    """Copy all weights that fit into a new backbone.

    Tensors of the same name and shape are copied. The linears of queries, keys and values are
    copied part by part, also where the two attentions join them otherwise. A gate starts as 1.

    Args:
        new: The new backbone, with initial weights.
        old: The old one.
        places: Names of the attentions that differ, as :func:`softmax_places` gives them.
        inherit: What the blocks of these attentions get from the old ones, beside their norms:
            ``'all'``; ``'attention'`` without the FFNs, which keep their initial weights;
            ``'ffn'`` without the attentions; or ``'none'`` of both. Default: 'all'.

    Raises:
        ValueError: For another ``inherit``.
    """
    if inherit not in ANEW:
        raise ValueError(f'inherit must be one of {", ".join(ANEW)}, got {inherit!r}')
    new_state, old_state = new.state_dict(), old.state_dict()
    starts = tuple(f'{block}.{part}.' for block in blocks_of(places) for part in ANEW[inherit])
    anew = {name: value.clone() for name, value in new_state.items() if name.startswith(starts)}
    # Inside of new windows, an attention has a longer name.
    inner = {
        place: f'{place}.attn' * isinstance(new.get_submodule(place), WindowAttention) or place
        for place in places
    }
    for place, name in inner.items():
        moved = [key for key in old_state if name != place and key.startswith(f'{place}.')]
        old_state.update({name + key[len(place) :]: old_state[key] for key in moved})
    joined = {f'{place}.{name}.' for place in inner.values() for name in ('qkv', 'kv')}
    kept = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in new_state.items()}
    for name, value in new_state.items():
        apart = any(name.startswith(prefix) for prefix in joined)
        if not apart and name in old_state and old_state[name].shape == value.shape:
            value.copy_(old_state[name])
            kept[name][...] = True
    for place, name in inner.items():
        mine, source = new.get_submodule(name), old.get_submodule(place)
        if isinstance(mine, QKVAttention) and isinstance(source, QKVAttention):
            _copy_projections(name, mine, source, new_state, old_state, kept)
    for name, value in anew.items():
        new_state[name].copy_(value)
        kept[name][...] = False
    of_parameters = [kept[name] for name, _ in new.named_parameters()]
    share = sum(int(one.sum()) for one in of_parameters) / sum(one.numel() for one in of_parameters)
    return Kept(share, [name for name, one in kept.items() if not one.all()])


def _copy_projections(
    place: str,
    mine: QKVAttention,
    source: QKVAttention,
    new_state: Dict[str, Tensor],
    old_state: Dict[str, Tensor],
    kept: Dict[str, Tensor],
) -> None:
    for kind in ('weight', 'bias'):
        found = {
            part: old_state[f'{place}.{name}.{kind}'][rows]
            for part, (name, rows) in _rows(source).items()
            if f'{place}.{name}.{kind}' in old_state
        }
        for part, (name, rows) in _rows(mine).items():
            key = f'{place}.{name}.{kind}'
            if key not in new_state:
                continue
            target = new_state[key][rows]
            if part == 'gate' and f'{place}.{name}.bias' in new_state:
                target.fill_(float(kind == 'bias'))
            elif part in found and found[part].shape == target.shape:
                target.copy_(found[part])
                kept[key][rows] = True


def _rows(attention: Any) -> Dict[str, tuple]:
    """For queries, keys, values and gate: the name of the linear, and its rows."""
    frame, dims = attention.frame, attention.dims
    of_tokens, of_map = QKV_FORMS['q_kv' if frame.sr_ratio > 1 else frame.qkv]
    sizes = dict(q=dims.key, k=dims.key, v=dims.value, gate=dims.value)
    found = {}
    for name, parts in (('qkv', [*of_tokens, *['gate'] * frame.gate]), ('kv', [*of_map])):
        start = 0
        for part in parts:
            found[part] = (name, slice(start, start + sizes[part]))
            start += sizes[part]
    return found
