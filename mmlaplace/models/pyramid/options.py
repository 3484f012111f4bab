"""How the ``attn_cfg`` of a backbone reaches the attentions of its stages and blocks."""

import inspect
import types
from dataclasses import replace
from typing import Any, Callable, List, Optional, Sequence, Union, get_args, get_origin

from mmengine.registry import MODELS

from ..known_options import did_you_mean

# Fields of a frame that configure a part, each with the field that turns this part on.
NEEDED = dict(rope_form='rope', rope_on='rope', lepe_filters='lepe_kernel', lepe_bias='lepe_kernel')
SET_BY_THE_HOST = ('embed_dims', 'num_heads', 'input_resolution', 'num_prefix_tokens', 'out_dims')
# No options of an attention: how many blocks of a stage get it, and changes of single blocks.
FIRST_BLOCKS, PER_BLOCK = 'first_blocks', 'per_block'


def attention_class(kind: Union[str, type]) -> Any:
    """The registered attention of this name, from the registry that the toolboxes share.

    Raises:
        ValueError: If there is none.
    """
    if isinstance(kind, type):
        return kind
    if not isinstance(kind, str):
        raise ValueError(f'the type of an attention must be a class or its name, got {kind!r}')
    with MODELS.switch_scope_and_registry(None) as registry:
        cls = registry.get(kind)
    if cls is None:
        known = sorted(
            name
            for name, registered in MODELS.module_dict.items()
            if hasattr(registered, 'check_token_map') or name.endswith('Attention')
        )
        raise ValueError(
            f'attn_cfg has type={kind!r}, which is not registered{did_you_mean(kind, known)}; '
            f'registered are {known}. Import the file of your own attention by custom_imports'
        )
    return cls


def takes(cls: Any, name: str) -> bool:
    """Whether an attention has an option. The class need not derive from :class:`BaseAttention`."""
    if hasattr(cls, 'known_options'):
        return name in cls.known_options()
    parameters = inspect.signature(cls.__init__).parameters
    return name in parameters or any(p.kind == p.VAR_KEYWORD for p in parameters.values())


def with_frame(attn: dict, frame: dict) -> dict:
    """The config of an attention, with those options of a host's frame that the attention has."""
    cls = attention_class(attn['type'])
    known = cls.known_options() if hasattr(cls, 'known_options') else ()
    return {**{name: value for name, value in frame.items() if name in known}, **attn}


def with_attention(stages: Sequence[Any], attn_cfg: Union[dict, Sequence, None]) -> List[Any]:
    """The stages of a host, with the attention that ``attn_cfg`` asks for.

    - A dict without a type, or with the type of a stage's attention, changes options there:
      ``dict(num_landmarks=100)``. Without a type, an option goes to the stages that have it.
    - A dict with another type replaces the attention and keeps the host's frame:
      ``dict(type='SoftmaxAttention')``.
    - A list has such a dict, or None for no change, for each stage. ``per_stage`` in a dict has
      single options with a value for each stage, or None:
      ``dict(per_stage=dict(sr_ratio=(8, 4, 2, 1)))``.

    ``first_blocks=k`` in a dict changes only the first k blocks of each of its stages.
    ``per_block`` has a further dict, or None, for each block of a stage:
    ``dict(per_block=[dict(type='AgentAttention'), None])``.

    Any other list is a value. To set the value None, write it in a dict, such as
    ``dict(num_landmarks=None)``. The same rules hold for the ``attn_cfg`` of
    :class:`WindowAttention`.

    Raises:
        TypeError: For an option that no attention here has.
        ValueError: For another number of entries than stages, options that the host sets,
            ``first_blocks`` without anything else, another number of entries in ``per_block`` than
            blocks, or fields of a frame that have no effect.

    Examples:
        >>> from mmlaplace.models.backbones.pvt import pvt
        >>> from mmlaplace.models.pyramid.options import with_attention
        >>> stages = with_attention(pvt(), dict(per_stage=dict(sr_ratio=(4, 2, 1, 1))))
        >>> [stage.attn['sr_ratio'] for stage in stages]
        [4, 2, 1, 1]
        >>> with_attention(pvt(), dict(type='XCAttention'))[0].attn
        {'type': 'XCAttention'}
    """
    if attn_cfg is None:
        return list(stages)
    changes = changes_by_stage(stages, attn_cfg)
    return [with_changes(stage, change) for stage, change in zip(stages, changes)]


