"""The test pipeline of a config, as steps that :mod:`~mmlaplace.deployment.image_pipeline` has."""

import copy
import math
from typing import Any, Callable, Dict, List, Optional, Set

import numpy as np
from mmengine.config import Config
from mmengine.registry import TRANSFORMS, DefaultScope

from .deployable import NotDeployableError
from .image_pipeline import CV2, PILLOW, READERS, STEPS, Size, carried_out, of_size

TOOLBOXES = ('mmcv', 'mmpretrain', 'mmdet', 'mmseg')
# They load annotations, or pack what there is.
WITHOUT_EFFECT = ('LoadAnnotations', 'PackInputs', 'PackDetInputs', 'PackSegInputs')
LOADER = 'LoadImageFromFile'
# Photographs of all kinds: wide, high, square and small.
EXAMPLES = ((480, 640), (640, 480), (512, 512), (300, 1000), (1000, 300), (97, 131), (40, 40))


def test_pipeline_of(cfg: Config) -> List[dict]:
    """The list of transforms by which the toolboxes' inferencers prepare an image.

    Raises:
        NotDeployableError: If the config has none.
    """
    dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
    if not dataset.get('pipeline'):
        raise NotDeployableError(
            'the config has no test_dataloader.dataset.pipeline, by which images are prepared; '
            'export with the whole config of the training'
        )
    return dataset['pipeline']


def type_of(step: dict) -> str:
    """The name of a transform's class, without its toolbox."""
    kind = step['type']
    return str(getattr(kind, '__name__', kind)).split('.')[-1]


def check_channels(channels: int, color: str) -> None:
    """Raise a NotDeployableError unless images have the channels of a model.

    Args:
        channels: Of the model's first convolution.
        color: How images are read, of :func:`described_pipeline`.
    """
    wanted = {1: 'grayscale', 3: 'color'}.get(channels, 'unchanged')
    as_many_as_the_file = ('unchanged', 'tifffile')
    if color != wanted and color not in as_many_as_the_file:
        raise NotDeployableError(
            f'the backbone has in_channels={channels}, and LoadImageFromFile of the test pipeline '
            f'has color_type={color!r}; set color_type={wanted!r} there'
        )


def described_pipeline(cfg: Config) -> Dict[str, Any]:
    """The test pipeline of a config, for the metadata of a file.

    Returns:
        ``pipeline``, the steps that change the image, and ``color``, how it is read.

    Raises:
        NotDeployableError: For a transform or an option that the file's user cannot carry out. The
            message names it.
    """
    steps: List[dict] = []
    color = 'color'
    as_float = False
    for number, written in enumerate(test_pipeline_of(cfg)):
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            transform = TRANSFORMS.build(copy.deepcopy(written))
        name = type(transform).__name__
        if name == LOADER and number == 0:
            color = _loaded(transform)
            as_float = transform.to_float32
            if as_float:
                steps.append(dict(type='ToFloat32'))
        elif name not in WITHOUT_EFFECT:
            if type(transform).__module__.split('.')[0] not in TOOLBOXES or name not in DESCRIBED:
                raise _refused(transform, f'only {", ".join(DESCRIBED)} can')
            # mmseg then resizes logits to the size from before, which the sample still names.
            changed_before = any(step['type'] in ('Pad', 'CenterCrop') for step in steps)
            if cfg.default_scope == 'mmseg' and name == 'Resize' and changed_before:
                raise _refused(transform, 'in mmseg Resize must precede Pad and CenterCrop')
            steps.append(DESCRIBED[name](transform))
            if as_float and steps[-1].get('backend') == 'pillow':
                raise _refused(
                    transform,
                    'set to_float32=False in LoadImageFromFile, as Pillow resizes whole numbers',
                )
    return dict(pipeline=steps, color=color)


def _loaded(transform: Any) -> str:
    """How images are read."""
    if transform.imdecode_backend == 'tifffile':  # for which color_type has no effect
        return 'tifffile'
    if transform.imdecode_backend != 'cv2' or transform.color_type not in READERS:
        raise _refused(
            transform,
            f"imdecode_backend must be 'cv2' or 'tifffile', and color_type one of {tuple(READERS)}",
        )
    return transform.color_type


def _refused(transform: Any, reason: str) -> NotDeployableError:
    return NotDeployableError(
        f'the test pipeline has {transform}, which a deployed file cannot carry out: {reason}; '
        'change test_dataloader.dataset.pipeline in the config'
    )


