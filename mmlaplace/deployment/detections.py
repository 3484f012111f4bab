"""Boxes of detectors from the outputs of their heads, in forms that exporters translate.

The number of boxes does not depend on the image: there are always as many, filled up with scores of
0. NMS and RoIAlign are torchvision's.
"""

from typing import Any, List, Sequence, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


def dense_candidates(
    head: Any, maps: Sequence[Tensor], limits: Tensor, config: Any
) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    """The ``nms_pre`` boxes with the highest scores of each level, with classes and levels.

    They are of one image. Where a level has fewer, the last have scores of -1.
    """
    outputs = head(maps)
    shapes = [tuple(level.shape[2:]) for level in outputs[0]]
    priors = head.prior_generator.grid_priors(shapes, torch.float32, maps[0].device)
    candidates = []
    for index, (logits, deltas, prior) in enumerate(zip(*outputs, priors)):
        scores = logits[0].float().permute(1, 2, 0).reshape(-1, head.cls_out_channels)
        scores = scores.sigmoid() if head.use_sigmoid_cls else scores.softmax(-1)[:, :-1]
        classes = scores.shape[1]
        # With as many more as are taken, the number taken does not depend on the image.
        scores = F.pad(scores.reshape(-1), (0, config.nms_pre), value=-1.0)
        scores, order = scores.topk(config.nms_pre)
        order = order.masked_fill(scores < 0, 0)
        place = order // classes
        deltas = deltas[0].float().permute(1, 2, 0).reshape(-1, 4)[place]
        boxes = head.bbox_coder.decode(prior[place], deltas, max_shape=None)
        candidates.append(
            (clipped(boxes, limits), scores, order % classes, torch.full_like(order, index))
        )
    boxes, scores, labels, levels = (torch.cat(parts) for parts in zip(*candidates))
    return boxes, scores, labels, levels


def limits_of(sizes: Tensor) -> Tensor:
    """The largest ``x1, y1, x2, y2`` of boxes, from ``(1, 2)`` with height and width."""
    return sizes[0].flip(0).repeat(2)


def clipped(boxes: Tensor, limits: Tensor) -> Tensor:
    """Boxes cut off at the border of the image."""
    return torch.minimum(boxes.clamp(min=0), limits)


def pick(
    boxes: Tensor, scores: Tensor, groups: Tensor, config: Any, score_thr: float = 0.0
) -> Tuple[Tensor, Tensor, Tensor]:
    """The ``max_per_img`` boxes of the highest scores that survive NMS among those of their group.

    Returns:
        Boxes, scores and groups. Where fewer are left, the last scores are 0 and groups -1.
    """
    from torchvision.ops import nms

    sides = boxes[:, 2:] - boxes[:, :2]
    valid = (scores > score_thr) & (sides > config.get('min_bbox_size', -1)).all(-1)
    candidates = valid.nonzero()[:, 0]
    some = boxes[candidates]
    # Boxes of different groups are apart, as in mmcv's batched_nms.
    apart = groups[candidates].to(some)[:, None] * (boxes.max() + 1)
    if config.nms.get('class_agnostic', False):
        apart = torch.zeros_like(apart)
    kept = candidates[nms(some + apart, scores[candidates], config.nms.iou_threshold)]
    survivors = torch.zeros_like(scores).scatter(0, kept, scores[kept])
    number = config.max_per_img
    scores, order = F.pad(survivors, (0, number)).topk(number)
    empty = scores <= 0
    order = order.masked_fill(empty, 0)
    boxes, groups = boxes[order], groups[order]
    return boxes.masked_fill(empty[:, None], 0), scores, groups.masked_fill(empty, -1)


def region_features(extractor: Any, maps: Sequence[Tensor], boxes: Tensor) -> Tensor:
    """The extractor's features of boxes ``(n, 4)`` of one image, each from the map of its scale."""
    from torchvision.ops import roi_align

    regions = F.pad(boxes, (1, 0)).to(maps[0].dtype)  # the index of the image, which is 0
    maps = maps[: extractor.num_inputs]
    levels = extractor.map_roi_levels(F.pad(boxes, (1, 0)), len(maps))
    channels = maps[0].shape[1]
    size = extractor.roi_layers[0].output_size
    features = maps[0].new_zeros(len(boxes), channels, *size)
    for index, (level, layer) in enumerate(zip(maps, extractor.roi_layers)):
        here = (levels == index).nonzero()[:, 0]
        pooled = roi_align(
            level, regions[here], size, layer.spatial_scale, layer.sampling_ratio, layer.aligned
        )
        features = features.index_put((here,), pooled)
    return features


def stages_of(part: Any) -> List[Any]:
    """The heads or extractors of a cascade, one for each stage, or the only one."""
    return list(part) if isinstance(part, nn.ModuleList) else [part]


def classified(
    roi_head: Any, maps: Sequence[Tensor], regions: Tensor, limits: Tensor
) -> Tuple[Tensor, Tensor, Tensor]:
    """The regions ``(n, 4)`` of the last stage, with logits ``(n, classes + 1)`` and deltas.

    Each stage but the last regresses its regions by their most likely classes. The logits are means
    over the stages.
    """
    extractors, heads = stages_of(roi_head.bbox_roi_extractor), stages_of(roi_head.bbox_head)
    found: List[Tensor] = []
    for stage, (extractor, head) in enumerate(zip(extractors, heads)):
        logits, deltas = head(region_features(extractor, maps, regions))
        logits, deltas = logits.float(), deltas.float()
        found.append(logits)
        if stage < len(heads) - 1:
            if not head.reg_class_agnostic:
                labels = logits[:, :-1].argmax(1)[:, None, None].expand(-1, 1, 4)
                deltas = deltas.reshape(len(deltas), -1, 4).gather(1, labels)[:, 0]
            regions = clipped(head.bbox_coder.decode(regions, deltas, max_shape=None), limits)
    mean = torch.stack(found).mean(0) if len(found) > 1 else logits
    return regions, mean, deltas


def masks_of(roi_head: Any, maps: Sequence[Tensor], boxes: Tensor, labels: Tensor) -> Tensor:
    """Probabilities ``(n, h, w)`` of the masks of boxes, means over the stages."""
    extractors, heads = stages_of(roi_head.mask_roi_extractor), stages_of(roi_head.mask_head)
    found = []
    for extractor, head in zip(extractors, heads):
        masks = head(region_features(extractor, maps, boxes))
        index = torch.zeros_like(labels) if head.class_agnostic else labels
        index = index.clamp(min=0)[:, None, None, None].expand(-1, 1, *masks.shape[2:])
        found.append(masks.float().gather(1, index)[:, 0].sigmoid())
    return torch.stack(found).mean(0) if len(found) > 1 else found[0]
