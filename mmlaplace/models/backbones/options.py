"""From what a config says to what is built: sizes, outputs and the attention of each stage."""

import inspect
import re
from dataclasses import replace
from typing import Any, Dict, List, Sequence, Tuple, Union

from mmengine.registry import MODELS
from torch import Tensor

ARCH_KEYS = ('embed_dims', 'depths', 'num_heads', 'ffn_ratios')
OUT_TYPES = ('featmap', 'cls_token')
SET_BY_THE_HOST = ('embed_dims', 'num_heads', 'input_resolution', 'num_prefix_tokens')


def parse_arch(backbone: type, arch: Union[str, dict, None], num_stages: int) -> Dict[str, tuple]:
    """An arch by its name in a zoo, or as a dict, with one entry for each stage in each value.

    Args:
        backbone: Class with ``arch_zoo``, ``default_arch`` and ``renamed_archs``.
        arch: What the user wrote, or None for the default.
        num_stages: Number of the host's stages.

    Raises:
        ValueError: For an unknown name or key, a missing one, or another number of entries.
    """
    arch = backbone.default_arch if arch is None else arch
    if isinstance(arch, str):
        if arch not in backbone.arch_zoo:
            now = backbone.renamed_archs.get(arch)
            hint = f'; it is now {now}' if now else ''
            raise ValueError(
                f'{backbone.__name__} has no arch {arch!r}{hint}; known: '
                f'{list(backbone.arch_zoo)}, or a dict with {ARCH_KEYS}'
            )
        arch = backbone.arch_zoo[arch]
    missing = [key for key in ARCH_KEYS if key not in arch]
    unknown = [key for key in arch if key not in ARCH_KEYS]
    if missing or unknown:
        raise ValueError(
            f'a dict arch has the keys {ARCH_KEYS}; missing: {missing}, unknown: {unknown}'
        )
    for key in ARCH_KEYS:
        values = arch[key]
        if not isinstance(values, (list, tuple)) or len(values) != num_stages:
            raise ValueError(
                f'arch[{key!r}] must have one entry for each of the {num_stages} stages, got '
                f'{values}'
            )
        if min(values) <= 0:
            raise ValueError(f'arch[{key!r}] must be positive in every stage, got {values}')
    return {key: tuple(arch[key]) for key in ARCH_KEYS}


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
            f'out_indices must name stages 0 to {num_stages - 1}, or -{num_stages} to -1 from the '
            f'last, got {out_indices}'
        )
    stages = tuple(i % num_stages for i in given)
    if list(stages) != sorted(set(stages)):
        raise ValueError(
            f'out_indices must rise, as maps are returned from the first stage to the last, got '
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
            f'{drop_path_rate}'
        )
    if out_type not in OUT_TYPES:
        raise ValueError(f'out_type must be one of {OUT_TYPES}, got {out_type!r}')
    having = tuple(i for i, count in enumerate(backbone.cls_tokens) if count)
    if out_type == 'cls_token' and backbone.out_indices != having:
        raise ValueError(
            f"out_type='cls_token' returns the class token of stages {having}, got "
            f'out_indices={backbone.out_indices}; a host without one may take with_cls_token=True. '
            "Dense heads take out_type='featmap'"
        )


def check_images(backbone: Any, x: Tensor) -> None:
    """Raise a ValueError unless ``x`` is ``(B, C, H, W)`` with sides of at least a stride."""
    first = backbone.stage_strides[0]
    if x.dim() != 4 or min(x.shape[-2:]) < first:
        raise ValueError(
            f'{type(backbone).__name__} needs images (B, C, H, W) of at least {first} x {first} '
            f'pixels, got shape {tuple(x.shape)}'
        )


def attention_class(kind: Union[str, type]) -> type:
    """The registered attention of this name, from the registry that the toolboxes share.

    Raises:
        ValueError: If there is none.
    """
    if isinstance(kind, type):
        return kind
    with MODELS.switch_scope_and_registry(None) as registry:
        cls = registry.get(kind)
    if cls is None:
        known = [name for name in MODELS.module_dict if name.endswith('Attention')]
        raise ValueError(
            f'attn_cfg has type={kind!r}, which is not registered; registered here are {known}. '
            'A file with an attention of your own must be imported, see custom_imports'
        )
    return cls


def options_of(cls: type) -> List[str]:
    """Names of the options of an attention, also of one that is not derived from ours."""
    if hasattr(cls, 'known_options'):
        return cls.known_options()
    return [name for name in inspect.signature(cls.__init__).parameters if name != 'self']


