# Mask R-CNN with three box heads, each for tighter boxes than the one before it. They are Swin's:
# four convolutions and a linear, boxes of each class, and a loss of the decoded boxes.
_base_ = './mask-rcnn_fpn.py'

model = dict(
    type='CascadeRCNN',
    rpn_head=dict(loss_bbox=dict(_delete_=True, type='SmoothL1Loss', beta=1.0 / 9.0)),
    roi_head=dict(
        type='CascadeRoIHead',
        num_stages=3,
        stage_loss_weights=[1, 0.5, 0.25],
        bbox_head=[
            dict(
                type='ConvFCBBoxHead',
                num_shared_convs=4,
                num_shared_fcs=1,
                in_channels=256,
                conv_out_channels=256,
                fc_out_channels=1024,
                roi_feat_size=7,
                num_classes=80,
                bbox_coder=dict(type='DeltaXYWHBBoxCoder', target_stds=target_stds),
                reg_decoded_bbox=True,
                norm_cfg=dict(type='SyncBN'),
                loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=False),
                loss_bbox=dict(type='GIoULoss', loss_weight=10.0),
            )
            for target_stds in (
                [0.1, 0.1, 0.2, 0.2],
                [0.05, 0.05, 0.1, 0.1],
                [0.033, 0.033, 0.067, 0.067],
            )
        ],
    ),
    train_cfg=dict(
        rpn=dict(allowed_border=0),
        rpn_proposal=dict(max_per_img=2000),
        rcnn=[
            dict(
                assigner=dict(
                    type='MaxIoUAssigner',
                    pos_iou_thr=threshold,
                    neg_iou_thr=threshold,
                    min_pos_iou=threshold,
                    match_low_quality=False,
                ),
                sampler=dict(
                    type='RandomSampler', num=512, pos_fraction=0.25, add_gt_as_proposals=True
                ),
                mask_size=28,
                pos_weight=-1,
            )
            for threshold in (0.5, 0.6, 0.7)
        ],
    ),
)
