"""The head and the anchors of CVNets' SSD. ``mmlaplace`` imports this after ``mmdet.models``."""

from typing import Any, List

from mmdet.models.dense_heads import SSDHead
from mmdet.models.task_modules import SSDAnchorGenerator
from mmengine.model import ModuleList
from mmengine.registry import MODELS, TASK_UTILS
from torch import Tensor, nn

__all__ = ['SSDLiteAnchors', 'SSDLiteHead']

OF_CONVOLUTIONS = {
    'stacked_convs',
    'feat_channels',
    'use_depthwise',
    'conv_cfg',
    'norm_cfg',
    'act_cfg',
}


@TASK_UTILS.register_module()
class SSDLiteAnchors(SSDAnchorGenerator):
    """The anchors of mmdet's ``SSDAnchorGenerator``, none of them longer than the image.

    Arguments are those of mmdet's. The last of ``strides`` is the side of the image.

    Source: CVNets (arXiv 2206.02002).

    Examples:
        >>> from mmlaplace.models.ssd import SSDLiteAnchors
        >>> anchors = SSDLiteAnchors([320], [[2]], [280], [320], scale_major=False)
        >>> anchors.base_anchors[0][2]  # 320 x 198 instead of 396 x 198
        tensor([  0.0000,  61.0051, 320.0000, 258.9949])
    """

    def gen_base_anchors(self) -> List[Tensor]:
        """The anchors ``(A, 4)`` of the first cell of each level: left, top, right, bottom."""
        anchors = super().gen_base_anchors()
        for boxes, center in zip(anchors, self.centers):
            middle = boxes.new_tensor(center * 2)
            half = max(self.strides[-1]) / 2
            boxes.sub_(middle).clamp_(-half, half).add_(middle)
        return anchors


@MODELS.register_module()
class SSDLiteHead(SSDHead):
    """mmdet's ``SSDHead`` of 1 x 1 convolutions alone, behind ``SSDLiteNeck``.

    Boxes end at the edges of the image after the NMS, not before it: give the box coder
    ``clip_border=False``. Arguments are those of mmdet's head, but for the options of its other
    convolutions, which are in :class:`~mmlaplace.models.necks.SSDLiteNeck`.

    Raises:
        ValueError: For an option of these convolutions.

    Source: CVNets (arXiv 2206.02002).

    Examples:
        >>> import torch
        >>> from mmlaplace.models.ssd import SSDLiteHead
        >>> anchors = dict(
        ...     type='SSDLiteAnchors', strides=[160, 320], ratios=[[2], [2]],
        ...     min_sizes=[96, 224], max_sizes=[224, 320], scale_major=False,
        ... )
        >>> coder = dict(type='mmdet.DeltaXYWHBBoxCoder', clip_border=False)
        >>> head = SSDLiteHead(80, [32, 16], anchor_generator=anchors, bbox_coder=coder)
        >>> scores, boxes = head((torch.randn(1, 32, 2, 2), torch.randn(1, 16, 1, 1)))
        >>> [tuple(x.shape) for x in scores], [tuple(x.shape) for x in boxes]
        ([(1, 324, 2, 2), (1, 324, 1, 1)], [(1, 16, 2, 2), (1, 16, 1, 1)])
    """

    loss_cls = None  # mmdet's predictions look for it, and its SSDHead has none

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        without_effect = OF_CONVOLUTIONS & kwargs.keys()
        if without_effect:
            raise ValueError(
                f'{sorted(without_effect)} have no effect in SSDLiteHead; set norm_cfg of '
                'SSDLiteNeck'
            )
        super().__init__(*args, **kwargs)

    def _init_layers(self) -> None:
        levels = list(zip(self.in_channels, self.num_base_priors))
        self.cls_convs = ModuleList(
            nn.Conv2d(dims, anchors * self.cls_out_channels, 1) for dims, anchors in levels
        )
        self.reg_convs = ModuleList(nn.Conv2d(dims, anchors * 4, 1) for dims, anchors in levels)

    def _bbox_post_process(
        self,
        results: Any,
        cfg: Any,
        rescale: bool = False,
        with_nms: bool = True,
        img_meta: Any = None,
    ) -> Any:
        results = super()._bbox_post_process(results, cfg, rescale, with_nms, img_meta)
        height, width = img_meta['ori_shape' if rescale else 'img_shape'][:2]
        results.bboxes[:, 0::2].clamp_(0, width)
        results.bboxes[:, 1::2].clamp_(0, height)
        return results
