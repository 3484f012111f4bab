# RetinaNet with a slim neck and slim heads, for digits of 28 to 64 pixels.
model = dict(
    type='RetinaNet',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
    ),
    backbone=dict(
        type='LaplacianFormer',
        arch='micro',
        img_size=(192, 256),
        out_indices=(1, 2, 3),
        attn_cfg=dict(type='LaplacianAttention', landmarks=16),
        # What bash tools/quickstart.sh trains. A classifier has the norm of its last stage alone.
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/quickstart/epoch_11.pth',
            prefix='backbone.',
            min_matched=0.9,
        ),
    ),
    neck=dict(type='FPN', in_channels=[64, 96, 128], out_channels=64, num_outs=3),
    bbox_head=dict(
        type='RetinaHead',
        num_classes=10,
        in_channels=64,
        stacked_convs=2,
        feat_channels=64,
        anchor_generator=dict(
            type='AnchorGenerator',
            octave_base_scale=4,
            scales_per_octave=2,
            ratios=[1.0, 2.0],
            strides=[8, 16, 32],
        ),
        bbox_coder=dict(type='DeltaXYWHBBoxCoder'),
        loss_cls=dict(type='FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.25),
        loss_bbox=dict(type='L1Loss'),
    ),
    train_cfg=dict(
        assigner=dict(type='MaxIoUAssigner', pos_iou_thr=0.5, neg_iou_thr=0.4, min_pos_iou=0),
        sampler=dict(type='PseudoSampler'),  # focal loss takes all anchors
        allowed_border=-1,
        pos_weight=-1,
    ),
    test_cfg=dict(
        nms_pre=300,
        min_bbox_size=0,
        score_thr=0.05,
        nms=dict(type='nms', iou_threshold=0.5),
        max_per_img=20,
    ),
)
