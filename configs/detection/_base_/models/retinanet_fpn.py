# A config adds the backbone and the neck's in_channels. The backbone has out_indices=(1, 2, 3),
# without the map at stride 4: the neck would drop it, and its norm would have no gradient.
# Weights of a classifier of the same arch come by --cfg-options:
#   model.backbone.init_cfg.type=Pretrained model.backbone.init_cfg.checkpoint=FILE
# These cannot merge into an init_cfg=None, so leave init_cfg out.
model = dict(
    type='RetinaNet',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
    ),
    neck=dict(
        type='FPN',
        out_channels=256,
        start_level=0,
        add_extra_convs='on_input',
        num_outs=5,
    ),
    bbox_head=dict(
        type='RetinaHead',
        num_classes=80,
        in_channels=256,
        stacked_convs=4,
        feat_channels=256,
        anchor_generator=dict(
            type='AnchorGenerator',
            octave_base_scale=4,
            scales_per_octave=3,
            ratios=[0.5, 1.0, 2.0],
            strides=[8, 16, 32, 64, 128],
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
        nms_pre=1000,
        min_bbox_size=0,
        score_thr=0.05,
        nms=dict(type='nms', iou_threshold=0.5),
        max_per_img=100,
    ),
)
