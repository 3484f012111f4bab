# Mask R-CNN with a slim neck and slim heads, for digits of 28 to 64 pixels.
model = dict(
    type='MaskRCNN',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_mask=True,
        pad_size_divisor=32,
    ),
    backbone=dict(
        type='LaplacianFormer',
        arch='micro',
        img_size=(192, 256),
        attn_cfg=dict(type='LaplacianAttention', landmarks=16),
        # What bash tools/quickstart.sh trains. A classifier has the norm of its last stage alone.
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/quickstart/epoch_11.pth',
            prefix='backbone.',
            min_matched=0.9,
        ),
    ),
    neck=dict(type='FPN', in_channels=[32, 64, 96, 128], out_channels=64, num_outs=4),
    rpn_head=dict(
        type='RPNHead',
        in_channels=64,
        feat_channels=64,
        anchor_generator=dict(
            type='AnchorGenerator', scales=[8], ratios=[1.0, 2.0], strides=[4, 8, 16, 32]
        ),
        bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
        loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=True),
        loss_bbox=dict(type='L1Loss'),
    ),
    roi_head=dict(
        type='StandardRoIHead',
        bbox_roi_extractor=dict(
            type='SingleRoIExtractor',
            roi_layer=dict(type='RoIAlign', output_size=7, sampling_ratio=2),
            out_channels=64,
            featmap_strides=[4, 8, 16, 32],
        ),
        bbox_head=dict(
            type='Shared2FCBBoxHead',
            in_channels=64,
            fc_out_channels=256,
            roi_feat_size=7,
            num_classes=10,
            bbox_coder=dict(type='DeltaXYWHBBoxCoder', target_stds=[0.1, 0.1, 0.2, 0.2]),
            loss_cls=dict(type='CrossEntropyLoss', use_sigmoid=False),
            loss_bbox=dict(type='L1Loss'),
        ),
        mask_roi_extractor=dict(
            type='SingleRoIExtractor',
            roi_layer=dict(type='RoIAlign', output_size=14, sampling_ratio=2),
            out_channels=64,
            featmap_strides=[4, 8, 16, 32],
        ),
        mask_head=dict(
            type='FCNMaskHead',
            num_convs=2,
            in_channels=64,
            conv_out_channels=64,
            num_classes=10,
            class_agnostic=True,
            loss_mask=dict(type='CrossEntropyLoss', use_mask=True),
        ),
    ),
    train_cfg=dict(
        rpn=dict(
            assigner=dict(type='MaxIoUAssigner', pos_iou_thr=0.7, neg_iou_thr=0.3, min_pos_iou=0.3),
            sampler=dict(
                type='RandomSampler', num=128, pos_fraction=0.5, add_gt_as_proposals=False
            ),
            allowed_border=-1,
            pos_weight=-1,
        ),
        rpn_proposal=dict(
            nms_pre=500, max_per_img=200, nms=dict(type='nms', iou_threshold=0.7), min_bbox_size=0
        ),
        rcnn=dict(
            assigner=dict(
                type='MaxIoUAssigner',
                pos_iou_thr=0.5,
                neg_iou_thr=0.5,
                min_pos_iou=0.5,
                match_low_quality=True,
            ),
            sampler=dict(type='RandomSampler', num=64, pos_fraction=0.25, add_gt_as_proposals=True),
            mask_size=28,
            pos_weight=-1,
        ),
    ),
    test_cfg=dict(
        rpn=dict(
            nms_pre=300, max_per_img=100, nms=dict(type='nms', iou_threshold=0.7), min_bbox_size=0
        ),
        rcnn=dict(
            score_thr=0.05,
            nms=dict(type='nms', iou_threshold=0.5),
            max_per_img=20,
            mask_thr_binary=0.5,
        ),
    ),
)
