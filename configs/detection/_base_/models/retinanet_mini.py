# A slim neck and slim heads, for digits of 28 to 64 pixels.
_base_ = './retinanet_fpn.py'

model = dict(
    neck=dict(out_channels=64, num_outs=3),
    bbox_head=dict(
        num_classes=10,
        in_channels=64,
        stacked_convs=2,
        feat_channels=64,
        anchor_generator=dict(scales_per_octave=2, ratios=[1.0, 2.0], strides=[8, 16, 32]),
    ),
    test_cfg=dict(nms_pre=300, max_per_img=20),
)
