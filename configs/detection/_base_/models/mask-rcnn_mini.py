# A slim neck and slim heads, for digits of 28 to 64 pixels.
_base_ = './mask-rcnn_fpn.py'

model = dict(
    neck=dict(out_channels=64, num_outs=4),
    rpn_head=dict(
        in_channels=64,
        feat_channels=64,
        anchor_generator=dict(ratios=[1.0, 2.0], strides=[4, 8, 16, 32]),
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(roi_layer=dict(sampling_ratio=2), out_channels=64),
        bbox_head=dict(in_channels=64, fc_out_channels=256, num_classes=10),
        mask_roi_extractor=dict(roi_layer=dict(sampling_ratio=2), out_channels=64),
        mask_head=dict(
            num_convs=2, in_channels=64, conv_out_channels=64, num_classes=10, class_agnostic=True
        ),
    ),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=128)),
        rpn_proposal=dict(nms_pre=500, max_per_img=200),
        rcnn=dict(sampler=dict(num=64)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100), rcnn=dict(max_per_img=20)),
)