def with_attention(stages: Sequence[Any], attn_cfg: Union[dict, Sequence, None]) -> List[Any]:
    """The stages of a host, with the attention that ``attn_cfg`` asks for.

    - A dict without a type, or with the type that a stage has, changes options there:
      ``dict(num_landmarks=100)``. Without a type, an option goes to the stages that have it.
    - A dict with another type replaces the attention and keeps the host's frame:
      ``dict(type='SoftmaxAttention')``.
    - A list has such a dict, or None for no change, for each stage. ``per_stage`` in a dict has
      single options with a value for each stage: ``dict(per_stage=dict(sr_ratio=(8, 4, 2, 1)))``.

    Any other list is a value. The rule holds inside of :class:`WindowAttention` too, for its own
    ``attn_cfg``.

    Raises:
        TypeError: For an option that no attention here has.
        ValueError: For another number of entries than stages, or options that the host sets.

    Examples:
        >>> from mmlaplace.models.backbones import hosts
        >>> from mmlaplace.models.backbones.options import with_attention
        >>> stages = with_attention(hosts.pvt(), dict(per_stage=dict(sr_ratio=(4, 2, 1, 1))))
        >>> [stage.attn['sr_ratio'] for stage in stages]
        [4, 2, 1, 1]
        >>> with_attention(hosts.pvt(), dict(type='XCAttention'))[0].attn
        {'type': 'XCAttention'}
    """
    if attn_cfg is None:
        return list(stages)
    if not isinstance(attn_cfg, dict):
        _check_count('attn_cfg, where it is no dict,', attn_cfg, stages)
        return [_changed(stage, given or {}) for stage, given in zip(stages, attn_cfg)]
    shared = dict(attn_cfg)
    per_stage = shared.pop('per_stage', None) or {}
    for name, values in per_stage.items():
        _check_count(f'attn_cfg.per_stage[{name!r}]', values, stages)
    configs = [dict(shared) for _ in stages]
    if 'type' not in shared:
        classes = [attention_class(stage.attn['type']) for stage in stages]
        for name in shared:
            if not any(name in options_of(cls) for cls in classes):
                for cls in classes:
                    _check_options(cls, {name: shared[name]})
        for cls, config in zip(classes, configs):
            for name in set(config).difference(options_of(cls)):
                del config[name]  # of other stages, such as landmarks beside a softmax stage
    for i, config in enumerate(configs):
        cls = attention_class(config.get('type', stages[i].attn['type']))
        for name, values in per_stage.items():
            # None says that there is nothing to set in a stage without the option.
            if values[i] is not None or name in options_of(cls):
                config[name] = values[i]
    return [_changed(stage, config) for stage, config in zip(stages, configs)]


def _check_count(what: str, values: Any, stages: Sequence[Any]) -> None:
    if not isinstance(values, (list, tuple)) or len(values) != len(stages):
        raise ValueError(
            f'{what} must have one entry for each of the {len(stages)} stages, got {values!r}'
        )


def _changed(stage: Any, given: dict) -> Any:
    """A stage after one dict of options."""
    cls = attention_class(given.get('type', stage.attn['type']))
    options = {name: value for name, value in given.items() if name != 'type'}
    _check_options(cls, options)
    if cls is not attention_class(stage.attn['type']):
        return replace(stage, attn=dict(given), alternate={})
    attn = dict(stage.attn, **given)
    if isinstance(given.get('attn_cfg'), dict) and isinstance(stage.attn.get('attn_cfg'), dict):
        inner = replace(stage, attn=stage.attn['attn_cfg'], frame={}, alternate={})
        attn['attn_cfg'] = _changed(inner, given['attn_cfg']).attn
    alternate = {name: value for name, value in stage.alternate.items() if name not in given}
    return replace(stage, attn=attn, alternate=alternate)


def _check_options(cls: type, options: dict) -> None:
    """Refuse what the host sets, what the attention lacks, and values for several stages."""
    for name in SET_BY_THE_HOST:
        if name in options:
            raise ValueError(
                f'attn_cfg has {name}={options[name]!r}, which the backbone sets itself; give '
                'arch=dict(...), img_size or with_cls_token to the backbone instead'
            )
    if hasattr(cls, 'check_options'):
        cls.check_options(options)
    for name, value in options.items():
        if isinstance(value, (list, tuple)) and not _takes_a_list(cls, name):
            raise ValueError(
                f'{name} of {cls.__name__} is a single value, got {value!r}; one value for each '
                f'stage is attn_cfg=dict(per_stage=dict({name}={value!r}))'
            )


def _takes_a_list(cls: type, name: str) -> bool:
    """Whether an option may be a list or tuple: its annotation says so, or it has none."""
    for base in cls.__mro__:
        parameter = inspect.signature(base.__init__).parameters.get(name)
        if '__init__' in vars(base) and parameter is not None:
            annotation = str(parameter.annotation)
            untold = parameter.annotation is inspect.Parameter.empty
            return untold or re.search('Sequence|Tuple|List|list|tuple', annotation) is not None
    return False  # a field of the frame