def changes_by_stage(stages: Sequence[Any], attn_cfg: Union[dict, Sequence]) -> List[dict]:
    """The normal form of an ``attn_cfg``: a dict for each stage, ``{}`` for no change."""
    if isinstance(attn_cfg, str):
        raise ValueError(f'attn_cfg must be a dict or a list; write dict(type={attn_cfg!r})')
    if not isinstance(attn_cfg, dict):
        for change in attn_cfg if isinstance(attn_cfg, (list, tuple)) else ():
            _check_first_blocks_change_something(change)
        _check_count('attn_cfg, where it is no dict,', attn_cfg, stages)
        _check_have_attention('attn_cfg', attn_cfg, stages)
        return [{} if change is None else change for change in attn_cfg]
    _check_first_blocks_change_something(attn_cfg)
    shared = {name: value for name, value in attn_cfg.items() if name != 'per_stage'}
    per_stage = attn_cfg.get('per_stage') or {}
    _check_per_stage(per_stage, stages)
    if 'type' in shared:
        changes = [dict(shared) for _ in stages]
    else:
        changes = _share_options(shared, stages)
    for name, values in per_stage.items():
        for change, value in zip(changes, values):
            if value is not None:
                change[name] = value
    if all(set(change) == {FIRST_BLOCKS} for change in changes):
        raise ValueError(
            f'per_stage has {FIRST_BLOCKS!r} alone, which changes nothing; add the type or the '
            'options that the first blocks get'
        )
    return changes


def _share_options(options: dict, stages: Sequence[Any]) -> List[dict]:
    """Options without a type, in each stage those that its attention has.

    An option of some stages, such as landmarks beside a softmax stage, is not for the others.
    """
    classes = [attention_class(stage.attn['type']) if stage.attn else None for stage in stages]
    present = [cls for cls in classes if cls is not None]
    for name, value in options.items():
        if name not in (FIRST_BLOCKS, PER_BLOCK) and not any(takes(cls, name) for cls in present):
            for cls in present:
                _check_options(cls, {name: value})
    changes = []
    for cls in classes:
        change = {}
        for name, value in options.items():
            if name in (FIRST_BLOCKS, PER_BLOCK) or (cls is not None and takes(cls, name)):
                change[name] = value
        changes.append(change)
    return changes


def _check_first_blocks_change_something(change: Any) -> None:
    if isinstance(change, dict) and list(change) == [FIRST_BLOCKS]:
        raise ValueError(
            f'attn_cfg has {change!r} alone, which changes nothing; add the type or the options '
            'that the first blocks get'
        )


def _check_per_stage(per_stage: Any, stages: Sequence[Any]) -> None:
    if not isinstance(per_stage, dict) or 'type' in per_stage:
        raise ValueError(
            f'per_stage must be a dict of options with a list for each option, got {per_stage!r}; '
            'for other attentions in single stages, attn_cfg is a list, such as '
            '[None, dict(type=...), ...]'
        )
    for name, values in per_stage.items():
        _check_count(f'attn_cfg.per_stage[{name!r}]', values, stages)
        _check_have_attention(f'attn_cfg.per_stage[{name!r}]', values, stages)


def _check_count(what: str, values: Any, stages: Sequence[Any]) -> None:
    if not isinstance(values, (list, tuple)) or len(values) != len(stages):
        raise ValueError(
            f'{what} must have one entry for each of the {len(stages)} stages, got {values!r}'
        )


def _check_have_attention(what: str, values: Any, stages: Sequence[Any]) -> None:
    for i, (stage, value) in enumerate(zip(stages, values)):
        if stage.attn is None and value is not None:
            raise ValueError(
                f'{what} has {value!r} for stage {i}, which has no attention; set None there'
            )


def with_changes(stage: Any, change: dict) -> Any:
    """A stage after one dict of the normal form: its options, then those of single blocks."""
    _check_change(change)
    if stage.attn is None:
        return stage
    options = {k: v for k, v in change.items() if k not in (FIRST_BLOCKS, PER_BLOCK)}
    changed = _with_options(stage, options)
    if PER_BLOCK in change:
        by_block = [
            None if block is None else with_changes(changed, block) for block in change[PER_BLOCK]
        ]
        changed = replace(changed, attn_in_blocks=_in_each_block(changed, by_block))
    if FIRST_BLOCKS in change:
        attn_in_blocks = _in_first_blocks(changed, stage, change[FIRST_BLOCKS])
        changed = replace(changed, attn_in_blocks=attn_in_blocks)
    return changed


def _check_change(change: Any) -> None:
    if not isinstance(change, dict):
        raise ValueError(
            "the config of an attention must be a dict, such as dict(type='PolaAttention'), got "
            f'{change!r}'
        )
    count = change.get(FIRST_BLOCKS, 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f'{FIRST_BLOCKS} must be a positive number of blocks, got {count!r}')
    blocks = change.get(PER_BLOCK, [])
    if not isinstance(blocks, (list, tuple)):
        raise ValueError(
            f'{PER_BLOCK} must be a list with a dict or None for each block of a stage, got '
            f'{blocks!r}'
        )


