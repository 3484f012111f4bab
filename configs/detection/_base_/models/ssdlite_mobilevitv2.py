# A config adds the arch and its weights, and the neck's in_channels.
side = 320  # of the image, in pixels
scales = [side * (0.1 + 0.95 * i / 6) for i in range(7)]
channels = [512, 256, 256, 128, 128, 64]
model = dict(
    type='SingleStageDetector',
    # Pixels from 0 to 1, as the authors' code has them.
    data_preprocessor=dict(
        type='DetDataPreprocessor', mean=[0.0] * 3, std=[255.0] * 3, bgr_to_rgb=True
    ),
    backbone=dict(type='MobileViTv2', out_indices=(2, 3)),
    neck=dict(type='SSDLiteNeck', out_channels=channels, norm_cfg=dict(type='SyncBN')),
    bbox_head=dict(
        type='SSDLiteHead',
        num_classes=80,
        in_channels=channels,
        anchor_generator=dict(
            type='SSDLiteAnchors',
            scale_major=False,
            # The maps have 20, 10, 5, 3, 2 and 1 rows.
            strides=[16, 32, 64, side / 3, 160, side],
            ratios=[[2, 3], [2, 3], [2, 3], [2, 3], [2, 3], [2]],
            min_sizes=scales[:-1],
            max_sizes=scales[1:],
        ),
        bbox_coder=dict(
            type='DeltaXYWHBBoxCoder', target_stds=[0.1, 0.1, 0.2, 0.2], clip_border=False
        ),
    ),
    train_cfg=dict(
        assigner=dict(
            type='MaxIoUAssigner',
            pos_iou_thr=0.5,
            neg_iou_thr=0.5,
            min_pos_iou=0.0,
            gt_max_assign_all=False,
        ),
        sampler=dict(type='PseudoSampler'),  # the head takes three negatives for a positive
        smoothl1_beta=1.0,
        neg_pos_ratio=3,
        allowed_border=-1,
        pos_weight=-1,
    ),
    # The authors keep 400 boxes of each class for the NMS, and mmdet so many of each level.
    test_cfg=dict(
        nms_pre=10000,
        score_thr=0.01,
        nms=dict(type='nms', iou_threshold=0.5),
        max_per_img=200,
    ),
)
sync_bn = 'torch'  # BatchNorms of all GPUs together, as the authors'
