"""Whether the heads of a detector or segmentor get maps of the strides that they read."""

from typing import Any, List, Mapping, Optional, Sequence, Tuple

from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from ...config_files import SIDE, maps_without_memory
from ...models import PlainBackbone
from .errors import FirstCheckError, pass_over


def check_maps(cfg: Config) -> None:
    """Check the number of maps that a segmentor's head reads, and the strides. Nothing is computed.

    mmdet's FPN makes as many levels as it is asked for, of a single map too. Then the anchors lie
    on other places of the image than the pixels that they stand for, and training says nothing.

    Args:
        cfg: The config of a run. One whose heads have no strides passes.

    Raises:
        FirstCheckError: With the strides of the maps, and those that the heads read, or with the
            maps that are missing.
    """
    model = cfg.get('model') or {}
    heads, strides = _strides_of(model)
    count = _maps_read_by(model)
    if not (strides or count) or not isinstance(model.get('backbone'), dict):
        return
    try:
        with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            backbone, maps = _sides_of(model)
    except Exception as error:  # any of another project's layers, which builds once more later
        return pass_over(f'maps of the model: {type(error).__name__}: {error}')
    kind = model['backbone'].get('type')
    name = getattr(kind, '__name__', kind)
    fix = 'take a backbone with a map for each level, such as ravlt-tiny'
    if _is_plain(model['backbone']):
        fix = 'put a pyramid behind it by neck=mmlaplace.plain_pyramid(backbone), as in '
        fix += 'configs/heads/plain, or take a backbone with a map for each level'
    if len(maps) < count:
        raise FirstCheckError(
            f'decode_head reads {count} maps, and gets {len(maps)}, as the backbone {name} has '
            f'{len(backbone)}; {fix}'
        )
    if not strides:
        return
    wanted = [SIDE / stride for stride in strides]
    # A heads' stride of 107 is a third of 320, and convolutions round up or down.
    fits = len(maps) >= len(wanted) and all(abs(a - b) <= 1 for a, b in zip(maps, wanted))
    if fits:
        return
    raise FirstCheckError(
        f'{heads} reads maps at strides {_row(strides)}, and gets maps at strides '
        f'{_row(SIDE / side for side in maps)}, as the backbone {name} has {len(backbone)} at '
        f'{_row(SIDE / side for side in backbone)}; {fix}, or set out_indices of the backbone, '
        f'start_level of the neck and the strides of {heads} to each other'
    )


def _maps_read_by(model: Mapping[str, Any]) -> int:
    """How many maps a segmentor's head chooses from, or 0 where that is not known."""
    head = model.get('decode_head')
    index = head.get('in_index') if isinstance(head, dict) else None
    if isinstance(index, (list, tuple)) and all(isinstance(i, int) and i >= 0 for i in index):
        return max(index, default=-1) + 1
    return 0


def _is_plain(backbone: Mapping[str, Any]) -> bool:
    """Whether a backbone is a plain ViT of one map."""
    kind = backbone.get('type')
    cls = MODELS.get(kind) if isinstance(kind, str) else kind
    return isinstance(cls, type) and issubclass(cls, PlainBackbone)


def _row(numbers: Any) -> str:
    return ', '.join(f'{number:.3g}' for number in numbers)


def _strides_of(model: Mapping[str, Any]) -> Tuple[str, Optional[Sequence[float]]]:
    """The first head that names the strides of its maps, and these."""
    for name in ('rpn_head', 'bbox_head', 'decode_head'):
        head = model.get(name)
        if not isinstance(head, dict):
            continue
        anchors = head.get('anchor_generator') or head.get('prior_generator') or {}
        for strides in (
            anchors.get('strides'),
            head.get('strides'),
            head.get('feature_strides'),
        ):
            if strides and all(isinstance(stride, (int, float)) for stride in strides):
                return name, strides
    return '', None


def _sides_of(model: Mapping[str, Any]) -> Tuple[List[int], List[int]]:
    """The sides of the maps of the backbone and of the neck, for an image of ``SIDE`` pixels."""
    given = model.get('neck') or []
    necks = given if isinstance(given, (list, tuple)) else [given]
    of_parts = maps_without_memory(model['backbone'], necks)
    of_backbone, of_neck = ([each.shape[-1] for each in of_parts[i]] for i in (0, -1))
    return of_backbone, of_neck
