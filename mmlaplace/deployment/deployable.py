"""Whole models as modules that take pixels alone, in the form in which they are exported.

All operators are standard: NMS and RoIAlign come from torchvision instead of mmcv, because
exporters can translate torchvision's. Where mmdet selects a number of boxes that depends on the
image, these forms have a fixed number, filled up with scores of 0.
"""

import copy
from typing import Any, Dict, List, Optional, Tuple, Type

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from ..models.attentions import WindowAttention
from ..models.layers.block import are_untouched
from ..ops.pooled_landmarks import pooling_matrix
from .detections import (
    classified,
    clipped,
    dense_candidates,
    limits_of,
    masks_of,
    pick,
    stages_of,
)

# Where heads turn their outputs into predictions, which the forms below do themselves.
PREDICTING = (
    'predict',
    'predict_by_feat',
    '_predict_by_feat_single',
    '_get_predictions',
    'regress_by_class',
)
NMS_OPTIONS = {'type', 'iou_threshold', 'class_agnostic', 'split_thr'}


class NotDeployableError(ValueError):
    """A model cannot be exported. The message says why."""


class Deployable(nn.Module):
    """A model from RGB pixels ``(B, 3, H, W)``, 0 to 255, to tensors named in ``outputs``.

    A model of grey images takes ``(B, 1, H, W)``. A model of C other channels takes ``(B, C, H,
    W)``, in the order in which they are loaded.

    Attributes:
        inputs: Names of the tensors that it takes.
        outputs: Names of the tensors that it returns.
        channels: Channels of the images.
        multiple: The model's preprocessor pads images right and below to multiples of it.
        least_size: Height and width to which it pads at least, or None.
        pad_value: The value by which it pads, after the normalisation.
        max_batch: Images in a batch, or None if there may be any number.
        details: Further facts for a user of the outputs, such as the threshold of masks.
        has_windows: Whether attention is in windows. How many there are depends on the size of the
            image, and is fixed in a graph.
    """

    task: str
    inputs: Tuple[str, ...] = ('images',)
    outputs: Tuple[str, ...]
    channels: int
    max_batch: Optional[int] = None
    multiple: int
    least_size: Optional[Tuple[int, int]]
    pad_value: float
    details: Dict[str, Any]
    model: Any
    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = with_exportable_parts(model).eval()
        self.details = {}
        self.has_windows = any(isinstance(part, WindowAttention) for part in model.modules())
        preprocessor: Any = model.data_preprocessor
        if not hasattr(preprocessor, '_enable_normalize'):
            raise NotDeployableError(
                f'{type(preprocessor).__name__} does not prepare images; only models of images are '
                'deployed'
            )
        stem = next(part for part in model.modules() if isinstance(part, nn.Conv2d))
        self.channels = stem.in_channels
        mean = torch.zeros(1, 1, 1)
        std = torch.ones(1, 1, 1)
        if preprocessor._enable_normalize:
            mean, std = preprocessor.mean, preprocessor.std
        # Images are loaded as BGR, and a preprocessor that does not turn them normalises BGR. Its
        # name in mmpretrain, in mmseg of the upstream set, and in the others.
        names = ('to_rgb', 'channel_conversion', '_channel_conversion')
        turned = getattr(preprocessor, next(n for n in names if hasattr(preprocessor, n)))
        self.rgb = turned or self.channels != 3  # other numbers of channels are never turned
        for name, values in (('mean', mean), ('std', std)):
            values = values.expand(self.channels, 1, 1).float()
            values = values if self.rgb else values.flip(0)  # of RGB pixels
            self.register_buffer(name, values.clone(), persistent=False)
        self.set_padding(preprocessor)

    def set_padding(self, preprocessor: Any) -> None:
        """Read how a preprocessor pads the images of a test."""
        if hasattr(preprocessor, 'seg_pad_val'):  # mmseg's, which in a test pads only by test_cfg
            options = preprocessor.test_cfg or {}
            self.multiple = options.get('size_divisor') or 1
            size = options.get('size')
            self.least_size = None if size is None else (int(size[0]), int(size[1]))
            value = preprocessor.pad_val
        else:
            self.multiple = preprocessor.pad_size_divisor or 1
            self.least_size = None
            value = preprocessor.pad_value
        if not isinstance(value, (int, float)):
            raise NotDeployableError(
                f'the data_preprocessor pads by {value!r}; only a number can be exported'
            )
        self.pad_value = float(value)

    def maps(self, images: Tensor) -> Tuple[Tensor, ...]:
        """The maps of backbone and neck."""
        images = (images - self.mean) / self.std
        images = images if self.rgb else images.flip(1)
        return self.model.extract_feat(images.to(next(self.model.parameters()).dtype))

    def given(self, images: Tensor) -> Tuple[Tensor, ...]:
        """All inputs for images without padding."""
        if self.inputs == ('images',):
            return (images,)
        return images, torch.tensor([images.shape[2:]], dtype=torch.float32)


