"""A training step and a prediction of any config's model on random images, without its data."""

import importlib
import math
from typing import Any, Dict, List, Tuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DefaultScope
from mmengine.structures import InstanceData, PixelData

from ..model_zoo import build_model
from ..toolboxes import image_channels


def random_model(cfg: Config) -> Any:
    """The model of a config with random weights, without SyncBN, which needs several processes."""
    cfg.model.backbone.init_cfg = None
    return revert_sync_batchnorm(build_model(cfg))


def train_and_predict(cfg: Config, shape: Tuple[int, int], count: int) -> Dict[str, Any]:
    """Build the model of a config, take a step by its optimizer, and predict.

    Args:
        cfg: The config. Its backbone starts from random weights.
        shape: Height and width of the images.
        count: The number of images.

    Returns:
        The parameters of the whole model, and the loss.

    Raises:
        RuntimeError: If a loss is not finite.
    """
    scope, channels = cfg.default_scope, image_channels(cfg.model.backbone)
    model = random_model(cfg)
    preprocessor = model.data_preprocessor
    _take_any_size(preprocessor, shape)
    masks = getattr(preprocessor, 'pad_mask', False)
    with DefaultScope.overwrite_default_scope(scope):
        model.init_weights()
        optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
        batch = random_batch(scope, shape, count, masks, channels)
        losses = model.train().train_step(batch, optimizer)
        model.eval().test_step(random_batch(scope, shape, 1, masks, channels))
    if not math.isfinite(losses['loss']):
        raise RuntimeError(f'the losses are {losses}; they must be finite')
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return dict(parameters=parameters, loss=float(losses['loss']))


def _take_any_size(preprocessor: Any, shape: Tuple[int, int]) -> None:
    """Let images be smaller than the config's crops, to which they would be padded."""
    if getattr(preprocessor, 'size', None) is not None:  # mmseg
        preprocessor.size = shape
    if hasattr(preprocessor, 'pad_mask'):  # mmdet
        preprocessor.batch_augments = None


def random_batch(
    scope: str, shape: Tuple[int, int], count: int, masks: bool, channels: int = 3
) -> Dict[str, List[Any]]:
    """What a data loader of a toolbox gives: random images, each of the first class.

    In detection an image has two boxes, with or without masks. In segmentation half of it is
    ignored.
    """
    images = [torch.randint(256, (channels, *shape), dtype=torch.uint8) for _ in range(count)]
    return dict(inputs=images, data_samples=[_SAMPLES[scope](shape, masks) for _ in images])


def _classified(shape: Tuple[int, int], masks: bool) -> Any:
    return importlib.import_module('mmpretrain.structures').DataSample().set_gt_label(0)


def _detected(shape: Tuple[int, int], masks: bool) -> Any:
    structures = importlib.import_module('mmdet.structures')
    height, width = shape
    boxes = torch.tensor([[0.1, 0.1, 0.5, 0.6], [0.4, 0.3, 0.9, 0.9]])
    boxes = (boxes * torch.tensor([width, height, width, height])).round()
    sample = structures.DetDataSample(
        metainfo=dict(img_id=0, img_shape=shape, ori_shape=shape, scale_factor=(1.0, 1.0))
    )
    sample.gt_instances = InstanceData(bboxes=boxes, labels=torch.zeros(2, dtype=torch.long))
    if masks:
        filled = np.zeros((2, height, width), np.uint8)
        for mask, (left, top, right, bottom) in zip(filled, boxes.int().tolist()):
            mask[top:bottom, left:right] = 1
        sample.gt_instances.masks = structures.mask.BitmapMasks(filled, height, width)
    sample.ignored_instances = InstanceData(
        bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long)
    )
    return sample


def _segmented(shape: Tuple[int, int], masks: bool) -> Any:
    sample = importlib.import_module('mmseg.structures').SegDataSample(
        metainfo=dict(img_shape=shape, ori_shape=shape, pad_shape=shape)
    )
    labels = torch.zeros(1, *shape, dtype=torch.long)
    labels[..., : shape[1] // 2] = 255
    sample.gt_sem_seg = PixelData(data=labels)
    return sample


_SAMPLES = dict(mmpretrain=_classified, mmdet=_detected, mmseg=_segmented)
