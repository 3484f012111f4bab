"""Compare exported models with the predictions of the toolboxes, on photographs.

First the graph: images of given sizes, as tensors. Then the way of a user: image files, which the
toolbox's inferencer and the deployed command read, prepare and predict for.
"""

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Tuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import DefaultScope
from torch import Tensor

from ..analysis.recording import PHOTOS, photograph, rgb_array, with_channels
from . import image_pipeline
from .deployable import Deployable
from .exporting import least_side
from .inferencers import inferencer_of

if TYPE_CHECKING:
    from PIL import Image

# What may differ at most. Sums are taken in another order, so numbers differ in the last digits of
# fp32, and labels and outlines where two numbers are equal but for these.
TOLERANCES = {'scores': 1e-4, 'logits': 1e-4, 'boxes': 0.05, 'labels': 1e-3, 'masks': 1e-3}
HALF = 100  # as much more for fp16: 2^-11 against 2^-24, less what sums have of it in fp32


def photographs(size: Tuple[int, int], channels: int = 3) -> List[Tensor]:
    """Photographs of scikit-image as pixels ``(1, channels, H, W)``, 0 to 255.

    They are RGB or grey. Of another number of channels, these are red, green, blue, red and so on.
    """
    photos = [photograph(name) for name in PHOTOS]
    if channels == 1:
        photos = [photo.convert('L') for photo in photos]
    return [with_channels(pixels(photo, size), channels) for photo in photos]


def pixels(photo: 'Image.Image', size: Tuple[int, int]) -> Tensor:
    """An image of PIL as RGB pixels ``(1, 3, H, W)``, 0 to 255."""
    return torch.from_numpy(rgb_array(photo, size)).permute(2, 0, 1)[None].contiguous()