def _with_options(stage: Any, options: dict) -> Any:
    """A stage whose attention has another type, or other options."""
    present = attention_class(stage.attn['type'])
    cls = attention_class(options.get('type', present))
    kept = stage.attn if cls is present else {}
    _check_options(cls, options)
    attn = {**kept, **options}
    if getattr(cls, 'default_attn_cfg', None) is not None:  # an attention around another one
        start = replace(stage, attn=kept.get('attn_cfg') or cls.default_attn_cfg)
        inside = options.get('attn_cfg') or {}
        for name in (FIRST_BLOCKS, PER_BLOCK):
            if isinstance(inside, dict) and name in inside:
                raise ValueError(
                    f'{name}={inside[name]!r} has no effect in the attn_cfg of a {cls.__name__}; '
                    'write it beside that attn_cfg'
                )
        attn['attn_cfg'] = with_frame(with_changes(start, inside).attn, stage.frame)
    changed = replace(stage, attn=attn)
    _check_effect(changed, cls, options)
    return changed


def _in_each_block(stage: Any, by_block: Sequence[Any]) -> Callable[[dict, int], List]:
    """As ``attn_in_blocks``: those of a stage, or of the changed stage that a block has for it."""

    def attn_in_blocks(attn: dict, depth: int) -> List[Optional[dict]]:
        if len(by_block) != depth:
            raise ValueError(
                f'{PER_BLOCK} must have one entry for each of the {depth} blocks of its stage, got '
                f'{len(by_block)}; with several stages, attn_cfg is a list of dicts with such lists'
            )
        attns = list(stage.attn_in_blocks(attn, depth))
        for j, changed in enumerate(by_block):
            if changed is None:
                continue
            if attns[j] is None:
                raise ValueError(
                    f'{PER_BLOCK} has {changed.attn!r} for block {j}, which has no attention; set '
                    'None there'
                )
            attns[j] = changed.attn_in_blocks(changed.attn, depth)[j]
        return attns

    return attn_in_blocks


def _in_first_blocks(changed: Any, stage: Any, count: int) -> Callable[[dict, int], List]:
    """As ``attn_in_blocks``: of the blocks with attentions, the first are those of ``changed``."""

    def attn_in_blocks(attn: dict, depth: int) -> List[Optional[dict]]:
        attns = list(changed.attn_in_blocks(attn, depth))
        unchanged = stage.attn_in_blocks(stage.attn, depth)
        attended = [j for j in range(depth) if attns[j] is not None]
        for j in attended[count:]:
            attns[j] = unchanged[j]
        return attns

    return attn_in_blocks


def _check_options(cls: Any, options: dict) -> None:
    """Refuse options of the host, unknown options, and values for several stages."""
    names = [name for name in options if name != 'type']
    for name in SET_BY_THE_HOST:
        if name in names:
            raise ValueError(
                f'attn_cfg has {name}={options[name]!r}, which the backbone sets itself; give '
                'arch=dict(...), img_size or with_cls_token to the backbone instead'
            )
    if hasattr(cls, 'check_options'):
        cls.check_options(names, hidden=SET_BY_THE_HOST)
    unknown = [name for name in names if not takes(cls, name)]
    if unknown:
        known = [name for name in inspect.signature(cls.__init__).parameters if name != 'self']
        raise TypeError(
            f'{cls.__name__} has no option {", ".join(map(repr, unknown))}'
            f'{did_you_mean(unknown[0], known)}; its options are {", ".join(known)}'
        )
    for name in names:
        value = options[name]
        if isinstance(value, (list, tuple)) and _is_single(cls, name):
            raise ValueError(
                f'{name} of {cls.__name__} must be a single value, got {value!r}; for one value '
                f'in each stage, give attn_cfg=dict(per_stage=dict({name}={value!r}))'
            )


def _check_effect(stage: Any, cls: type, options: dict) -> None:
    """Refuse fields of a frame that configure a part which another field turns off."""
    frame = getattr(cls, 'frame', None)
    for name, needed in NEEDED.items():
        if name in options and frame is not None:
            default = stage.frame.get(needed, getattr(frame, needed))
            if not stage.attn.get(needed, default):
                raise ValueError(
                    f'{name}={options[name]!r} has no effect without {needed}; give {needed} too, '
                    f'or leave {name} out'
                )


def _is_single(cls: Any, name: str) -> bool:
    """Whether an option is a number, a word or a truth value, by its annotation or its default."""
    for base in cls.__mro__:
        if name in vars(base).get('kwargs_options', ()):
            return True  # a field of the frame
        parameter = inspect.signature(base.__init__).parameters.get(name)
        if '__init__' in vars(base) and parameter is not None:
            annotation = parameter.annotation
            if annotation is inspect.Parameter.empty:
                return isinstance(parameter.default, (bool, int, float, str))
            is_union = get_origin(annotation) in (Union, getattr(types, 'UnionType', Union))
            kinds = get_args(annotation) if is_union else (annotation,)
            return all(kind in (bool, int, float, str, type(None)) for kind in kinds)
    return False
