"""Anchors and boxes of SSDLite end where the image ends."""

import pytest
import torch
from mmengine.config import Config
from mmengine.structures import InstanceData

ssd = pytest.importorskip('mmlaplace.models.ssd', reason='no mmdet')

ANCHORS = dict(
    strides=[160, 320],
    ratios=[[2], [2]],
    min_sizes=[200, 300],
    max_sizes=[300, 320],
    scale_major=False,
)


def test_no_anchor_is_longer_than_the_image_and_each_keeps_its_middle():
    near, whole = ssd.SSDLiteAnchors(**ANCHORS).base_anchors
    for boxes, middle in ((near, 80), (whole, 160)):
        sides = boxes[:, 2:] - boxes[:, :2]
        torch.testing.assert_close(boxes[:, :2] + sides / 2, torch.full_like(sides, middle))
        assert sides.max() <= 320 + 1e-3  # a rounding of fp32
    # 200 x 2^0.5 is longer than the cell, and 300 x 2^0.5 than the image.
    assert (near[:, 2:] - near[:, :2]).max() > 160 and (whole[:, 3] - whole[:, 1]).max() > 319


@pytest.mark.parametrize(
    ('rescale', 'expected'), [(False, [0, 0, 50, 25]), (True, [0, 0, 100, 50])]
)
def test_boxes_end_at_the_edges_of_the_image_that_they_are_in(rescale, expected):
    """Of 50 x 100 pixels, which were resized to 25 x 50."""
    coder = dict(type='mmdet.DeltaXYWHBBoxCoder', clip_border=False)
    head = ssd.SSDLiteHead(
        2, [8, 8], anchor_generator=dict(type='SSDLiteAnchors', **ANCHORS), bbox_coder=coder
    )
    found = InstanceData(
        bboxes=torch.tensor([[-5.0, -6.0, 70.0, 80.0]]),
        scores=torch.ones(1),
        labels=torch.zeros(1, dtype=torch.long),
    )
    sizes = dict(ori_shape=(50, 100), img_shape=(25, 50), scale_factor=(0.5, 0.5))
    cfg = Config(dict(nms=dict(type='nms', iou_threshold=0.5), max_per_img=9, min_bbox_size=-1))
    (box,) = head._bbox_post_process(found, cfg, rescale, img_meta=sizes).bboxes.tolist()
    assert box == expected
