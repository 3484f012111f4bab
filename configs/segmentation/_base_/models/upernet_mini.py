# UPerNet with slim heads.
norm_cfg = dict(type='BN')
# Digits cover 8 % of the pixels: with equal weights their classes are learned late.
class_weight = [0.1] + 10 * [1.0]
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(128, 128),
        # Of every size as it comes, for images of any shape.
        test_cfg=dict(size_divisor=32),
    ),
    backbone=dict(
        type='LaplacianFormer',
        arch='micro',
        img_size=128,
        attn_cfg=dict(type='LaplacianAttention', landmarks=16),
        # What bash tools/quickstart.sh trains. A classifier has the norm of its last stage alone.
        init_cfg=dict(
            type='Pretrained',
            checkpoint='work_dirs/quickstart/epoch_11.pth',
            prefix='backbone.',
            min_matched=0.9,
        ),
    ),
    decode_head=dict(
        type='UPerHead',
        in_channels=[32, 64, 96, 128],
        in_index=[0, 1, 2, 3],
        pool_scales=(1, 2, 3, 6),
        channels=64,
        dropout_ratio=0.1,
        num_classes=11,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, class_weight=class_weight),
    ),
    auxiliary_head=dict(
        type='FCNHead',
        in_channels=96,
        in_index=2,
        channels=64,
        num_convs=1,
        concat_input=False,
        dropout_ratio=0.1,
        num_classes=11,
        norm_cfg=norm_cfg,
        align_corners=False,
        loss_decode=dict(
            type='CrossEntropyLoss', use_sigmoid=False, class_weight=class_weight, loss_weight=0.4
        ),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
