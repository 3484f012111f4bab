"""Reads the options of a config: sizes, outputs and the attention of each stage."""

import inspect
import types
from dataclasses import replace
from typing import Any, Dict, List, Sequence, Tuple, Union, get_args, get_origin

from mmengine.registry import MODELS

from ..known_options import did_you_mean
from .per_block import FIRST_BLOCKS, PER_BLOCK, check_list, in_each_block, in_first_blocks

ARCH_KEYS = ('embed_dims', 'depths', 'num_heads', 'ffn_ratios')
OUT_TYPES = ('featmap', 'cls_token')
# Fields of a frame that configure a part, each with the field that turns this part on.
NEEDED = dict(rope_form='rope', rope_on='rope', lepe_filters='lepe_kernel', lepe_bias='lepe_kernel')
SET_BY_THE_HOST = ('embed_dims', 'num_heads', 'input_resolution', 'num_prefix_tokens', 'out_dims')


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
    total = sum(depths)
    rates = iter([last * i / max(total - 1, 1) for i in range(total)])
    return [[next(rates) for _ in range(depth)] for depth in depths]


def parse_out_indices(
    out_indices: Union[int, Sequence[int], None], num_stages: int
) -> Tuple[int, ...]:
    """The stages to return, each by its number from 0. None stands for all of them.

    Raises:
        ValueError: For a stage that does not exist, or stages that do not rise.
    """
    if out_indices is None:
        return tuple(range(num_stages))
    given = (out_indices,) if isinstance(out_indices, int) else tuple(out_indices)
    if not given or not all(isinstance(i, int) and -num_stages <= i < num_stages for i in given):
        raise ValueError(
            f'out_indices must be stages from 0 to {num_stages - 1}, or from -{num_stages} to -1, '
            f'where -1 is the last, got {out_indices}'
        )
    stages = tuple(i % num_stages for i in given)
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
    layers = getattr(backbone, 'class_layers', False)  # of class attention after the blocks
    having = tuple(i for i, count in enumerate(backbone.cls_tokens) if count or layers)
    if out_type == 'cls_token' and backbone.out_indices != having:
        needs = f'needs out_indices={having}, the stages with a class token'
        if not having:
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
    pair = isinstance(sides, (list, tuple)) and len(sides) == 2
    if not pair or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ValueError(
            'img_size must be a positive number of pixels, or two for height and width, got '
            f'{img_size!r}'
        )
    if not (out_norms is None or isinstance(out_norms, (bool, dict))):
        raise ValueError(
            "out_norms must be True, False, None or a config such as dict(type='BN'), got "
            f'{out_norms!r}'
        )


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
        ours = {name for name, c in MODELS.module_dict.items() if hasattr(c, 'check_token_map')}
        known = sorted(ours | {name for name in MODELS.module_dict if name.endswith('Attention')})
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
    if isinstance(attn_cfg, str):
        raise ValueError(f'attn_cfg must be a dict or a list; write dict(type={attn_cfg!r})')
    for given in attn_cfg if isinstance(attn_cfg, (list, tuple)) else [attn_cfg]:
        if isinstance(given, dict) and list(given) == [FIRST_BLOCKS]:
            raise ValueError(
                f'attn_cfg has {given!r} alone, which changes nothing; add the type or the options '
                'that the first blocks get'
            )
    if not isinstance(attn_cfg, dict):
        _check_count('attn_cfg, where it is no dict,', attn_cfg, stages)
        _check_have_attention('attn_cfg', attn_cfg, stages)
        return [_changed(stage, {} if own is None else own) for stage, own in zip(stages, attn_cfg)]
    shared = dict(attn_cfg)
    per_stage = shared.pop('per_stage', None) or {}
    if not isinstance(per_stage, dict) or 'type' in per_stage:
        raise ValueError(
            f'per_stage must be a dict of options with a list for each option, got {per_stage!r}; '
            'for other attentions in single stages, attn_cfg is a list, such as '
            '[None, dict(type=...), ...]'
        )
    for name, values in per_stage.items():
        _check_count(f'attn_cfg.per_stage[{name!r}]', values, stages)
        _check_have_attention(f'attn_cfg.per_stage[{name!r}]', values, stages)
    configs = [dict(shared) for _ in stages]
    if 'type' not in shared:
        classes = [attention_class(stage.attn['type']) if stage.attn else None for stage in stages]
        having = [cls for cls in classes if cls is not None]
        for name in set(shared) - {FIRST_BLOCKS, PER_BLOCK}:
            if not any(takes(cls, name) for cls in having):
                for cls in having:
                    _check_options(cls, {name: shared[name]})
        # An option of some stages, such as landmarks beside a softmax stage, is not for the others.
        configs = [
            {
                k: v
                for k, v in config.items()
                if k in (FIRST_BLOCKS, PER_BLOCK) or (cls and takes(cls, k))
            }
            for cls, config in zip(classes, configs)
        ]
    for i, config in enumerate(configs):
        config.update({name: own[i] for name, own in per_stage.items() if own[i] is not None})
    if all(set(config) == {FIRST_BLOCKS} for config in configs):
        raise ValueError(
            f'per_stage has {FIRST_BLOCKS!r} alone, which changes nothing; add the type or the '
            'options that the first blocks get'
        )
    return [_changed(stage, config) for stage, config in zip(stages, configs)]


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


