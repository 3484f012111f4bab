"""The networks of classifiers, detectors and segmentors, without the steps after the heads."""

import copy
import importlib
from itertools import islice
from typing import Any, Iterator, List, Tuple

import torch.nn as nn
from mmengine.config import Config
from mmengine.registry import MODELS, DefaultScope
from mmengine.runner import Runner
from torch import Tensor

from ..model_zoo import build_model

COCO_SIZE = (800, 1280)  # papers count the MACs of detectors at this size


class Network(nn.Module):
    """A classifier, detector or segmentor as a module that takes images alone.

    With it one counts the MACs of a model and times it. It returns the outputs of the heads. It
    leaves out the steps after them, which select boxes, resize and paste masks, because their cost
    depends on the content of the image. The second stage of a detector gets as many regions as
    ``test_cfg`` allows: ``rpn.max_per_img`` for boxes and ``rcnn.max_per_img`` for masks. Their
    features are zeros. The parameters of a segmentor's auxiliary head count, but it only runs in
    training mode.

    Args:
        model: A model of mmpretrain, mmdet or mmseg.
    """

    model: Any

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> List[Any]:
        model = self.model
        maps = model.extract_feat(images)
        outputs = []
        for name in ('head', 'bbox_head', 'rpn_head'):
            if getattr(model, name, None) is not None:
                outputs.append(getattr(model, name)(maps))
        if hasattr(model, 'decode_head'):
            outputs += _segmented(model, maps)
        if hasattr(model, 'roi_head'):
            outputs += _regions(model, maps)
        return outputs


def _segmented(model: Any, maps: Any) -> Iterator[Tensor]:
    """Outputs of the decode head, or of each in a cascade, and of auxiliary heads in training."""
    output = None
    for index, head in enumerate(_as_list(model.decode_head)):
        output = head(maps) if index == 0 else head(maps, output)
        yield output
    if model.training and getattr(model, 'auxiliary_head', None) is not None:
        for head in _as_list(model.auxiliary_head):
            yield head(maps)


def _as_list(heads: Any) -> Any:
    """The heads of a cascade, or the only one."""
    return heads if isinstance(heads, nn.ModuleList) else [heads]


def _regions(model: Any, maps: Any) -> Iterator[Any]:
    """Outputs of the box and mask heads of the second stage, for regions of zeros."""
    for kind, config in (('bbox', model.test_cfg.rpn), ('mask', model.test_cfg.rcnn)):
        heads = getattr(model.roi_head, f'{kind}_head', None)
        extractors = getattr(model.roi_head, f'{kind}_roi_extractor', None)
        if heads is None:
            continue
        for head, extractor in zip(_as_list(heads), _as_list(extractors)):
            size = extractor.roi_layers[0].output_size
            yield head(maps[0].new_zeros(config.max_per_img, extractor.out_channels, *size))


def network_of(cfg: Config) -> Network:
    """The network of a config, with random weights and in eval mode."""
    cfg.model.backbone.pop('init_cfg', None)
    cfg.model.pop('pretrained', None)
    return Network(build_model(cfg)).eval()


def image_size(cfg: Config) -> Tuple[int, int]:
    """Height and width of the images that a config sets.

    The backbone's ``img_size`` comes first, then the size in the data preprocessor. Otherwise a
    detector has 800 x 1280, and another model the last size in its test pipeline, or 224.
    """
    side = cfg.model.backbone.get('img_size')
    if side is None:
        side = (cfg.model.get('data_preprocessor') or {}).get('size')
    if side is None and cfg.get('default_scope') == 'mmdet':
        return COCO_SIZE
    if side is None:
        side = 224
        dataset = (cfg.get('test_dataloader') or {}).get('dataset') or {}
        for step in dataset.get('pipeline', []):
            side = step.get('crop_size', step.get('scale', side))
        if not isinstance(side, int):
            side = tuple(side)[::-1]  # the transforms have width and height
    return (side, side) if isinstance(side, int) else tuple(side)


def sizes_of_images(cfg: Config, count: int) -> List[Tuple[int, int]]:
    """Heights and widths of the first validation images, as a model gets them: padded.

    Args:
        cfg: The config, whose data must be there.
        count: Number of images. There may be fewer.
    """
    loader = copy.deepcopy(cfg.val_dataloader)
    loader.update(batch_size=1, num_workers=0, persistent_workers=False)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        importlib.import_module(f'{cfg.default_scope}.utils').register_all_modules(False)
        preprocessor = MODELS.build(cfg.model.get('data_preprocessor') or cfg.data_preprocessor)
        batches = Runner.build_dataloader(loader)
        shapes = [preprocessor(batch)['inputs'].shape for batch in islice(batches, count)]
    return [(shape[-2], shape[-1]) for shape in shapes]
