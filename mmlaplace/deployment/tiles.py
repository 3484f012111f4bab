"""Large images in tiles: where these lie, and what is found in all of them as that of an image."""

from importlib import import_module
from typing import Any, List, Sequence, Tuple

import numpy as np
import torch
from mmengine.registry import DefaultScope
from torch import nn


class TileError(ValueError):
    """Tiles that do not fit an image. The message has both sizes and the fix."""


def tile_starts(side: int, tile: int, overlap: int) -> List[int]:
    """Where tiles begin along a side, in pixels. The last one ends with the image.

    Args:
        side: The image's.
        tile: That of a tile.
        overlap: Pixels that two neighbours share at least.

    Raises:
        TileError: If a tile is larger than the image, or not larger than the overlap.

    Examples:
        >>> from mmlaplace.deployment.tiles import tile_starts
        >>> tile_starts(2500, 1024, 128)
        [0, 738, 1476]
    """
    if tile > side:
        raise TileError(
            f'a tile of {tile} pixels is larger than a side of {side} pixels; take a tile of at '
            f'most {side}, or leave this image whole'
        )
    if not 0 <= overlap < tile:
        raise TileError(
            f'an overlap of {overlap} pixels does not fit a tile of {tile}; take one from 0 to '
            f'{tile - 1}'
        )
    count = 1 + -(-(side - tile) // (tile - overlap))
    return [round(number * (side - tile) / max(1, count - 1)) for number in range(count)]


def tile_corners(shape: Tuple[int, int], tile: int, overlap: int) -> List[Tuple[int, int]]:
    """The upper left corners ``(top, left)`` of square tiles that cover an image ``(H, W)``."""
    height, width = shape
    return [
        (top, left)
        for top in tile_starts(height, tile, overlap)
        for left in tile_starts(width, tile, overlap)
    ]


def detect_in_tiles(
    model: nn.Module,
    image: np.ndarray,
    tile: int,
    overlap: int,
    iou_threshold: float = 0.5,
    score_threshold: float = 0.05,
) -> Any:
    """What a detector finds in all tiles of an image, merged by NMS within each class.

    An object at the border of two tiles is found in both, and the better box stays. So the overlap
    should be as wide as the objects. Of an object larger than a tile there are only parts.

    Args:
        model: A detector of mmdet with its ``cfg``, as ``mmdet.apis.init_detector`` gives it.
        image: ``(H, W, 3)`` in BGR, as OpenCV reads it.
        tile: Side of a tile, in pixels.
        overlap: Pixels that two neighbours share at least.
        iou_threshold: Of two boxes of a class that overlap more, the one with the higher score
            stays. Default: 0.5.
        score_threshold: Boxes with a lower score are left out. Default: 0.05.

    Returns:
        An ``InstanceData`` with ``bboxes`` ``(N, 4)`` in pixels of the image, ``scores``,
        ``labels``, and ``masks`` ``(N, H, W)`` if the model predicts some; the best first.

    Raises:
        TileError: As :func:`tile_starts`.
    """
    inference_detector = import_module('mmdet.apis').inference_detector
    found = []
    for top, left in tile_corners(image.shape[:2], tile, overlap):
        part = np.ascontiguousarray(image[top : top + tile, left : left + tile])
        with DefaultScope.overwrite_default_scope('mmdet'):
            objects = inference_detector(model, part).pred_instances.cpu()
        found.append((objects[objects.scores >= score_threshold], (top, left)))
    return merge_tiles(found, image.shape[:2], iou_threshold)


def merge_tiles(
    found: Sequence[Tuple[Any, Tuple[int, int]]], shape: Tuple[int, int], iou_threshold: float
) -> Any:
    """The objects of tiles as those of the image.

    Args:
        found: For each tile its ``InstanceData`` and its corner ``(top, left)``.
        shape: Height and width of the image.
        iou_threshold: As in :func:`detect_in_tiles`.
    """
    batched_nms = import_module('torchvision.ops').batched_nms
    instance_data = import_module('mmengine.structures').InstanceData
    boxes = torch.cat(
        [objects.bboxes + torch.tensor([left, top, left, top]) for objects, (top, left) in found]
    )
    scores = torch.cat([objects.scores for objects, _ in found])
    labels = torch.cat([objects.labels for objects, _ in found])
    kept = batched_nms(boxes, scores, labels, iou_threshold)
    merged = instance_data(bboxes=boxes[kept], scores=scores[kept], labels=labels[kept])
    if all('masks' in objects for objects, _ in found):
        merged.masks = _masks_in_image(found, kept, shape)
    return merged


def _masks_in_image(
    found: Sequence[Tuple[Any, Tuple[int, int]]], kept: torch.Tensor, shape: Tuple[int, int]
) -> torch.Tensor:
    """The masks ``(N, H, W)`` of the objects that are kept, which alone are made so large."""
    places = [
        (objects.masks, index, corner) for objects, corner in found for index in range(len(objects))
    ]
    masks = torch.zeros((len(kept), *shape), dtype=torch.bool)
    for mask, number in zip(masks, kept.tolist()):
        of_tile, index, (top, left) = places[number]
        height, width = of_tile.shape[1:]
        mask[top : top + height, left : left + width] = of_tile[index].bool()
    return masks