class Classifier(Deployable):
    """Probabilities ``scores (B, classes)``."""

    task, outputs = 'classification', ('scores',)

    def forward(self, images: Tensor) -> Tuple[Tensor, ...]:
        return (self.model.head(self.maps(images)).float().softmax(-1),)


class Segmentor(Deployable):
    """``labels (B, H, W)``, and the ``logits (B, classes, h, w)`` of the head's map.

    Labels are those of the logits, resized to the size of the image. Those of a head with one
    channel are 1 where its sigmoid is above the head's threshold, and otherwise 0.
    """

    task, outputs = 'segmentation', ('labels', 'logits')

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        head, test_cfg = model.decode_head, model.test_cfg
        self.details.update(align_corners=bool(head.align_corners))
        if head.out_channels == 1:
            self.details['threshold'] = float(head.threshold)
        if test_cfg.get('mode', 'whole') == 'slide':
            self.details['slide'] = {
                name: [int(side) for side in test_cfg[name]] for name in ('crop_size', 'stride')
            }

    def forward(self, images: Tensor) -> Tuple[Tensor, ...]:
        head = self.model.decode_head
        logits = head(self.maps(images)).float()
        size = images.shape[2:]
        resized = F.interpolate(logits, size, mode='bilinear', align_corners=head.align_corners)
        if logits.shape[1] == 1:
            return (resized[:, 0].sigmoid() > head.threshold).long(), logits
        return resized.argmax(1), logits


class OneStageDetector(Deployable):
    """``boxes (1, n, 4)``, ``scores (1, n)`` and ``labels (1, n)``, the highest scores first.

    Boxes are ``x1, y1, x2, y2`` in pixels. n is ``test_cfg.max_per_img``. Where fewer are found,
    the last scores are 0, with labels -1. A second input, ``image_sizes (1, 2)`` in fp32, has
    height and width without the padding, where boxes end, as in mmdet.
    """

    task, max_batch, inputs = 'detection', 1, ('images', 'image_sizes')
    outputs: Tuple[str, ...] = ('boxes', 'scores', 'labels')

    def forward(self, images: Tensor, image_sizes: Tensor) -> Tuple[Tensor, ...]:
        head = self.model.bbox_head
        config = head.test_cfg
        limits = limits_of(image_sizes)
        boxes, scores, labels, _ = dense_candidates(head, self.maps(images), limits, config)
        detections = pick(boxes, scores, labels, config, config.get('score_thr', 0.0))
        return tuple(tensor[None] for tensor in detections)


