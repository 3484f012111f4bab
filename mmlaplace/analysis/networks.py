"""What a whole model computes for images, up to where boxes are picked and masks are pasted."""

from typing import Any, Iterator, List, Tuple

import torch.nn as nn
from mmengine.config import Config
from torch import Tensor

from ..model_zoo import build_model

COCO_SIZE = (800, 1280)  # papers count detectors at this size


class Network(nn.Module):
    """A classifier, detector or segmentor as a module of images alone, to count and to time.

    It returns what the heads compute. Picking boxes, resizing and pasting masks are left out, as
    they depend on what is seen. The second stage of a detector has as many regions as its
    ``test_cfg`` allows, with zeros for their features: ``rpn.max_per_img`` for boxes and
    ``rcnn.max_per_img`` for masks. An auxiliary head of a segmentor has its parameters, and is
    computed only while training.

    Args:
        model: One of mmpretrain, mmdet or mmseg.
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
    """Of the decode head, of which a cascade has several, and of the auxiliary ones."""
    several = isinstance(model.decode_head, nn.ModuleList)
    output = None
    for index, head in enumerate(model.decode_head if several else [model.decode_head]):
        output = head(maps) if index == 0 else head(maps, output)
        yield output
    if model.training and getattr(model, 'auxiliary_head', None) is not None:
        heads = model.auxiliary_head
        for head in heads if isinstance(heads, nn.ModuleList) else [heads]:
            yield head(maps)


def _regions(model: Any, maps: Any) -> Iterator[Any]:
    """Of the heads of the second stage, each on features of regions."""
    for kind, config in (('bbox', model.test_cfg.rpn), ('mask', model.test_cfg.rcnn)):
        heads: Any = getattr(model.roi_head, f'{kind}_head', None)
        extractors: Any = getattr(model.roi_head, f'{kind}_roi_extractor', None)
        if heads is None:
            continue
        heads, extractors = (
            each if isinstance(each, nn.ModuleList) else [each] for each in (heads, extractors)
        )
        for head, extractor in zip(heads, extractors):
            size = extractor.roi_layers[0].output_size
            yield head(maps[0].new_zeros(config.max_per_img, extractor.out_channels, *size))


def network_of(cfg: Config) -> Network:
    """The model of a config with random weights."""
    cfg.model.backbone.pop('init_cfg', None)
    cfg.model.pop('pretrained', None)
    return Network(build_model(cfg)).eval()


def image_size(cfg: Config) -> Tuple[int, int]:
    """Height and width of an image, as the config has them; 800 x 1280 for a detector on COCO."""
    side = cfg.model.backbone.get('img_size')
    if side is None:
        side = (cfg.model.get('data_preprocessor') or {}).get('size')
    if side is None and cfg.default_scope == 'mmdet':
        return COCO_SIZE
    if side is None:
        pipeline = cfg.test_dataloader.dataset.pipeline
        side = next(
            (step[key] for step in reversed(pipeline) for key in ('crop_size', 'scale')
             if key in step), 224,
        )  # fmt: skip
    return (side, side) if isinstance(side, int) else tuple(side)
