"""Whether the heads of a detector or segmentor get maps of the strides that they read."""

from typing import Any, List, Mapping, Optional, Sequence, Tuple

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope

from ...toolboxes import image_channels
from .errors import FirstCheckError, pass_over

SIDE = 448  # of an image that patches of 14 and of 32 pixels divide


def check_maps(cfg: Config) -> None:
    """Check the strides of the maps after the neck. Nothing is computed.

    mmdet's FPN makes as many levels as it is asked for, of a single map too. Then the anchors lie
    on other places of the image than the pixels that they stand for, and training says nothing.

    Args:
        cfg: The config of a run. One whose heads have no strides passes.

    Raises:
        FirstCheckError: With the strides of the maps, and those that the heads read.
    """
    model = cfg.get('model') or {}
    heads, strides = _strides_of(model)
    if not strides or not isinstance(model.get('backbone'), dict):
        return
    try:
        with DefaultScope.overwrite_default_scope(cfg.get('default_scope')):
            backbone, maps = _sides_of(model)
    except Exception as error:  # any of another project's layers, which builds once more later
        return pass_over(f'maps of the model: {type(error).__name__}: {error}')
    wanted = [SIDE / stride for stride in strides]
    # A heads' stride of 107 is a third of 320, and convolutions round up or down.
    fits = len(maps) >= len(wanted) and all(abs(a - b) <= 1 for a, b in zip(maps, wanted))
    if fits:
        return
    kind = model['backbone'].get('type')
    raise FirstCheckError(
        f'{heads} reads maps at strides {_row(strides)}, and gets maps at strides '
        f'{_row(SIDE / side for side in maps)}, as the backbone {getattr(kind, "__name__", kind)} '
        f'has {len(backbone)} at {_row(SIDE / side for side in backbone)}; take a backbone with a '
        'map for each level, such as ravlt-tiny, or set out_indices of the backbone, start_level '
        f'of the neck and the strides of {heads} to each other'
    )


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
    backbone = {key: value for key, value in model['backbone'].items() if key != 'init_cfg'}
    with torch.device('meta'), torch.no_grad():
        image = torch.empty(1, image_channels(backbone), SIDE, SIDE)
        maps = MODELS.build(backbone).eval()(image)
        of_backbone = [each.shape[-1] for each in maps]
        if model.get('neck'):
            necks = model['neck'] if isinstance(model['neck'], (list, tuple)) else [model['neck']]
            for neck in necks:
                maps = MODELS.build(neck).eval()(maps)
    return of_backbone, [each.shape[-1] for each in maps]
