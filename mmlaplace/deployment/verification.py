"""Compare exported models with the predictions of the toolboxes, on photographs."""

from typing import TYPE_CHECKING, Any, Dict, List, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from mmlaplace.analysis.recording import PHOTOS, photograph, rgb_array
from mmlaplace.deployment.deployable import Deployable
from mmlaplace.deployment.exporting import least_side

if TYPE_CHECKING:
    from PIL import Image

# What may differ at most. Sums are taken in another order, so numbers differ in the last digits of
# fp32, and labels and outlines where two numbers are equal but for these.
TOLERANCES = {'scores': 1e-4, 'logits': 1e-4, 'boxes': 0.05, 'labels': 1e-3, 'masks': 1e-3}
HALF = 100  # as much more for fp16: 2^-11 against 2^-24, less what sums have of it in fp32


def photographs(size: Tuple[int, int]) -> List[Tensor]:
    """Photographs of scikit-image as RGB pixels ``(1, 3, H, W)``, 0 to 255."""
    return [pixels(photograph(name), size) for name in PHOTOS]


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
    return PREDICTIONS[task](model.eval(), list(images.flip(1)))  # as loaded, BGR


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
    found = sample.pred_instances
    instances = dict(boxes=found.bboxes, scores=found.scores, labels=found.labels)
    return dict(instances, masks=found.masks) if 'masks' in found else instances


def _sizes(image: Tensor) -> dict:
    size = tuple(image.shape[1:])
    return dict(img_shape=size, ori_shape=size, pad_shape=size, scale_factor=(1.0, 1.0))


PREDICTIONS = dict(classification=_scores, segmentation=_label_map, detection=_instances)


def differences(
    form: Deployable, expected: Dict[str, Tensor], found: Dict[str, Tensor]
) -> Dict[str, float]:
    """Differences between a file's outputs and the expected ones, and the number of detections.

    Returns:
        Largest differences of ``scores``, of ``logits`` as a share of the largest logit, and of
        ``boxes`` in pixels. Shares of pixels that differ, of ``labels`` and of ``masks``. Of a
        detector how many are ``expected`` and how many of these are ``missing``: the file has no
        box of their label at most a pixel away.
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
    real = found['scores'][0] > 0
    found = {name: values[0][real] for name, values in found.items()}
    apart = (expected['boxes'][:, None] - found['boxes'][None]).abs().amax(-1)
    apart = apart.masked_fill(expected['labels'][:, None] != found['labels'][None], torch.inf)
    nearest, index = (
        apart.min(1) if apart.shape[1] else (apart.new_full(apart.shape[:1], torch.inf), None)
    )
    same = nearest <= 1
    result = dict(expected=len(same), missing=int((~same).sum()), boxes=_largest(nearest[same]))
    if not same.any():
        return dict(result, scores=0.0)
    assert index is not None  # there are boxes, as some are near
    index = index[same]
    result['scores'] = _largest(expected['scores'][same] - found['scores'][index])
    if 'masks' in expected:
        height, width = expected['masks'].shape[1:]
        ours = paste(found['masks'][index], found['boxes'][index], (height, width))
        ours = ours >= form.model.test_cfg.rcnn.mask_thr_binary
        result['masks'] = (ours != expected['masks'][same]).float().mean().item()
    return result


def paste(masks: Tensor, boxes: Tensor, size: Tuple[int, int]) -> Tensor:
    """Masks ``(n, h, w)`` of boxes in images ``(n, H, W)``, resized bilinearly."""
    left, top, right, bottom = boxes[:, :, None].unbind(1)
    rows, columns = (torch.arange(side).to(boxes) + 0.5 for side in size)
    y = (rows - top) / (bottom - top) * 2 - 1  # -1 and 1 are the borders of the box
    x = (columns - left) / (right - left) * 2 - 1
    shape = (len(boxes), *size)
    grid = torch.stack((x[:, None].expand(shape), y[:, :, None].expand(shape)), -1)
    return F.grid_sample(masks[:, None], grid, align_corners=False)[:, 0]


def too_much(found: Dict[str, float], half: bool) -> Dict[str, float]:
    """Differences beyond their tolerances."""
    factor = HALF if half else 1
    beyond = {
        name: value
        for name, value in found.items()
        # NaN is beyond, too.
        if name in TOLERANCES and not value <= TOLERANCES[name] * factor
    }
    if found.get('missing', 0) > found.get('expected', 0) * (0.1 if half else 0):
        beyond['missing'] = found['missing']
    return beyond