def _how(transform: Any, backend: Optional[str] = None) -> Dict[str, str]:
    """Interpolation and library of a transform that resizes."""
    backend = backend or transform.backend
    interpolation = transform.interpolation or 'bilinear'
    known = dict(cv2=tuple(CV2), pillow=PILLOW).get(backend)
    if known is None or interpolation not in known:
        raise _refused(
            transform,
            f"interpolation with backend 'cv2' must be one of {tuple(CV2)}, "
            f"and with 'pillow' one of {PILLOW}",
        )
    return dict(interpolation=interpolation, backend=backend)


def _pixels(transform: Any, name: str) -> Any:
    """An option of one or several numbers of pixels, as integers."""
    written = getattr(transform, name)
    sides = list(written) if isinstance(written, (tuple, list)) else [written]
    # Also of a float, as toolboxes resize to 100.5 or to infinity if they keep the ratio.
    if not all(isinstance(side, (int, float)) and side > 0 and side % 1 == 0 for side in sides):
        raise _refused(transform, f'{name}={written!r} must be of whole numbers above 0')
    sides = [int(side) for side in sides]
    return sides if isinstance(written, (tuple, list)) else sides[0]


def _resize(transform: Any) -> dict:
    if transform.scale is not None:
        keep = bool(transform.keep_ratio)
        scale = _pixels(transform, 'scale')
        return dict(type='Resize', scale=scale, keep_ratio=keep, **_how(transform))
    if transform.keep_ratio:
        raise _refused(transform, 'scale_factor goes with keep_ratio=False')
    factor = [float(one) for one in transform.scale_factor]
    if not all(0 < one < math.inf for one in factor):
        raise _refused(transform, f'scale_factor={transform.scale_factor} must be above 0')
    return dict(type='ResizeBy', factor=factor, **_how(transform))


def _resize_edge(transform: Any) -> dict:
    scale = _pixels(transform, 'scale')
    return dict(type='ResizeEdge', scale=scale, edge=transform.edge, **_how(transform))


def _resize_to_multiple(transform: Any) -> dict:
    divisor = _pixels(transform, 'size_divisor')
    return dict(type='ResizeToMultiple', size_divisor=divisor, **_how(transform, 'cv2'))


def _center_crop(transform: Any) -> dict:
    pad = None
    if transform.auto_pad:
        # The size is that of the crop.
        pad = _pad(TRANSFORMS.build({**transform.pad_cfg, 'size': (1, 1), 'size_divisor': None}))
        del pad['type']
    return dict(type='CenterCrop', crop_size=_pixels(transform, 'crop_size'), pad=pad)


def _efficientnet_crop(transform: Any) -> dict:
    return dict(
        type='EfficientNetCenterCrop',
        crop_size=_pixels(transform, 'crop_size'),
        crop_padding=transform.crop_padding,
        **_how(transform),
    )


def _pad(transform: Any) -> dict:
    value = transform.pad_val.get('img', 0)
    value = list(value) if isinstance(value, (tuple, list)) else value
    return dict(
        type='Pad',
        size=None if transform.size is None else _pixels(transform, 'size'),
        size_divisor=(
            None if transform.size_divisor is None else _pixels(transform, 'size_divisor')
        ),
        square=bool(transform.pad_to_square),
        value=value,
        mode=transform.padding_mode,
    )


# By the name of the transform in mmcv, mmpretrain, mmdet and mmseg.
DESCRIBED: Dict[str, Callable[[Any], dict]] = {
    'Resize': _resize,
    'ResizeEdge': _resize_edge,
    'ResizeToMultiple': _resize_to_multiple,
    'CenterCrop': _center_crop,
    'EfficientNetCenterCrop': _efficientnet_crop,
    'Pad': _pad,
}
assert set(DESCRIBED) <= set(STEPS)


def sizes_made(pipeline: List[dict]) -> Set[Size]:
    """The sizes that a pipeline makes of photographs of several sizes, without those it refuses."""
    sizes = set()
    for size in EXAMPLES:
        try:
            image, _ = carried_out(np.zeros((*size, 3), np.uint8), pipeline)
        except ValueError:  # a step that pads to less
            continue
        sizes.add(image.shape[:2])
    return sizes


def with_resize(cfg: Config, size: Size) -> Config:
    """The config with a test pipeline that resizes images to a size and does no more.

    The interpolation is that of the pipeline's own resizing.
    """
    *_, resize = of_size(described_pipeline(cfg), size)['pipeline']
    cfg = copy.deepcopy(cfg)
    kept = []
    for written in test_pipeline_of(cfg):
        if type_of(written) not in DESCRIBED:
            kept.append(written)
    after_loading = sum(1 for written in kept[:1] if LOADER in type_of(written))
    kept.insert(after_loading, resize)
    dataset = cfg.test_dataloader.dataset
    dataset.pipeline = kept
    return cfg
