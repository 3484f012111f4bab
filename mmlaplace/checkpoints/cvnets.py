"""The names of detectors and segmentors of CVNets, Apple's toolbox, around those of a backbone."""

from functools import partial
from typing import Dict, List, Tuple

import torch.nn.functional as F
from torch import Tensor

from .conversion import Change, NameTable, Rows, Target, within

# Of a convolution with a norm, in our layers and in mmcv's.
CONV: Rows = {'block.conv.': 'conv.', 'block.norm.': 'norm.'}
MMCV_CONV: Rows = {'block.conv.': 'conv.', 'block.norm.': 'bn.'}
# Of both segmentors.
SEGMENTOR: Rows = {
    'seg_head.classifier.block.conv.': 'decode_head.conv_seg.',
    **within('auxiliary_head.convs.0.', 'seg_head.aux_head.0.', MMCV_CONV),
    'seg_head.aux_head.2.block.conv.': 'auxiliary_head.conv_seg.',
}


def _whole(backbone: Rows, mark: str, rows: Rows) -> NameTable:
    """The names of a whole model, of which every one has the tensor ``mark``."""
    identifying = ('encoder.conv_1.block.conv.weight', mark)
    return NameTable({**within('', 'encoder.', backbone), **rows}, identifying, whole=True)


def _projection(value: Tensor, image_size: Tuple[int, int]) -> Tensor:
    """CVNets' 1 x 1 convolution as mmseg's 3 x 3 one, whose first channels are the mean's."""
    return F.pad(value.roll(value.shape[1] // 5, 1), [1] * 4)


def deeplabv3(backbone: Rows) -> NameTable:
    """The names of DeepLabv3, here mmseg's ``ASPPHead``, with the rows of a backbone."""
    aspp = 'seg_head.aspp.aspp_layer.'
    rows: Dict[str, Target] = {
        **SEGMENTOR,
        **within('decode_head.aspp_modules.{j}.', aspp + 'convs.{j}.', MMCV_CONV),
        **within('decode_head.image_pool.1.', aspp + 'convs.4.aspp_pool.conv_1x1.', MMCV_CONV),
        aspp + 'project.block.conv.': ('decode_head.bottleneck.conv.', _projection),
        aspp + 'project.block.norm.': 'decode_head.bottleneck.bn.',
    }
    return _whole(backbone, aspp + 'project.block.conv.weight', rows)


def pspnet(backbone: Rows) -> NameTable:
    """The names of PSPNet, here ``PyramidPoolingNeck`` and mmseg's ``FCNHead``."""
    psp = 'seg_head.psp_layer.'
    rows = {
        **SEGMENTOR,
        **within('neck.branches.{j}.', psp + 'psp_branches.{j}.1.', CONV),
        **within('decode_head.convs.0.', psp + 'fusion.0.', MMCV_CONV),
    }
    return _whole(backbone, psp + 'fusion.0.block.conv.weight', rows)


def _boxes(value: Tensor, image_size: Tuple[int, int], anchors: int) -> Tensor:
    """The rows of the offsets of boxes, of which each anchor has four before its classes."""
    return value.unflatten(0, (anchors, -1))[:, :4].flatten(0, 1)


def _scores(value: Tensor, image_size: Tuple[int, int], anchors: int) -> Tensor:
    """The rows of the classes, of which mmdet has the background last, and CVNets first."""
    return value.unflatten(0, (anchors, -1))[:, 4:].roll(-1, 1).flatten(0, 1)


def ssd(backbone: Rows) -> NameTable:
    """The names of SSD, here ``SSDLiteNeck`` and ``SSDLiteHead``."""

    def parts(anchors: int) -> List[Tuple[str, Change]]:
        return [
            ('bbox_head.reg_convs.{i}.', partial(_boxes, anchors=anchors)),
            ('bbox_head.cls_convs.{i}.', partial(_scores, anchors=anchors)),
        ]

    rows: Dict[str, Target] = {
        **within('neck.projections.{i}.', 'ssd_heads.{i}.proj_layer.', CONV),
        **within('neck.depthwise.{i}.', 'ssd_heads.{i}.loc_cls_layer.dw_conv.', CONV),
        'ssd_heads.{i}.loc_cls_layer.pw_conv.block.conv.': parts(6),
        'ssd_heads.{i}.loc_cls_layer.block.conv.': parts(4),  # of the mean of the map
        'extra_layers.os_-1.1.block.conv.': 'neck.extra_layers.3.1.',
    }
    for i, stride in enumerate((64, 128, 256)):
        for j, conv in enumerate(('dw_conv.', 'pw_conv.')):
            own = f'neck.extra_layers.{i}.{j}.'
            rows.update(within(own, f'extra_layers.os_{stride}.{conv}', CONV))
    return _whole(backbone, 'ssd_heads.0.loc_cls_layer.pw_conv.block.conv.weight', rows)