def sizes_to_verify(size: Tuple[int, int], multiple: int, dynamic: bool) -> List[Tuple[int, int]]:
    """Sizes to verify: the size of the file, and for a dynamic file a higher and a wider one."""
    least = least_side(multiple) if dynamic else 1
    height, width = (max(side, least) for side in size)
    size = height, width
    sizes = [size, (height + height // 2, width), (height, width + width // 4 + 5)]
    return [
        (-(-high // multiple) * multiple, -(-wide // multiple) * multiple)
        for high, wide in sizes[: 3 if dynamic else 1]
    ]


@torch.no_grad()
def predicted(model: nn.Module, task: str, images: Tensor) -> Dict[str, Tensor]:
    """The toolbox's prediction for an image, by its own preprocessor and its own selection."""
    loaded = images.flip(1) if images.shape[1] == 3 else images  # in colour as BGR
    return PREDICTIONS[task](model.eval(), list(loaded))


def _scores(model: Any, images: list) -> Dict[str, Tensor]:
    batch = model.data_preprocessor(dict(inputs=images))
    return dict(scores=torch.stack([one.pred_score for one in model.predict(batch['inputs'])]))


def _label_map(model: Any, images: list) -> Dict[str, Tensor]:
    from mmseg.structures import SegDataSample

    samples = [SegDataSample(metainfo=_sizes(image)) for image in images]
    (sample,) = model.test_step(dict(inputs=images, data_samples=samples))
    return dict(labels=sample.pred_sem_seg.data, logits=sample.seg_logits.data[None])


def _instances(model: Any, images: list) -> Dict[str, Tensor]:
    from mmdet.structures import DetDataSample

    samples = [DetDataSample(metainfo=_sizes(image)) for image in images]
    (sample,) = model.test_step(dict(inputs=images, data_samples=samples))
    detections = sample.pred_instances
    instances = dict(boxes=detections.bboxes, scores=detections.scores, labels=detections.labels)
    return dict(instances, masks=detections.masks) if 'masks' in detections else instances


def _sizes(image: Tensor) -> dict:
    size = tuple(image.shape[1:])
    return dict(img_shape=size, ori_shape=size, pad_shape=size, scale_factor=(1.0, 1.0))


PREDICTIONS = dict(classification=_scores, segmentation=_label_map, detection=_instances)


def differences(
    form: Deployable, expected: Dict[str, Tensor], found: Dict[str, Tensor]
) -> Dict[str, float]:
    """Differences between a file's outputs and the expected ones, and the number of detections.

    Returns:
        For ``scores``, ``logits`` and ``boxes`` the largest difference; that of logits is a share
        of the largest logit, and that of boxes is in pixels. For ``labels`` and ``masks`` the share
        of pixels that differ. For a detector the number of boxes that are ``expected``, of these
        the number that is ``missing``, and the number of ``extra`` boxes of the file. A box is
        missing if the file has none of its label at most a pixel away.
    """
    if form.task == 'classification':
        return dict(scores=_largest(expected['scores'] - found['scores']))
    if form.task == 'segmentation':
        align = form.model.decode_head.align_corners
        size = expected['labels'].shape[1:]
        logits = F.interpolate(found['logits'], size, mode='bilinear', align_corners=align)
        if logits.shape[1] == 1:  # of which mmseg gives the sigmoid
            logits = logits.sigmoid()
        return dict(
            labels=(expected['labels'] != found['labels']).float().mean().item(),
            logits=_largest(expected['logits'] - logits) / _largest(expected['logits']),
        )
    return _of_instances(form, expected, found)


def _largest(values: Tensor) -> float:
    return values.abs().max().item() if values.numel() else 0.0


def _of_instances(
    form: Deployable, expected: Dict[str, Tensor], found: Dict[str, Tensor]
) -> Dict[str, float]:
    height, width = expected['masks'].shape[1:] if 'masks' in expected else (0, 0)
    ready = image_pipeline.Prepared(
        np.empty(0), (height, width), scale=(1.0, 1.0), original=(height, width)
    )
    arrays = {name: value[0].numpy() for name, value in found.items()}
    ours = image_pipeline.instances(arrays, ready, form.details)
    wanted = {name: value.numpy() for name, value in expected.items()}
    return prediction_differences('detection', wanted, ours)


def too_much(found: Dict[str, float], half: bool) -> Dict[str, float]:
    """Differences beyond their tolerances."""
    factor = HALF if half else 1
    beyond = {
        name: value
        for name, value in found.items()
        # NaN is beyond, too.
        if name in TOLERANCES and not value <= TOLERANCES[name] * factor
    }
    for name in ('missing', 'extra'):
        if found.get(name, 0) > found.get('expected', 0) * (0.1 if half else 0):
            beyond[name] = found[name]
    return beyond


def toolbox_predictions(cfg: Config, model: nn.Module, paths: Iterable[Path]) -> List[dict]:
    """The predictions of the toolbox's inferencer for image files.

    Returns:
        For each image arrays as :func:`image_pipeline.predict` gives them.
    """
    samples = []
    predictions = []
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        inferencer = inferencer_of(copy.deepcopy(cfg), model.eval())
        for path in paths:
            (data,) = inferencer.preprocess([str(path)], batch_size=1)
            if not isinstance(data, dict):  # mmdet's, with the paths beside it
                _, data = data
            samples += inferencer.forward(data)
    for sample in samples:
        if cfg.default_scope == 'mmpretrain':
            prediction = dict(scores=sample.pred_score)
        elif cfg.default_scope == 'mmseg':
            prediction = dict(labels=sample.pred_sem_seg.data[0])
        else:
            instances = sample.pred_instances
            prediction = dict(
                boxes=instances.bboxes, scores=instances.scores, labels=instances.labels
            )
            if 'masks' in instances:
                prediction['masks'] = instances.masks
        predictions.append({name: np.asarray(value) for name, value in prediction.items()})
    return predictions


def photograph_files(folder: Path, about: dict) -> List[Path]:
    """Photographs as files that a deployed file takes: as they are, or of the size that it takes.

    Raises:
        ValueError: If it takes no photograph, whatever its size, or of no format with its channels.
    """
    from PIL import Image

    paths = []
    suffix = '.tif' if about['color'] == 'tifffile' else '.png'
    for name in PHOTOS:
        photo, path = photograph(name), folder / f'{name}{suffix}'
        fixed = about['size'] or photo.size[::-1]
        sizes = [photo.size, fixed[::-1], *((wide, high) for high, wide in _inside(fixed))]
        for size in sizes:
            _write_photograph(photo.resize(size, Image.Resampling.BICUBIC), path, about)
            try:
                image_pipeline.prepare(image_pipeline.read_image(path, about['color']), about)
                break
            except ValueError as error:
                reason = error
        else:
            raise ValueError(f'the file takes no photograph of any size: {reason}')
        paths.append(path)
    return paths


def _write_photograph(photo: 'Image.Image', path: Path, about: dict) -> None:
    """Write a photograph with the channels that a deployed file takes, as its reader has them.

    Raises:
        ValueError: If OpenCV reads no such number of channels.
    """
    channels = len(about['mean'])
    if about['color'] == 'tifffile':
        import tifffile

        bands = np.asarray(photo)[..., [channel % 3 for channel in range(channels)]]
        bands = bands[..., 0] if channels == 1 else bands
        kind = 'rgb' if channels == 3 else 'minisblack'
        options: Dict[str, Any] = dict(planarconfig='contig') if channels > 1 else {}
        tifffile.imwrite(path, bands, photometric=kind, **options)
        return
    if about['color'] != 'unchanged':
        return photo.save(path)
    modes = {1: 'L', 3: 'RGB', 4: 'RGBA'}
    if channels not in modes:
        raise ValueError(
            f'the model takes {channels} channels, and OpenCV reads files of 1, 3 or 4; set '
            "imdecode_backend='tifffile' in LoadImageFromFile"
        )
    photo = photo.convert(modes[channels])
    if channels == 4:
        photo.putalpha(photo.convert('L'))
    photo.save(path)


def _inside(size: Tuple[int, int]) -> List[Tuple[int, int]]:
    """Sizes a little smaller in one direction, as padding goes up to a multiple of 32."""
    height, width = size
    return [(height, width - step) for step in range(1, 32)] + [
        (height - step, width) for step in range(1, 32)
    ]


def in_process(run: Callable, about: dict, paths: Iterable[Path]) -> List[dict]:
    """The predictions of a file that Python runs, for image files."""

    def run_arrays(*inputs: np.ndarray) -> Tuple[np.ndarray, ...]:
        return tuple(value.numpy() for value in run(*map(torch.from_numpy, inputs)))

    images = (image_pipeline.read_image(path, about['color']) for path in paths)
    return [image_pipeline.predict(run_arrays, image, about)[0] for image in images]


def read_predictions(folder: Path, name: str) -> Dict[str, np.ndarray]:
    """The predictions for an image that ``run_onnx.py --out`` wrote."""
    written, picture = folder / f'{name}.json', folder / f'{name}.png'
    predictions = json.loads(written.read_text(encoding='utf-8')) if written.exists() else {}
    masks = [_image_array(folder / mask) > 0 for mask in predictions.pop('masks', ())]
    predictions = {key: np.array(value) for key, value in predictions.items()}
    if picture.exists():
        predictions['labels'] = _image_array(picture)
    elif 'boxes' in predictions:
        predictions['boxes'] = predictions['boxes'].reshape(-1, 4)
        if masks:
            predictions['masks'] = np.stack(masks)
    return predictions


def _image_array(path: Path) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(path))


def prediction_differences(
    task: str, expected: Dict[str, np.ndarray], found: Dict[str, np.ndarray]
) -> Dict[str, float]:
    """Differences of the predictions for an image, named as by :func:`differences`."""
    if task == 'classification':
        return dict(scores=float(np.abs(expected['scores'] - found['scores']).max()))
    if task == 'segmentation':
        return dict(labels=float((expected['labels'] != found['labels']).mean()))
    apart = np.abs(expected['boxes'][:, None] - found['boxes'][None]).max(-1, initial=0)
    apart[expected['labels'][:, None] != found['labels'][None]] = np.inf
    nearest = apart.min(1, initial=np.inf)
    same = nearest <= 1
    result: Dict[str, float] = dict(
        expected=len(same), missing=int((~same).sum()), extra=int((~(apart <= 1).any(0)).sum())
    )
    if not same.any():
        return dict(result, boxes=0.0, scores=0.0)
    index = apart[same].argmin(1)
    result.update(
        boxes=float(nearest[same].max()),
        scores=float(np.abs(expected['scores'][same] - found['scores'][index]).max()),
    )
    if 'masks' in expected and 'masks' in found:
        unlike = expected['masks'][same].astype(bool) != found['masks'][index].astype(bool)
        result['masks'] = float(unlike.mean())
    return result