class TwoStageDetector(OneStageDetector):
    """As :class:`OneStageDetector`. With a mask head also ``masks (1, n, h, w)``.

    A mask has probabilities, for the area of its box: resize it to the box and take those of at
    least ``rcnn.mask_thr_binary``. In a cascade, each stage refines the regions of the one before.
    Logits of classes and probabilities of masks are means over the stages.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        if model.roi_head.with_mask:
            self.outputs = (*self.outputs, 'masks')
            self.details['mask_threshold'] = model.test_cfg.rcnn.mask_thr_binary

    def forward(self, images: Tensor, image_sizes: Tensor) -> Tuple[Tensor, ...]:
        model = self.model
        roi_head = model.roi_head
        maps = self.maps(images)
        limits = limits_of(image_sizes)
        config = model.test_cfg.rpn
        boxes, scores, _, levels = dense_candidates(model.rpn_head, maps, limits, config)
        regions, objectness, _ = pick(boxes, scores, levels, config)

        regions, logits, deltas = classified(roi_head, maps, regions, limits)
        head = stages_of(roi_head.bbox_head)[-1]
        scores = logits.softmax(-1)[:, :-1].masked_fill((objectness <= 0)[:, None], 0)
        classes = 1 if head.reg_class_agnostic else head.num_classes
        boxes = head.bbox_coder.decode(
            regions.repeat_interleave(classes, dim=0), deltas.reshape(-1, 4), max_shape=None
        )
        boxes = clipped(boxes, limits).reshape(-1, classes, 4).expand(-1, head.num_classes, 4)
        labels = torch.arange(head.num_classes, device=boxes.device).expand(len(regions), -1)
        config = model.test_cfg.rcnn
        detections: Tuple[Tensor, ...] = pick(
            boxes.reshape(-1, 4), scores.reshape(-1), labels.reshape(-1), config, config.score_thr
        )
        if roi_head.with_mask:
            boxes, _, labels = detections
            detections = (*detections, masks_of(roi_head, maps, boxes, labels))
        return tuple(tensor[None] for tensor in detections)


class PoolByProducts(nn.Module):
    """``nn.AdaptiveAvgPool2d`` of maps of any size, as products with matrices of the cells."""

    def __init__(self, cells: Tuple[int, int]) -> None:
        super().__init__()
        self.cells = cells

    def forward(self, x: Tensor) -> Tensor:
        rows = pooling_matrix(x.shape[2], self.cells[0], None, x)
        columns = pooling_matrix(x.shape[3], self.cells[1], None, x)
        return rows @ x @ columns.transpose(0, 1)


class UpsampleByWhole(nn.Module):
    """mmseg's ``Upsample`` by a whole factor, which it multiplies in floating point."""

    def __init__(self, upsample: Any) -> None:
        super().__init__()
        self.factor = int(upsample.scale_factor)
        self.mode = upsample.mode
        self.align_corners = upsample.align_corners

    def forward(self, x: Tensor) -> Tensor:
        size = [side * self.factor for side in x.shape[2:]]
        return F.interpolate(x, size, mode=self.mode, align_corners=self.align_corners)


def with_exportable_parts(model: nn.Module) -> nn.Module:
    """A copy whose layers are exportable for images of any size, with the same results.

    A layer stays if a user has changed it, by a hook or another forward.
    """
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, part in list(parent.named_children()):
            if not are_untouched([part]):
                continue
            if type(part).forward is nn.AdaptiveAvgPool2d.forward:
                size: Any = part.output_size
                cells = (size, size) if isinstance(size, int) else tuple(size)
                if None not in cells and cells != (1, 1):  # which is a mean
                    setattr(parent, name, PoolByProducts(cells))
            elif type(part).__module__ == 'mmseg.models.utils.wrappers' and part.size is None:
                setattr(parent, name, UpsampleByWhole(part))
    return model


