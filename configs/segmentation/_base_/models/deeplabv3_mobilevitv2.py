# A config adds the arch and its weights, and in_channels of both heads.
norm_cfg = dict(type='SyncBN')
model = dict(
    type='EncoderDecoder',
    # Pixels from 0 to 1, as the authors' code has them.
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[0.0, 0.0, 0.0],
        std=[255.0, 255.0, 255.0],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
    ),
    backbone=dict(type='MobileViTv2', output_stride=8),
    decode_head=dict(
        type='ASPPHead',
        in_index=3,
        channels=512,
        dilations=(1, 12, 24, 36),
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=norm_cfg,
        align_corners=True,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False),
    ),
    auxiliary_head=dict(
        type='FCNHead',
        in_index=2,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=norm_cfg,
        align_corners=True,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
sync_bn = 'torch'  # BatchNorms of all GPUs together, as the authors'