def _changed(stage: Any, given: dict) -> Any:
    """A stage after one dict of options."""
    if not isinstance(given, dict):
        raise ValueError(
            "the config of an attention must be a dict, such as dict(type='PolaAttention'), got "
            f'{given!r}'
        )
    if stage.attn is None:
        return stage
    if FIRST_BLOCKS in given:
        count = given[FIRST_BLOCKS]
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f'{FIRST_BLOCKS} must be a positive number of blocks, got {count!r}')
        rest = {name: value for name, value in given.items() if name != FIRST_BLOCKS}
        changed = _changed(stage, rest)
        return replace(changed, attn_in_blocks=in_first_blocks(changed, stage, count))
    if PER_BLOCK in given:
        changed = _changed(stage, {k: v for k, v in given.items() if k != PER_BLOCK})
        blocks = check_list(given[PER_BLOCK])
        each = [None if options is None else _changed(changed, options) for options in blocks]
        return replace(changed, attn_in_blocks=in_each_block(changed, each))
    present = attention_class(stage.attn['type'])
    cls = attention_class(given.get('type', present))
    options = {name: value for name, value in given.items() if name != 'type'}
    _check_options(cls, options)
    attn = dict(stage.attn if cls is present else {}, **given)
    default = getattr(cls, 'default_attn_cfg', None)
    if default is not None:  # an attention around another one
        inside = stage.attn.get('attn_cfg') if cls is present else None
        own = given.get('attn_cfg') or {}
        for name in (FIRST_BLOCKS, PER_BLOCK):
            if name in own:
                raise ValueError(
                    f'{name}={own[name]!r} has no effect in the attn_cfg of a {cls.__name__}; '
                    'write it beside that attn_cfg'
                )
        inner = _changed(replace(stage, attn=inside or default), own)
        attn['attn_cfg'] = with_frame(inner.attn, stage.frame)
    changed = replace(stage, attn=attn)
    _check_effect(changed, cls, options)
    return changed


def _check_options(cls: Any, options: dict) -> None:
    """Refuse options of the host, unknown options, and values for several stages."""
    for name in SET_BY_THE_HOST:
        if name in options:
            raise ValueError(
                f'attn_cfg has {name}={options[name]!r}, which the backbone sets itself; give '
                'arch=dict(...), img_size or with_cls_token to the backbone instead'
            )
    if hasattr(cls, 'check_options'):
        cls.check_options(options, hidden=SET_BY_THE_HOST)
    unknown = [name for name in options if not takes(cls, name)]
    if unknown:
        known = [name for name in inspect.signature(cls.__init__).parameters if name != 'self']
        raise TypeError(
            f'{cls.__name__} has no option {", ".join(map(repr, unknown))}'
            f'{did_you_mean(unknown[0], known)}; its options are {", ".join(known)}'
        )
    for name, value in options.items():
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