def deployable(model: Any) -> Deployable:
    """The exportable form of a classifier, detector or segmentor.

    Raises:
        NotDeployableError: For a model with unknown parts. The message names them.
    """
    form: Type[Deployable]
    kind = type(model).__name__
    nms = []
    parts: List[Tuple[str, nn.Module]] = []
    heads: List[Tuple[str, nn.Module]] = []
    if hasattr(model, 'decode_head'):
        form = Segmentor
        parts = [('EncoderDecoder', model)]
        heads = [('EncoderDecoder', model), ('BaseDecodeHead', model.decode_head)]
    elif hasattr(model, 'roi_head'):
        form = TwoStageDetector
        roi_head = model.roi_head
        is_cascade = type(roi_head).__name__ == 'CascadeRoIHead'  # the same in several stages
        parts = [
            ('RPNHead', model.rpn_head),
            ('CascadeRoIHead' if is_cascade else 'StandardRoIHead', roi_head),
        ]
        heads = [('TwoStageDetector', model)]
        heads += [('BBoxHead', head) for head in stages_of(roi_head.bbox_head)]
        extractors = stages_of(roi_head.bbox_roi_extractor)
        if roi_head.with_mask:
            heads += [('FCNMaskHead', head) for head in stages_of(roi_head.mask_head)]
            extractors = [*extractors, *stages_of(roi_head.mask_roi_extractor)]
        for extractor in extractors:
            parts.append(('SingleRoIExtractor', extractor))
            parts += [('RoIAlign', layer) for layer in getattr(extractor, 'roi_layers', ())]
        nms = [part.get('nms') for part in (model.test_cfg.rpn, model.test_cfg.rcnn)]
    elif hasattr(model, 'bbox_head'):
        form = OneStageDetector
        parts = [('RetinaHead', model.bbox_head)]
        heads = [('SingleStageDetector', model)]
        nms = [model.test_cfg.get('nms')]  # DETRs have none
    elif hasattr(model, 'head') and hasattr(model.head, 'cal_acc'):  # one class for each image
        form = Classifier
        heads = [('ImageClassifier', model), ('ClsHead', model.head)]
    else:
        raise NotDeployableError(
            f'a {kind} cannot be exported; only classifiers with one class for each image, '
            'detectors and segmentors can'
        )
    for known, part in parts:
        if type(part).__name__ != known:
            raise NotDeployableError(
                f'a {kind} with a {type(part).__name__} cannot be exported; take a {known} in its '
                'place (docs/heads.md says which heads can be exported)'
            )
    for known, predictor in heads:
        changed = changed_predictions(predictor, known)
        if changed:
            name = 'head' if predictor is not model else 'model'
            whole = kind if predictor is model else f'{kind} with a {type(predictor).__name__}'
            raise NotDeployableError(
                f'a {whole} cannot be exported, because it has its own {", ".join(changed)}; take '
                f'a {name} that predicts as {known} does'
            )
    if any(hasattr(part, 'rand_init') for part in model.modules()):  # mmseg's Hamburger
        raise NotDeployableError(
            f'a {kind} with a {type(model.decode_head).__name__} cannot be exported, because it '
            'draws random bases for each prediction; take a SegformerHead in its place'
        )
    options = unknown_options(model) if issubclass(form, OneStageDetector) else []
    if options:
        raise NotDeployableError(
            f'a {kind} with {", ".join(options)} cannot be exported; only a model without them can'
        )
    for config in nms:
        if config.get('type', 'nms') != 'nms':
            raise NotDeployableError(
                f"test_cfg.nms.type={config.type!r} cannot be exported; only 'nms' can. Set it by "
                '--cfg-options'
            )
        if set(config) - NMS_OPTIONS:
            raise NotDeployableError(
                f'test_cfg.nms={dict(config)} cannot be exported; keep only the options '
                f'{sorted(NMS_OPTIONS)}'
            )
    return form(model)


def changed_predictions(head: nn.Module, known: str) -> List[str]:
    """Methods that make predictions, of another class than ``known`` or of the instance itself.

    Args:
        head: A head, or the whole model.
        known: Name of the class whose methods the exported form computes.
    """
    changed = []
    for method in PREDICTING:
        owner = next((cls for cls in type(head).__mro__ if method in vars(cls)), None)
        if method in vars(head) or (owner is not None and owner.__name__ != known):
            changed.append(method)
    return changed


def unknown_options(model: nn.Module) -> List[str]:
    """Options of a detector that change its predictions in a way that its form does not have."""
    options = []
    for name, part in model.named_modules():
        if getattr(part, 'custom_cls_channels', False):
            options.append(f"{name}'s own activation of class scores")
        if getattr(part, 'with_shared_head', False):
            options.append(f'a shared head in {name}')
        if getattr(part, 'pool_mode', 'avg') != 'avg':
            options.append(f'pool_mode={part.pool_mode!r} in {name}')
        if not getattr(getattr(part, 'bbox_coder', None), 'clip_border', True):
            options.append(f'clip_border=False in {name}')
    return options
